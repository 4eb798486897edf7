package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const usage = "Usage: npu-smi info <watch|proc|-h|-m|-l|-t type> [Options...]"

// npuSMI prints one answer and returns the exit code. Layouts follow outputs of real machines (HDK 24 and 25).
func npuSMI(args []string, in io.Reader, out io.Writer) int {
	node, err := loadNode(statePath())
	if err == nil && (node.Failure.Text != "" || node.Failure.Exit != 0) {
		fmt.Fprint(out, node.Failure.Text)
		return node.Failure.Exit
	}
	var devices []Device
	if err == nil {
		value, set := os.LookupEnv("ASCEND_VISIBLE_DEVICES")
		devices, err = visibleTo(node, value, set)
	}
	if err != nil || len(devices) == 0 {
		fmt.Fprint(out, "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\ndcmi module initialize failed. ret is -8005\n")
		return 1
	}
	switch words := strings.Join(args, " "); {
	case words == "-v":
		fmt.Fprintf(out, "npu-smi version: %s\n", node.Version)
	case words == "info":
		printInfo(out, node, devices)
	case words == "info -l":
		printList(out, node, devices)
	case words == "info -m":
		printMap(out, node, devices)
	case strings.HasPrefix(words, "info -t "):
		return printType(out, node, devices, args[1:])
	case strings.HasPrefix(words, "set "):
		return setCommand(node, args[1:], in, out)
	default:
		fmt.Fprintln(out, "Command or option is not found.")
		return 1
	}
	return 0
}

// hang never answers, and SIGTERM doesn't end it: a process that waits for the driver can't be talked to.
func hang() {
	signal.Ignore(syscall.SIGTERM)
	time.Sleep(10 * time.Minute) // longer than anybody waits; bounded, so that a forgotten one ends
	os.Exit(1)
}

func printList(out io.Writer, node *Node, devices []Device) {
	chips := map[int]int{}
	var order []int
	for _, device := range devices {
		if chips[device.NPU] == 0 {
			order = append(order, device.NPU)
		}
		chips[device.NPU]++
	}
	field(out, "Total Count", len(order))
	for _, npu := range order {
		fmt.Fprintln(out)
		field(out, "NPU ID", npu)
		if node.Product == product950 {
			continue
		}
		field(out, "Chip Count", chips[npu])
	}
}

// printMap numbers logic ids from 0 over what is visible, which is what ASCEND_RT_VISIBLE_DEVICES counts in. The board
// controller (Mcu) has a row of its own after the chips of each NPU. 950 has slots and neither logic ids nor an Mcu.
func printMap(out io.Writer, node *Node, devices []Device) {
	columns := []string{"NPU ID", "Chip ID", "Chip Logic ID", "Chip Name"}
	switch node.Product {
	case productA3:
		columns = []string{"NPU ID", "Chip ID", "Chip Logic ID", "Chip Phy-ID", "Chip Name"}
	case product950:
		columns = []string{"NPU ID", "Slot ID", "Chip ID", "Chip Phy-ID", "Chip Name"}
	}
	row := func(cells map[string]string, last int) {
		fmt.Fprint(out, "\t")
		for _, column := range columns[:len(columns)-1] {
			fmt.Fprintf(out, "%-30s ", cells[column])
		}
		fmt.Fprintf(out, "%-*s\n", last, cells["Chip Name"])
	}
	heading := map[string]string{}
	for _, column := range columns {
		heading[column] = column
	}
	row(heading, 30)
	mcuWidth := 30
	if node.Product == productA3 {
		mcuWidth = 0
	}
	for logic, device := range devices {
		npu := strconv.Itoa(device.NPU)
		row(map[string]string{
			"NPU ID": npu, "Slot ID": npu, "Chip ID": strconv.Itoa(device.Chip), "Chip Logic ID": strconv.Itoa(logic),
			"Chip Phy-ID": strconv.Itoa(device.Physical), "Chip Name": node.ChipName,
		}, 0)
		last := logic+1 == len(devices) || devices[logic+1].NPU != device.NPU
		if last && node.Product != product950 {
			mcu := strconv.Itoa(node.chips())
			row(map[string]string{"NPU ID": npu, "Chip ID": mcu, "Chip Logic ID": "-", "Chip Phy-ID": "-", "Chip Name": "Mcu"}, mcuWidth)
		}
	}
}

func printType(out io.Writer, node *Node, devices []Device, args []string) int {
	options := map[string]string{}
	for i := 0; i+1 < len(args); i += 2 {
		options[args[i]] = args[i+1]
	}
	chip, one := options["-c"]
	if options["-t"] == "topo" {
		printTopology(out, node, devices)
		return 0
	}
	if one && node.Product == product950 {
		fmt.Fprintf(out, "Error parameter of -c\n%s\n", usage)
		return 1
	}
	var chosen []Device
	for _, device := range devices {
		if strconv.Itoa(device.NPU) == options["-i"] && (!one || strconv.Itoa(device.Chip) == chip) {
			chosen = append(chosen, device)
		}
	}
	if len(chosen) == 0 {
		fmt.Fprintf(out, "Invalid card id.\nError parameter of -i\n%s\n", usage)
		return 1
	}
	if slices.ContainsFunc(chosen, func(device Device) bool { return device.Hang }) {
		hang()
	}
	print, known := types[options["-t"]]
	if !known {
		fmt.Fprintf(out, "Error parameter of -t\n%s\n", usage)
		return 1
	}
	print(out, node, chosen, one)
	return 0
}

func field(out io.Writer, key string, value any) {
	fmt.Fprintf(out, "\t%-30s : %v\n", key, value)
}
