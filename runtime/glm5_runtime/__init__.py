"""Data plane: loads a GLM-5 checkpoint and serves tokens. Knows nothing of Kubernetes."""
