// ascend-fake stands for Ascend's hardware on a test node. As `ascend-fake` it is a device plugin on the kubelet's real
// registration API; called as `npu-smi` or `hccn_tool` it prints what the vendor's tools print. All read one JSON file of the node.
package main

import (
	"flag"
	"log"
	"os"
	"path/filepath"
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case "npu-smi":
		os.Exit(npuSMI(os.Args[1:], os.Stdin, os.Stdout))
	case "hccn_tool":
		os.Exit(hccnTool(os.Args[1:], os.Stdout))
	}
	options := pluginOptions{}
	flag.StringVar(&options.State, "state", statePath(), "file with the node's cards")
	flag.StringVar(&options.Sockets, "sockets", "/var/lib/kubelet/device-plugins", "the kubelet's device plugin folder")
	flag.StringVar(&options.InstallDir, "install-npu-smi", "", "folder of the node, as mounted here, to put npu-smi and hccn_tool into")
	flag.StringVar(&options.HostTool, "npu-smi", "/usr/local/bin/npu-smi", "npu-smi's path on the node, mounted into containers that get cards")
	flag.Parse()
	log.Fatal(runPlugin(options))
}
