package dev_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// process is one process for good: a number alone may be another's later.
type process struct {
	pid     int
	started string
	name    string
}

// statOf reads /proc/PID/stat; ok is false when there is no such process, or only its exit code is left of it.
func statOf(pid int) (p process, parent int, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, 0, false
	}
	// The name stands in parentheses and may hold anything.
	open, end := strings.IndexByte(string(text), '('), strings.LastIndexByte(string(text), ')')
	fields := strings.Fields(string(text[end+1:]))
	parent, err = strconv.Atoi(fields[1])
	return process{pid, fields[19], string(text[open+1 : end])}, parent, err == nil && fields[0] != "Z"
}

// descendants lists the processes below pid.
func descendants(t *testing.T, pid int) []process {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	children := map[int][]process{}
	for _, entry := range entries {
		id, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if p, parent, ok := statOf(id); ok {
			children[parent] = append(children[parent], p)
		}
	}
	var below []process
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		for _, p := range children[queue[0]] {
			below = append(below, p)
			queue = append(queue, p.pid)
		}
	}
	return below
}

// requireNoneLeft waits until the processes are gone: the kernel ends those of a killed parent a moment later.
func requireNoneLeft(t *testing.T, processes []process) {
	t.Helper()
	eventually(t, func() error {
		for _, p := range processes {
			if now, _, alive := statOf(p.pid); alive && now.started == p.started {
				return fmt.Errorf("%s (%d) is left behind", p.name, p.pid)
			}
		}
		return nil
	})
}
