package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// types are the questions of `npu-smi info -t`; `one` says that a chip was named (-c).
var types = map[string]func(out io.Writer, node *Node, devices []Device, one bool){
	"health": func(out io.Writer, node *Node, devices []Device, one bool) {
		if node.Product == product950 {
			field(out, "NPU ID", devices[0].NPU)
			printHealth(out, "Health", devices[0])
			return
		}
		perChip(out, node, devices, one, func(out io.Writer, device Device) { printHealth(out, "Health Status", device) })
	},
	"usages": func(out io.Writer, node *Node, devices []Device, one bool) {
		perChip(out, node, devices, one, printUsages)
	},
	"power": func(out io.Writer, node *Node, devices []Device, one bool) {
		perChip(out, node, devices, one, printPower)
	},
	"temp": printTemperatures,
	"memory": func(out io.Writer, _ *Node, devices []Device, _ bool) {
		field(out, "NPU ID", devices[0].NPU)
		for _, device := range devices {
			printMemory(out, device)
		}
	},
	"common": printCommon,
	"ecc":    printECC,
	"proc-mem": func(out io.Writer, node *Node, devices []Device, one bool) {
		perChip(out, node, devices, one, printProcessMemory)
	},
	"err-count": func(out io.Writer, node *Node, devices []Device, one bool) {
		perChip(out, node, devices, one, printErrorCounts)
	},
	"board": printBoard,
}

// perChip prints the block of each chip; for a whole NPU with its heading, and the chip's number last in each block.
func perChip(out io.Writer, node *Node, devices []Device, one bool, print func(io.Writer, Device)) {
	if one {
		print(out, devices[0])
		return
	}
	field(out, "NPU ID", devices[0].NPU)
	if node.Product == product950 {
		print(out, devices[0])
		return
	}
	field(out, "Chip Count", len(devices))
	for _, device := range devices {
		fmt.Fprintln(out)
		print(out, device)
		field(out, "Chip ID", device.Chip)
	}
}

func printHealth(out io.Writer, key string, device Device) {
	field(out, key, device.Health)
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
	field(out, "DDR Capacity(MB)", device.DDRTotal)
	field(out, "DDR Usage Rate(%)", device.DDRRate)
	field(out, "DDR Hugepages Total(page)", 0)
	field(out, "DDR Hugepages Usage Rate(%)", 0)
	field(out, "HBM Capacity(MB)", device.HBMTotal)
	field(out, "HBM Usage Rate(%)", device.hbmRate())
	field(out, "Aicore Usage Rate(%)", device.AICore)
	field(out, "Aicpu Usage Rate(%)", 0)
	field(out, "Ctrlcpu Usage Rate(%)", 0)
	field(out, "DDR Bandwidth Usage Rate(%)", 0)
	field(out, "HBM Bandwidth Usage Rate(%)", 0)
}

func (d Device) hbmRate() int {
	if d.HBMTotal == 0 {
		return 0
	}
	return d.HBMUsed * 100 / d.HBMTotal
}

func (d Device) power() string {
	if d.Power == nil {
		return "NA"
	}
	return strconv.FormatFloat(*d.Power, 'f', 1, 64)
}

func printPower(out io.Writer, device Device) {
	field(out, "NPU Real-time Power(W)", device.power())
}

// printTemperatures names the value as servers do, or as cards do, with the board's own sensors behind it.
func printTemperatures(out io.Writer, node *Node, devices []Device, one bool) {
	key := "NPU Temperature (C)"
	if node.Product == product310P {
		key = "Temperature (C)"
	}
	perChip(out, node, devices, one, func(out io.Writer, device Device) { field(out, key, device.Temperature) })
	if !one && node.Product != product950 {
		fmt.Fprintln(out)
		field(out, "LM75A_TE (C)", 36)
		field(out, "LM75B_TE (C)", 36)
		field(out, "Chip Name", "MCU")
	}
}

func printMemory(out io.Writer, device Device) {
	field(out, "DDR Capacity(MB)", device.DDRTotal)
	field(out, "DDR Clock Speed(MHz)", 0)
	field(out, "HBM Capacity(MB)", device.HBMTotal)
	field(out, "HBM Clock Speed(MHz)", device.HBMClock)
	field(out, "HBM Temperature(C)", device.HBMTemp)
	field(out, "HBM Manufacturer ID", "0x5A")
}

// printCommon puts the chip's number first, other than the other types; the board's temperature has the chip's key.
func printCommon(out io.Writer, node *Node, devices []Device, one bool) {
	field(out, "NPU ID", devices[0].NPU)
	if node.Product != product950 {
		field(out, "Chip Count", len(devices))
	}
	for _, device := range devices {
		if node.Product != product950 {
			fmt.Fprintln(out)
			field(out, "Chip ID", device.Chip)
		}
		field(out, "Memory Usage Rate(%)", device.DDRRate)
		field(out, "HBM Usage Rate(%)", device.hbmRate())
		field(out, "Aicore Usage Rate(%)", device.AICore)
		field(out, "Aicore Freq(MHZ)", 1800)
		field(out, "Aicore curFreq(MHZ)", 1800)
		field(out, "Aicore Count", 20)
		field(out, "Temperature(C)", device.Temperature)
		field(out, "NPU Real-time Power(W)", device.power())
	}
	if node.Product != product950 && !one {
		fmt.Fprintln(out)
		field(out, "Chip Name", "mcu")
		field(out, "Temperature(C)", 40)
	}
}

func printECC(out io.Writer, node *Node, devices []Device, one bool) {
	wideField := func(key string, value int) { fmt.Fprintf(out, "\t%-40s : %d\n", key, value) }
	counts := func(memory string, single, double int) {
		for i, key := range []string{"Error Count", "Aggregate Total Err Cnt", "Isolated Pages Count"} {
			if i == 2 {
				single, double = 0, 0
			}
			wideField(memory+" Single Bit "+key, single)
			wideField(memory+" Double Bit "+key, double)
		}
	}
	if !one {
		wideField("NPU ID", devices[0].NPU)
		if node.Product != product950 {
			wideField("Chip Count", len(devices))
		}
	}
	for _, device := range devices {
		if node.Product == product950 {
			counts("HBM", device.ECCSingle, device.ECCDouble)
			wideField("HBM Single Bit Next-Isolated Pages Count", 0)
			wideField("HBM Double Bit Next-Isolated Pages Count", 0)
			continue
		}
		if !one {
			fmt.Fprintln(out)
		}
		counts("DDR", 0, 0)
		counts("HBM", device.ECCSingle, device.ECCDouble)
		if !one {
			wideField("Chip ID", device.Chip)
		}
	}
}

func printProcessMemory(out io.Writer, device Device) {
	if len(device.Processes) == 0 {
		fmt.Fprintln(out, "\tNo process in device.")
	}
	for _, process := range device.Processes {
		fmt.Fprintf(out, "\tProcess id:%-7d Process name:%-17s Process memory(MB):%d\n", process.PID, process.Name, process.Memory)
	}
}

func printErrorCounts(out io.Writer, _ Device) {
	for _, key := range []string{"TX Error Count", "RX Error Count", "Lcrc Error Count", "Ecrc Error Count", "Retry Count"} {
		field(out, key, 0)
	}
}

func printBoard(out io.Writer, node *Node, devices []Device, one bool) {
	field(out, "NPU ID", devices[0].NPU)
	if one {
		field(out, "Chip ID", devices[0].Chip)
		field(out, "Chip Type", "Ascend")
		field(out, "Chip Name", node.Name)
		field(out, "Chip Version", "V1")
		field(out, "PCIe Bus Info", devices[0].Bus)
		field(out, "Firmware Version", firmware)
		return
	}
	field(out, "Software Version", node.Version)
	field(out, "Firmware Version", firmware)
	field(out, "Compatibility", "OK")
	field(out, "PCIe Bus Info", devices[0].Bus)
	field(out, "PCI Vendor ID", "0x19E5")
	field(out, "PCI Device ID", "0xD802")
	if node.Product != product950 {
		field(out, "Chip Count", len(devices))
	}
}

const firmware = "7.5.0.1.129"

// cores near the cards of an 8x910B3 server, two cards a NUMA node.
var affinity = []string{"144-167", "96-119", "0-23", "48-71"}

// printTopology joins A2's cards by HCCS while it is on, A3's dies by SIO within a module and HCCS_SW beyond, others by PCIe.
func printTopology(out io.Writer, node *Node, devices []Device) {
	label, width := "NPU", 8
	if node.Product == productA3 {
		label, width = "Phy-ID", 5
	}
	id := func(device Device) int {
		if node.chips() > 1 {
			return device.Physical
		}
		return device.NPU
	}
	link := func(a, b Device) string {
		switch {
		case a.Physical == b.Physical:
			return "X"
		case node.Product == productA3 && a.NPU == b.NPU:
			return "SIO"
		case node.Product == productA3:
			return "HCCS_SW"
		case node.Product == product950:
			return "UB"
		case node.Product != product310P && node.Reset.HCCS:
			return "HCCS"
		case a.Physical/2 == b.Physical/2:
			return "PHB"
		}
		return "SYS"
	}
	fmt.Fprint(out, "\t   ")
	for _, device := range devices {
		fmt.Fprintf(out, "%s%-*d", label, width, id(device))
	}
	near := node.Product != productA3 && node.Product != product950
	if near {
		fmt.Fprint(out, "CPU Affinity")
	}
	fmt.Fprintln(out)
	for i, device := range devices {
		row := fmt.Sprintf("%s%-*d", label, width, id(device))
		for _, other := range devices {
			row += fmt.Sprintf("%-11s", link(device, other))
		}
		if near {
			row += affinity[i/2%len(affinity)]
		}
		fmt.Fprintln(out, row)
	}
	fmt.Fprint(out, "\n"+legend)
}

const legend = `Legend:

  X    = Self
  SYS  = Path traversing PCIe and NUMA nodes. Nodes are connected through SMP, such as QPI, UPI.
  PHB  = Path traversing PCIe and the PCIe host bridge of a CPU.
  PIX  = Path traversing a single PCIe switch
  PXB  = Path traversing multipul PCIe switches
  HCCS = Connection traversing HCCS.
  NA   = Unknown relationship.
`
