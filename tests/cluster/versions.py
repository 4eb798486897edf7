"""Every version that the test clusters are tied to. Read by the builders; the Go modules' own versions are in go/*/go.mod."""

KUBERNETES = "v1.35.4"
ETCD_TAG = "3.6.6-0"  # the tags that kubeadm 1.35 asks for
COREDNS_TAG = "v1.13.1"
PAUSE_TAGS = ("3.10", "3.10.1")  # kind's containerd configuration names the first, kubeadm the second
DEBIAN = "bookworm"
KINDEST_NODE = "kindest/node:v1.35.4"
