"""The I/O layer against a real API server; nothing is faked but the controllers, which are a small one of our own."""
