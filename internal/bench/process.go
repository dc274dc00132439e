package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The parts that are measured, in the order of the report.
const (
	partGateway  = "gateway"
	partSettler  = "settler"
	partRedis    = "redis"
	partNATS     = "nats"
	partPostgres = "postgres"
	partProxy    = "proxy"
	partSim      = "sim"
	partLoad     = "load"
)

// snapshot is what every part and the machine had used at one moment.
type snapshot struct {
	at    time.Time
	parts map[string]time.Duration
	busy  time.Duration // all processors, interrupts not counted
	steal time.Duration // taken by the host
}

// ticksPerSecond is USER_HZ, which is 100 on every architecture that Go runs on.
const ticksPerSecond = 100

func ticks(n int64) time.Duration { return time.Duration(n) * time.Second / ticksPerSecond }

// take reads the processor time of every part, each with its own children.
func take(parts map[string]int) (snapshot, error) {
	s := snapshot{at: time.Now(), parts: map[string]time.Duration{}}
	tree, err := readTree()
	if err != nil {
		return s, err
	}
	for name, pid := range parts {
		own, known := tree[pid]
		if !known {
			return s, fmt.Errorf("%s (process %d) has ended", name, pid)
		}
		s.parts[name] = own.cpu + own.reaped
		if name == partLoad {
			s.parts[name] = own.cpu // its children are the other parts
			continue
		}
		for _, child := range tree.below(pid) {
			s.parts[name] += tree[child].cpu + tree[child].reaped
		}
	}
	s.busy, s.steal, err = machine()
	return s, err
}

// process is a line of /proc/PID/stat.
type process struct {
	parent      int
	cpu, reaped time.Duration // its own, and that of its children that have ended
}

type processes map[int]process

func readTree() (processes, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("processor times are read from /proc, which only Linux has: %w", err)
	}
	tree := processes{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has ended since the folder was read
		}
		// The second field is the program's name, which may hold blanks and brackets.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 22 {
			return nil, fmt.Errorf("short /proc/%d/stat", pid)
		}
		var n [5]int64 // parent, then user and system time of itself and of ended children
		for i, at := range [5]int{1, 11, 12, 13, 14} {
			if n[i], err = strconv.ParseInt(fields[at], 10, 64); err != nil {
				return nil, fmt.Errorf("/proc/%d/stat: %w", pid, err)
			}
		}
		tree[pid] = process{parent: int(n[0]), cpu: ticks(n[1] + n[2]), reaped: ticks(n[3] + n[4])}
	}
	return tree, nil
}

// below lists the children of a process and theirs.
func (t processes) below(pid int) []int {
	var found []int
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		for child, p := range t {
			if p.parent == queue[0] {
				found, queue = append(found, child), append(queue, child)
			}
		}
	}
	return found
}

// machine reads the first line of /proc/stat: how long processors worked, and how long the host kept them.
func machine() (busy, steal time.Duration, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var user, nice, system, idle, wait, irq, soft, stolen int64
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &wait, &irq, &soft, &stolen); err != nil {
		return 0, 0, fmt.Errorf("/proc/stat: %w", err)
	}
	return ticks(user + nice + system), ticks(stolen), nil
}

// used is what was used since an earlier snapshot.
func (s snapshot) used(since snapshot) map[string]time.Duration {
	used := map[string]time.Duration{}
	for name, cpu := range s.parts {
		used[name] = cpu - since.parts[name]
	}
	return used
}

// foreign is how many processors programs other than the parts used since an earlier snapshot.
func (s snapshot) foreign(since snapshot) float64 {
	others := s.busy - since.busy
	for _, cpu := range s.used(since) {
		others -= cpu
	}
	return max(0, others.Seconds()/s.at.Sub(since.at).Seconds())
}

// stolen is the share of one processor that the host took since an earlier snapshot.
func (s snapshot) stolen(since snapshot) float64 {
	return (s.steal - since.steal).Seconds() / s.at.Sub(since.at).Seconds()
}

// Memory is a part's resident memory in bytes. Postgres counts what its processes share once, and has no peak.
type Memory struct {
	Now  int64 `json:"now"`
	Peak int64 `json:"peak,omitempty"` // since the process began
}

func memory(parts map[string]int) (map[string]Memory, error) {
	tree, err := readTree()
	if err != nil {
		return nil, err
	}
	all := map[string]Memory{}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		own, err := status(parts[name])
		if err != nil {
			return nil, fmt.Errorf("memory of %s: %w", name, err)
		}
		m := Memory{Now: own["VmRSS"], Peak: own["VmHWM"]}
		if below := tree.below(parts[name]); name != partLoad && len(below) > 0 {
			m.Peak = 0
			shared := own["RssShmem"]
			for _, child := range below {
				if s, err := status(child); err == nil { // else it has just ended
					m.Now += s["RssAnon"]
					shared = max(shared, s["RssShmem"])
				}
			}
			m.Now += shared - own["RssShmem"]
		}
		all[name] = m
	}
	return all, nil
}

// status reads the sizes of /proc/PID/status, in bytes.
func status(pid int) (map[string]int64, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	sizes := map[string]int64{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if text, ok := strings.CutSuffix(strings.TrimSpace(value), " kB"); ok {
			kilobytes, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return nil, err
			}
			sizes[name] = kilobytes << 10
		}
	}
	return sizes, lines.Err()
}
