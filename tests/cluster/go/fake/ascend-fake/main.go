// ascend-fake stands for Ascend's hardware on a test node. As `ascend-fake` it is a device plugin on the kubelet's real
// registration API; called as `npu-smi` it prints what the vendor's tool prints. Both read one JSON file of the node.
package main

import (
	"flag"
	"log"
	"os"
	"path/filepath"
)

func main() {
	if filepath.Base(os.Args[0]) == "npu-smi" {
		os.Exit(npuSMI(os.Args[1:], os.Stdin, os.Stdout))
	}
	options := pluginOptions{}
	flag.StringVar(&options.State, "state", statePath(), "file with the node's cards")
	flag.StringVar(&options.Sockets, "sockets", "/var/lib/kubelet/device-plugins", "the kubelet's device plugin folder")
	flag.StringVar(&options.InstallDir, "install-npu-smi", "", "folder of the node, as mounted here, to put npu-smi into")
	flag.StringVar(&options.HostTool, "npu-smi", "/usr/local/bin/npu-smi", "npu-smi's path on the node, mounted into containers that get cards")
	flag.Parse()
	log.Fatal(runPlugin(options))
}
