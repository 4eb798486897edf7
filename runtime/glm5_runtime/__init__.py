"""Data plane."""
