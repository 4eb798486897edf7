package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

const (
	wide   = "+------------------------------------------------------------------------------------------------+"
	rule   = "+---------------------------+---------------+----------------------------------------------------+"
	double = "+===========================+===============+====================================================+"
	usage  = "Usage: npu-smi info <watch|proc|-h|-m|-l|-t type> [Options...]"
)

// npuSMI prints one answer and returns the exit code. Layouts follow outputs of real machines (HDK 24 and 25).
func npuSMI(args []string, out io.Writer) int {
	node, err := loadNode(statePath())
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
		printList(out, devices)
	case words == "info -m":
		printMap(out, node, devices)
	case strings.HasPrefix(words, "info -t "):
		return printType(out, devices, args[1:])
	default:
		fmt.Fprintln(out, "Command or option is not found.")
		return 1
	}
	return 0
}

func printInfo(out io.Writer, node *Node, devices []Device) {
	fmt.Fprintln(out, wide)
	fmt.Fprintf(out, "| npu-smi %-24s Version: %-52s |\n", node.Version, node.Version)
	fmt.Fprintln(out, rule)
	fmt.Fprintln(out, "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|")
	chip := "Chip"
	if node.Product == "A3" {
		chip = "Chip  Phy-ID"
	}
	fmt.Fprintf(out, "| %-25s | Bus-Id        | AICore(%%)   Memory-Usage(MB)  HBM-Usage(MB)        |\n", chip)
	fmt.Fprintln(out, double)
	for i, device := range devices {
		printInfoRows(out, node, device)
		if i+1 < len(devices) && devices[i+1].NPU == device.NPU {
			fmt.Fprintln(out, wide)
		} else {
			fmt.Fprintln(out, double)
		}
	}
	printProcesses(out, devices)
}

func printInfoRows(out io.Writer, node *Node, device Device) {
	power := "-"
	if device.Power != nil {
		power = strconv.FormatFloat(*device.Power, 'f', 1, 64)
	}
	fmt.Fprintf(out, "| %-5d %-19s | %-13s | %-11s %-17d %-21s|\n", device.NPU, node.Name, device.Health, power, device.Temperature, "0    / 0")
	chip := strconv.Itoa(device.Chip)
	if node.Product == "A3" {
		chip = fmt.Sprintf("%-5d %d", device.Chip, device.Physical)
	}
	hbm := fmt.Sprintf("%-5d/ %d", device.HBMUsed, device.HBMTotal)
	fmt.Fprintf(out, "| %-25s | %-13s | %-11d %-17s %-21s|\n", chip, device.Bus, device.AICore, "0    / 0", hbm)
}

func printProcesses(out io.Writer, devices []Device) {
	fmt.Fprintln(out, rule)
	fmt.Fprintln(out, "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |")
	fmt.Fprintln(out, double)
	for start := 0; start < len(devices); {
		end := start
		rows := 0
		for ; end < len(devices) && devices[end].NPU == devices[start].NPU; end++ {
			for _, process := range devices[end].Processes {
				rows++
				fmt.Fprintf(out, "| %-7d %-17d | %-13d | %-24s | %-23d |\n", devices[end].NPU, devices[end].Chip, process.PID, process.Name, process.Memory)
			}
		}
		if rows == 0 {
			fmt.Fprintf(out, "| %-95s|\n", fmt.Sprintf("No running processes found in NPU %d", devices[start].NPU))
		}
		fmt.Fprintln(out, double)
		start = end
	}
}

func printList(out io.Writer, devices []Device) {
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
		field(out, "Chip Count", chips[npu])
	}
}

// printMap numbers logic ids from 0 over what is visible, which is what ASCEND_RT_VISIBLE_DEVICES counts in. The board
// controller (Mcu) has a row of its own after the chips of each NPU.
func printMap(out io.Writer, node *Node, devices []Device) {
	a3 := node.Product == "A3"
	row := func(npu, chip, logic, physical, name string, last int) {
		fmt.Fprintf(out, "\t%-30s %-30s %-30s ", npu, chip, logic)
		if a3 {
			fmt.Fprintf(out, "%-30s ", physical)
		}
		fmt.Fprintf(out, "%-*s\n", last, name)
	}
	row("NPU ID", "Chip ID", "Chip Logic ID", "Chip Phy-ID", "Chip Name", 30)
	mcu, chipsPerNPU := "Mcu", 2
	width := 0
	if !a3 {
		width, chipsPerNPU = 30, 1
	}
	for logic, device := range devices {
		row(strconv.Itoa(device.NPU), strconv.Itoa(device.Chip), strconv.Itoa(logic), strconv.Itoa(device.Physical), node.ChipName, 0)
		if logic+1 == len(devices) || devices[logic+1].NPU != device.NPU {
			row(strconv.Itoa(device.NPU), strconv.Itoa(chipsPerNPU), "-", "-", mcu, width)
		}
	}
}

func printType(out io.Writer, devices []Device, args []string) int {
	options := map[string]string{}
	for i := 0; i+1 < len(args); i += 2 {
		options[args[i]] = args[i+1]
	}
	var chosen []Device
	for _, device := range devices {
		chip, one := options["-c"]
		if strconv.Itoa(device.NPU) == options["-i"] && (!one || strconv.Itoa(device.Chip) == chip) {
			chosen = append(chosen, device)
		}
	}
	if len(chosen) == 0 {
		fmt.Fprintf(out, "Invalid card id.\nError parameter of -i\n%s\n", usage)
		return 1
	}
	_, one := options["-c"]
	switch options["-t"] {
	case "health":
		perChip(out, chosen, one, printHealth)
	case "usages":
		perChip(out, chosen, one, printUsages)
	case "temp":
		perChip(out, chosen, one, func(out io.Writer, device Device) { field(out, "NPU Temperature (C)", device.Temperature) })
		if !one {
			fmt.Fprintln(out)
			field(out, "LM75A_TE (C)", 36)
			field(out, "LM75B_TE (C)", 36)
			field(out, "Chip Name", "MCU")
		}
	case "memory":
		field(out, "NPU ID", chosen[0].NPU)
		for _, device := range chosen {
			printMemory(out, device)
		}
	default:
		fmt.Fprintf(out, "Error parameter of -t\n%s\n", usage)
		return 1
	}
	return 0
}

// perChip prints the block of each chip; for a whole NPU with its heading, and the chip's number last in each block.
func perChip(out io.Writer, devices []Device, one bool, print func(io.Writer, Device)) {
	if one {
		print(out, devices[0])
		return
	}
	field(out, "NPU ID", devices[0].NPU)
	field(out, "Chip Count", len(devices))
	for _, device := range devices {
		fmt.Fprintln(out)
		print(out, device)
		field(out, "Chip ID", device.Chip)
	}
}

func printHealth(out io.Writer, device Device) {
	field(out, "Health Status", device.Health)
	codes, information := "NA", []string{"NA"}
	if len(device.Codes) > 0 {
		codes = strings.Join(device.Codes, ",")
	}
	if len(device.Information) > 0 {
		information = device.Information
	}
	field(out, "Error Code", codes)
	field(out, "Error Information", information[0])
	for _, line := range information[1:] {
		field(out, "", line)
	}
}

func printUsages(out io.Writer, device Device) {
	rate := 0
	if device.HBMTotal > 0 {
		rate = device.HBMUsed * 100 / device.HBMTotal
	}
	field(out, "DDR Capacity(MB)", device.DDRTotal)
	field(out, "DDR Usage Rate(%)", device.DDRRate)
	field(out, "DDR Hugepages Total(page)", 0)
	field(out, "DDR Hugepages Usage Rate(%)", 0)
	field(out, "HBM Capacity(MB)", device.HBMTotal)
	field(out, "HBM Usage Rate(%)", rate)
	field(out, "Aicore Usage Rate(%)", device.AICore)
	field(out, "Aicpu Usage Rate(%)", 0)
	field(out, "Ctrlcpu Usage Rate(%)", 0)
	field(out, "DDR Bandwidth Usage Rate(%)", 0)
	field(out, "HBM Bandwidth Usage Rate(%)", 0)
}

func printMemory(out io.Writer, device Device) {
	field(out, "DDR Capacity(MB)", device.DDRTotal)
	field(out, "DDR Clock Speed(MHz)", 0)
	field(out, "HBM Capacity(MB)", device.HBMTotal)
	field(out, "HBM Clock Speed(MHz)", device.HBMClock)
	field(out, "HBM Temperature(C)", device.HBMTemp)
	field(out, "HBM Manufacturer ID", "0x5A")
}

func field(out io.Writer, key string, value any) {
	fmt.Fprintf(out, "\t%-30s : %v\n", key, value)
}
