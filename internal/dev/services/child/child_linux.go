package child

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

// capDACOverride is CAP_DAC_OVERRIDE of linux/capability.h.
const capDACOverride = 1

func attributes(cfg Config) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: cfg.DeathSignal}
	if cfg.RunAs != nil {
		attr.Credential = &syscall.Credential{Uid: cfg.RunAs.UID, Gid: cfg.RunAs.GID}
		if cfg.ReachAll {
			attr.AmbientCaps = []uintptr{capDACOverride}
		}
	}
	return attr
}

// CanReachAll tells whether this process may grant Config.ReachAll.
func CanReachAll() bool {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	has := func(set string) bool {
		_, rest, found := bytes.Cut(status, []byte("\n"+set+":\t"))
		if !found {
			return false
		}
		hex, _, _ := bytes.Cut(rest, []byte("\n"))
		bits, err := strconv.ParseUint(string(hex), 16, 64)
		return err == nil && bits&(1<<capDACOverride) != 0
	}
	return has("CapPrm") && has("CapBnd")
}

// descendants lists the children of pid, and theirs, parents first.
func descendants(pid int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, e := range entries {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		fields, err := statFields(id)
		if err != nil {
			continue // It has ended since the folder was read.
		}
		if parent, err := strconv.Atoi(string(fields[1])); err == nil {
			children[parent] = append(children[parent], id)
		}
	}
	all := children[pid]
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// statFields returns the fields of /proc/PID/stat from the third (state) on. The second is the program's name, which may hold
// blanks and brackets.
func statFields(pid int) ([][]byte, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 22 {
		return nil, fmt.Errorf("short /proc/%d/stat", pid)
	}
	return fields, nil
}

// ticksPerSecond is USER_HZ, which is 100 on every architecture that Go runs on.
const ticksPerSecond = 100

// CPU is the processor time that the child has used so far, user and system, to 10 ms; not that of its own children. It still
// answers after the child has ended.
func (p *Process) CPU() (time.Duration, error) {
	if p.ended() && p.cmd.ProcessState != nil {
		return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime(), nil
	}
	fields, err := statFields(p.PID())
	if err != nil {
		return 0, fmt.Errorf("processor time of %s: %w", p.name, err)
	}
	user, err := strconv.ParseInt(string(fields[11]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("processor time of %s: %w", p.name, err)
	}
	system, err := strconv.ParseInt(string(fields[12]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("processor time of %s: %w", p.name, err)
	}
	return time.Duration(user+system) * time.Second / ticksPerSecond, nil
}

// RSS is the child's resident memory in bytes. It is an error to ask after the child has ended.
func (p *Process) RSS() (int64, error) {
	fields, err := statFields(p.PID())
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", p.name, err)
	}
	pages, err := strconv.ParseInt(string(fields[21]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", p.name, err)
	}
	return pages * int64(os.Getpagesize()), nil
}
