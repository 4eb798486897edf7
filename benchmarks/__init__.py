"""Measurements. Each `make bench-…` target is one module here; results go to docs/benchmarks.md with date and machine.

Nothing under operator/ or runtime/ may import it. Timing is never a test: machines differ.
"""
