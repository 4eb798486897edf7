"""The demo behind `make demo`: a real Kubernetes on this machine, the operator from its chart, a served model of GLM-5's architecture."""
