"""Test clusters: a bare control plane on this host and a kind cluster with fake Ascend cards.

Used by people (`python -m tests.cluster …`), by pytest (tests/cluster/plugin.py) and by the demo and the benchmarks.
Nothing under operator/ or runtime/ may import it.
"""
