package main

import (
	"fmt"
	"io"
	"strconv"
)

// hccnTool answers as hccn_tool does for the RoCE port of one device: `-i N -link|-net_health|-ip|-tls -g`.
func hccnTool(args []string, out io.Writer) int {
	node, err := loadNode(statePath())
	if err != nil || len(args) != 4 || args[0] != "-i" || args[3] != "-g" || node.Product == product310P || node.Product == product950 {
		fmt.Fprintln(out, "Cmd execute failed (invented wording)")
		return 1
	}
	for _, device := range node.Devices {
		if strconv.Itoa(device.Physical) != args[1] {
			continue
		}
		if device.Hang {
			hang()
		}
		return hccnAnswer(args[2], device, out)
	}
	fmt.Fprintln(out, "Invalid device id (invented wording)")
	return 1
}

func hccnAnswer(question string, device Device, out io.Writer) int {
	switch question {
	case "-link":
		fmt.Fprintf(out, "link status: %s\n", device.Link)
	case "-net_health":
		fmt.Fprintf(out, "net health status: %s\n", device.NetHealth)
	case "-ip":
		fmt.Fprintf(out, "ipaddr:%s\nnetmask:255.255.255.0\n", device.Address)
	case "-tls":
		enabled := 0
		if device.TLS {
			enabled = 1
		}
		fmt.Fprintf(out, "dev_id:%d, tls switch[%d](0:disable, 1:enable), tls preconfigured[1](0:non-preset, 1:preset), "+
			"tls alarm time threshold[60]days\n", device.Physical, enabled)
	default:
		fmt.Fprintln(out, "Cmd execute failed (invented wording)")
		return 1
	}
	return 0
}
