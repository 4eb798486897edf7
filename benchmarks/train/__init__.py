"""Training against transformers, PEFT, TRL and verl's formulas: `make bench-train`."""
