"""The node agent: a DaemonSet's process that reads one node's cards, reports them in its AscendNode, and does the resets it is asked for.

It imports the API models and the pure parsers, nothing of the operator's own process.
"""
