package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Products whose layouts differ.
const (
	productA3   = "A3"
	product310P = "310P"
	product950  = "950"
)

const idleHBM = 3314 // MB; an idle card has never 0

// DefaultState is where a node keeps the file that tests change from the host.
const DefaultState = "/var/lib/glm5-fake-ascend/node.json"

// Node is the whole state: one file per node, written by tests/cluster/devices.py.
type Node struct {
	Product  string   `json:"product"`  // A2, A3, 310P or 950: decides npu-smi's layout
	Resource string   `json:"resource"` // extended resource that the plugin registers
	Version  string   `json:"version"`  // of driver and npu-smi
	Name     string   `json:"name"`     // in npu-smi's table, for example 910B3
	ChipName string   `json:"chip_name"`
	Devices  []Device `json:"devices"`
	Reset    Reset    `json:"reset"`
	Hang     bool     `json:"hang"`    // npu-smi prints half a table and stays
	Failure  Failure  `json:"failure"` // npu-smi gives no other answer than this
}

// Failure is what npu-smi prints instead of an answer; an empty text is none unless the code isn't 0.
type Failure struct {
	Text string `json:"text"`
	Exit int    `json:"exit"`
}

// Device is one chip (on A3: one die) that a pod can be given.
type Device struct {
	NPU         int       `json:"npu"`
	Chip        int       `json:"chip"`
	Physical    int       `json:"physical"`
	Bus         string    `json:"bus"`
	Health      string    `json:"health"` // OK, Warning, Alarm, Critical, UNKNOWN
	Codes       []string  `json:"codes"`
	Information []string  `json:"information"`
	Power       *float64  `json:"power"` // the second die of a module has none
	Temperature int       `json:"temperature"`
	AICore      int       `json:"aicore"`
	DDRTotal    int       `json:"ddr_total"`
	DDRRate     int       `json:"ddr_rate"`
	HBMUsed     int       `json:"hbm_used"`
	HBMTotal    int       `json:"hbm_total"`
	HBMClock    int       `json:"hbm_clock"`
	HBMTemp     int       `json:"hbm_temperature"`
	Processes   []Process `json:"processes"`
	ECCSingle   int       `json:"ecc_single"` // HBM, since the driver started
	ECCDouble   int       `json:"ecc_double"`
	Hang        bool      `json:"hang"` // a question about this one is never answered
	Link        string    `json:"link"` // of its RoCE port: UP or DOWN
	NetHealth   string    `json:"net_health"`
	Address     string    `json:"address"`
	TLS         bool      `json:"tls"`
}

// Process is one row of npu-smi's process table.
type Process struct {
	PID    int    `json:"pid"`
	Name   string `json:"name"`
	Memory int    `json:"memory"`
}

// Schedulable says whether the plugin offers the device: a warning alone takes no card away.
func (d Device) Schedulable() bool {
	return d.Health == "OK" || d.Health == "Warning"
}

// chips is how many an NPU of that product has; the board controller comes after them.
func (n *Node) chips() int {
	if n.Product == productA3 || n.Product == product310P {
		return 2
	}
	return 1
}

func statePath() string {
	if path := os.Getenv("GLM5_FAKE_ASCEND"); path != "" {
		return path
	}
	return DefaultState
}

func loadNode(path string) (*Node, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	node := &Node{}
	if err := json.Unmarshal(data, node); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return node, nil
}

// visibleTo keeps the devices that ASCEND_VISIBLE_DEVICES names; unset (a host) means all. Ids are physical ones and
// stay so; only logic ids are counted anew from 0, by position.
func visibleTo(node *Node, value string, set bool) ([]Device, error) {
	if !set {
		return node.Devices, nil
	}
	var ids []int
	for _, word := range strings.Split(value, ",") {
		word = strings.TrimPrefix(word, "Ascend910-")
		if word == "" || word == "void" {
			continue
		}
		first, last, isRange := strings.Cut(word, "-")
		low, err := strconv.Atoi(first)
		high := low
		if err == nil && isRange {
			high, err = strconv.Atoi(last)
		}
		if err != nil {
			return nil, fmt.Errorf("ASCEND_VISIBLE_DEVICES=%s: %w", value, err)
		}
		for id := low; id <= high; id++ {
			ids = append(ids, id)
		}
	}
	var devices []Device
	for _, device := range node.Devices {
		if slices.Contains(ids, device.Physical) {
			devices = append(devices, device)
		}
	}
	return devices, nil
}
