"""A node's way from one pool to another. Pure."""
