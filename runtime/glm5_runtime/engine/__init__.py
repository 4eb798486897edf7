"""The engine: one thread that turns requests into tokens. The server is its only caller besides tests and tools."""
