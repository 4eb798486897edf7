"""The GLM-5 decoder: config-driven modules over an operator set and a paged cache. No scheduling, no sampling, no HTTP."""
