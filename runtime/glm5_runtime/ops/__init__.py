"""Operators: what the decoder is made of, in one interface with one implementation per kind of device."""
