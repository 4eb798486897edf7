"""Benchmarks of the runtime. Each module measures one thing and returns it; `make bench-engine` prints them together."""
