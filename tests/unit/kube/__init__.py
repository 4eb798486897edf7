"""Unit tests of the I/O layer: pure parts by themselves, the HTTP parts against a small fake API server on loopback (`fake_api`)."""
