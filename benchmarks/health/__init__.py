"""The health benchmark: from a fault at its source to capacity back, and what watching for it costs. `make bench-health` runs it."""
