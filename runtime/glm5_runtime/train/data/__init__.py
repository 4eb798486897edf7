"""From files of conversations to batches of tokens."""
