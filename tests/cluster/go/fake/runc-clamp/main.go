// runc-clamp is an OCI runtime for machines whose root lacks a capability: it strikes from what the caller asks for
// everything that is not in its own bounding set, then becomes runc. A privileged container of Docker 20.10 asks for
// every capability that the kernel knows, and runc refuses it where one was taken away. It grants nothing.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// In the kernel's order: the index is the capability's number.
var capabilities = strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP
	LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT
	SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE
	AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF
	CHECKPOINT_RESTORE`)

func main() {
	allowed := boundingSet()
	for i := 1; i+1 < len(os.Args); i++ {
		switch os.Args[i] {
		case "--bundle", "-b": // create, run: the container's specification
			clampFile(filepath.Join(os.Args[i+1], "config.json"), allowed, "process")
		case "--process", "-p": // exec: the process alone
			clampFile(os.Args[i+1], allowed, "")
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		fail(err)
	}
	os.Args[0] = runc
	fail(syscall.Exec(runc, os.Args, os.Environ()))
}

func boundingSet() map[string]bool {
	const prctlCapBoundingSetRead = 23
	allowed := map[string]bool{}
	for number, name := range capabilities {
		set, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prctlCapBoundingSetRead, uintptr(number), 0)
		allowed["CAP_"+name] = errno == 0 && set == 1
	}
	return allowed
}

func clampFile(path string, allowed map[string]bool, key string) {
	data, err := os.ReadFile(path)
	if err != nil {
		return // runc will say what is wrong with it
	}
	var document map[string]any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // limits are 64-bit numbers; a float would round them
	if decoder.Decode(&document) != nil {
		return
	}
	process := document
	if key != "" {
		process, _ = document[key].(map[string]any)
	}
	sets, _ := process["capabilities"].(map[string]any)
	for name, value := range sets {
		asked, _ := value.([]any)
		kept := []any{}
		for _, capability := range asked {
			if text, _ := capability.(string); allowed[text] {
				kept = append(kept, capability)
			}
		}
		sets[name] = kept
	}
	if data, err = json.Marshal(document); err == nil {
		err = os.WriteFile(path, data, 0o644)
	}
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "runc-clamp:", err)
	os.Exit(1)
}
