package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"
)

// Reset says how `npu-smi set -t reset` goes on this node, and keeps what was reset.
type Reset struct {
	Mode    string  `json:"mode"`    // one of the names below; empty is ok
	Seconds float64 `json:"seconds"` // between "resetting ..." and the end
	HCCS    bool    `json:"hccs"`    // A2: cards are joined, so one reset takes all
	Done    [][]int `json:"done"`    // physical ids of each reset that was carried out
}

const (
	modeOK          = "ok"
	modeStaysSick   = "stays_sick"   // says OK, and the cards are as they were
	modeFail        = "fail"         // Status: Fail after the time
	modeFailZero    = "fail_exit_0"  // the same, with exit code 0
	modeInUse       = "in_use"       // Status: Fail and exit code 203, as HAMi's plugin met it
	modeAnotherUser = "another_user" // someone else resets
	modeHang        = "hang"         // never ends, and ignores SIGTERM
	modeNeedsHost   = "needs_host"   // can't be done from a container
	modeVirtual     = "virtual"      // cards are cut into vNPUs
	modeNotRoot     = "not_root"
	exitRefused     = 1
	exitInUse       = 203
)

// Texts are those of npu_chip_set.c and npu_set_print.c.
const (
	askRisk = "Resetting the standard PCIe card or NPU chip may cause a system hang or abnormal reset during service running.\n" +
		"Are you sure you want to continue resetting?(Y/N)\n"
	askAll  = "It will reboot all devices, do you want to continue reboot? [y/n]\n"
	askHCCS = "It's AMP mode, but hccs is on, it will reboot all devices, do you want to continue reboot? [y/n]\n"
	askSMP  = "It's SMP mode, it will reboot all devices in this SMP system, do you want to continue reboot? [y/n]\n"
)

var refusals = map[string]string{
	modeNotRoot:   "This command can be executed only by the root user.\n",
	modeVirtual:   "In the vNPU scenario, this device does not support setting reset.\n",
	modeNeedsHost: "This command cannot be executed on a common container.\n",
}

// resetPlan is what one call would reset on that product.
type resetPlan struct {
	question string // the second one; empty asks nothing
	unit     string // of the closing sentence: server, chip or card
	notice   string // how long it says it takes
	physical []int
}

// setCommand is `npu-smi set ...`: of all types only reset is there.
func setCommand(node *Node, args []string, in io.Reader, out io.Writer) int {
	options := map[string]string{}
	for i := 0; i+1 < len(args); i += 2 {
		options[args[i]] = args[i+1]
	}
	if options["-t"] != "reset" {
		fmt.Fprintln(out, "This device does not support setting "+options["-t"]+".")
		return exitRefused
	}
	if text, refused := refusals[node.Reset.Mode]; refused {
		fmt.Fprint(out, text)
		return exitRefused
	}
	plan, complaint := planReset(node, options)
	if complaint != "" {
		fmt.Fprint(out, complaint)
		return exitRefused
	}
	words := bufio.NewScanner(in)
	words.Split(bufio.ScanWords)
	for _, question := range []string{askRisk, plan.question} {
		if question == "" {
			continue
		}
		fmt.Fprint(out, question)
		if !words.Scan() || (words.Text() != "Y" && words.Text() != "y") {
			return closing(out, "Fail", "User aborts reset "+plan.unit+" by inband.", exitRefused)
		}
	}
	return carryOut(node, plan, out)
}

func planReset(node *Node, options map[string]string) (resetPlan, string) {
	chip, one := options["-c"]
	switch {
	case node.Product == product950 && one:
		return resetPlan{}, "Error parameter of -c\n"
	case node.Product != product950 && !one:
		return resetPlan{}, "Must input parameter of chip id.\n"
	case node.Product == product310P && chip != "0":
		return resetPlan{}, "SMP mode only support reset chip 0.\n"
	}
	var all, card, exact []int
	for _, device := range node.Devices {
		all = append(all, device.Physical)
		if strconv.Itoa(device.NPU) != options["-i"] {
			continue
		}
		card = append(card, device.Physical)
		if strconv.Itoa(device.Chip) == chip {
			exact = append(exact, device.Physical)
		}
	}
	switch {
	case len(card) == 0:
		return resetPlan{}, "Invalid card id.\nError parameter of -i\n"
	case one && len(exact) == 0:
		return resetPlan{}, "Invalid chip id.\nError parameter of -c\n"
	}
	switch node.Product {
	case productA3:
		return resetPlan{askAll, "server", "resetting (about 360 seconds) ...", all}, ""
	case product310P:
		return resetPlan{askSMP, "chip", "resetting ...", card}, ""
	case product950:
		return resetPlan{"", "card", "resetting ...", card}, ""
	}
	if node.Reset.HCCS {
		return resetPlan{askHCCS, "server", "resetting (about 150 seconds) ...", all}, ""
	}
	return resetPlan{"", "server", "resetting (about 150 seconds) ...", exact}, ""
}

func carryOut(node *Node, plan resetPlan, out io.Writer) int {
	switch node.Reset.Mode {
	case modeAnotherUser:
		fmt.Fprintln(out, "Another user is resetting the NPU(s). Please try again later.")
		return closing(out, "Fail", "Failed to reset "+plan.unit, exitRefused)
	case modeInUse:
		return closing(out, "Fail", "the chip is in use (invented wording)", exitInUse)
	}
	field(out, "Message", plan.notice)
	if node.Reset.Mode == modeHang {
		hang()
	}
	time.Sleep(time.Duration(node.Reset.Seconds * float64(time.Second)))
	switch node.Reset.Mode {
	case modeFail:
		return closing(out, "Fail", "Failed to reset "+plan.unit, exitRefused)
	case modeFailZero:
		return closing(out, "Fail", "Failed to reset "+plan.unit, 0)
	}
	if err := writeReset(plan.physical); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return closing(out, "Fail", "Failed to reset "+plan.unit, exitRefused)
	}
	return closing(out, "OK", "Reset "+plan.unit+" successfully.", 0)
}

func closing(out io.Writer, status, message string, code int) int {
	field(out, "Status", status)
	field(out, "Message", message)
	return code
}

// writeReset puts the outcome into the node's file, on top of what it says by now: a test may have changed it meanwhile.
func writeReset(physical []int) error {
	path := statePath()
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	node := &Node{}
	whole := map[string]json.RawMessage{}
	if err := json.Unmarshal(data, node); err != nil {
		return err
	}
	if err := json.Unmarshal(data, &whole); err != nil {
		return err
	}
	node.Reset.Done = append(node.Reset.Done, physical)
	if node.Reset.Mode != modeStaysSick {
		for i := range node.Devices {
			if slices.Contains(physical, node.Devices[i].Physical) {
				node.Devices[i].heal()
			}
		}
	}
	for key, value := range map[string]any{"devices": node.Devices, "reset": node.Reset} {
		if whole[key], err = json.Marshal(value); err != nil {
			return err
		}
	}
	text, err := json.MarshalIndent(whole, "", " ")
	if err != nil {
		return err
	}
	// The name differs from the draft of devices.py, which may be writing now.
	draft := path + ".reset"
	if err := os.WriteFile(draft, text, 0o644); err != nil {
		return err
	}
	return os.Rename(draft, path)
}

// heal is what a reset does to a chip: faults are gone, whoever ran on it ended, and its memory is that of an idle one.
func (d *Device) heal() {
	d.Health = "OK"
	d.Codes, d.Information = []string{}, []string{}
	d.Processes = []Process{}
	d.AICore = 0
	d.Hang = false
	if d.HBMUsed > idleHBM {
		d.HBMUsed = idleHBM
	}
}
