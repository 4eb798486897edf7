package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
)

// layout is one of the tables of `npu-smi info`, by its fixed lines.
type layout struct {
	top, rule, header string // the header's own closing rule included
	between, after    string // two chips of one NPU; two NPUs
	banner            string // a format
	processes         string // the second table's header
	process           string // a format
	noPower           string
}

const (
	wide   = "+------------------------------------------------------------------------------------------------+"
	rule   = "+---------------------------+---------------+----------------------------------------------------+"
	double = "+===========================+===============+====================================================+"

	wide310   = "+--------------------------------------------------------------------------------------------------------+"
	rule310   = "+-------------------------------+-----------------+------------------------------------------------------+"
	double310 = "+===============================+=================+======================================================+"

	wide950   = "+------------------------------------------------------------------------------------------------------------------+"
	rule950   = "+---------------------------+---------------+----------------------------------------------------------------------+"
	double950 = "+===========================+===============+======================================================================+"
)

func layoutOf(product string) layout {
	switch product {
	case product310P:
		return layout{
			top:  wide310,
			rule: rule310,
			header: "| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |\n" +
				"| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |\n" + double310,
			between:   rule310,
			after:     double310,
			banner:    "| npu-smi %-32s Version: %-54s |\n",
			processes: "| NPU     Chip                  | Process id      | Process name             | Process memory(MB)        |",
			process:   "| %-7d %-21d | %-15d | %-24s | %-25d |\n",
			noPower:   "NA",
		}
	case product950:
		return layout{
			top:  wide950,
			rule: "+--------+------------------+---------------+----------------------------------------------------------------------+",
			header: "| NPU ID | Name             | Health        | Power(W)              Temp(C)                  Hugepages-Usage(page) |\n" +
				"|        |                  | Bus-Id        | NPU Util(%)           Memory-Usage(MB)         HBM-Usage(MB)         |\n" +
				"+========+==================+===============+======================================================================+",
			between:   rule950,
			after:     double950,
			banner:    "| npu-smi %-35s Version: %-59s |\n",
			processes: "| NPU ID                    | Process id    | Process name       | Process memory(MB)    | Process id in container |",
			process:   "| %-25d | %-13d | %-18s | %-21d | NA                      |\n",
			noPower:   "NA",
		}
	}
	chip := "Chip"
	if product == productA3 {
		chip = "Chip  Phy-ID"
	}
	return layout{
		top:  wide,
		rule: rule,
		header: "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|\n" +
			fmt.Sprintf("| %-25s | Bus-Id        | AICore(%%)   Memory-Usage(MB)  HBM-Usage(MB)        |\n", chip) + double,
		between:   wide,
		after:     double,
		banner:    "| npu-smi %-24s Version: %-52s |\n",
		processes: "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |",
		process:   "| %-7d %-17d | %-13d | %-24s | %-23d |\n",
		noPower:   "-",
	}
}

func printInfo(out io.Writer, node *Node, devices []Device) {
	table := layoutOf(node.Product)
	fmt.Fprintln(out, table.top)
	fmt.Fprintf(out, table.banner, node.Version, node.Version)
	fmt.Fprintln(out, table.rule)
	fmt.Fprintln(out, table.header)
	for i, device := range devices {
		printInfoRows(out, node, table, device)
		if node.Hang && 2*i >= len(devices) {
			hang()
		}
		if i+1 < len(devices) && devices[i+1].NPU == device.NPU {
			fmt.Fprintln(out, table.between)
		} else {
			fmt.Fprintln(out, table.after)
		}
	}
	printProcesses(out, node, table, devices)
}

func printInfoRows(out io.Writer, node *Node, table layout, device Device) {
	power := table.noPower
	if device.Power != nil {
		power = strconv.FormatFloat(*device.Power, 'f', 1, 64)
	}
	switch node.Product {
	case product310P:
		memory := fmt.Sprintf("%-5d/ %d", device.DDRTotal*device.DDRRate/100, device.DDRTotal)
		fmt.Fprintf(out, "| %-7d %-21s | %-15s | %-12s %-17d %-21s |\n", device.NPU, node.Name, device.Health, power, device.Temperature, "0     / 0")
		fmt.Fprintf(out, "| %-7d %-21d | %-15s | %-12d %-39s |\n", device.Chip, device.Physical, device.Bus, device.AICore, memory)
	case product950:
		hbm := fmt.Sprintf("%-6d/ %d", device.HBMUsed, device.HBMTotal)
		fmt.Fprintf(out, "| %-6d | %-16s | %-13s | %-21s %-24d %-21s |\n", device.NPU, node.Name, device.Health, power, device.Temperature, "0     / 0")
		fmt.Fprintf(out, "|        |                  | %-13s | %-21d %-24s %-21s |\n", device.Bus, device.AICore, "0     / 0", hbm)
	default:
		chip := strconv.Itoa(device.Chip)
		if node.Product == productA3 {
			chip = fmt.Sprintf("%-5d %d", device.Chip, device.Physical)
		}
		hbm := fmt.Sprintf("%-5d/ %d", device.HBMUsed, device.HBMTotal)
		fmt.Fprintf(out, "| %-5d %-19s | %-13s | %-11s %-17d %-21s|\n", device.NPU, node.Name, device.Health, power, device.Temperature, "0    / 0")
		fmt.Fprintf(out, "| %-25s | %-13s | %-11d %-17s %-21s|\n", chip, device.Bus, device.AICore, "0    / 0", hbm)
	}
}

func printProcesses(out io.Writer, node *Node, table layout, devices []Device) {
	above := table.rule
	if node.Product == product950 {
		above = rule950 // the second table doesn't split its first column
	}
	fmt.Fprintln(out, above)
	fmt.Fprintln(out, table.processes)
	fmt.Fprintln(out, table.after)
	for start := 0; start < len(devices); {
		end := start
		rows := 0
		for ; end < len(devices) && devices[end].NPU == devices[start].NPU; end++ {
			for _, process := range devices[end].Processes {
				rows++
				values := []any{devices[end].NPU, devices[end].Chip, process.PID, process.Name, process.Memory}
				if node.Product == product950 {
					values = slices.Delete(values, 1, 2)
				}
				fmt.Fprintf(out, table.process, values...)
			}
		}
		if rows == 0 {
			fmt.Fprintf(out, "| %-*s|\n", len(table.top)-3, fmt.Sprintf("No running processes found in NPU %d", devices[start].NPU))
		}
		fmt.Fprintln(out, table.after)
		start = end
	}
}
