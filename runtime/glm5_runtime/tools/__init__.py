"""Commands that are run by hand on checkpoints. They may import anything; only the command line imports them."""
