package stack

import (
	"golang.org/x/sys/unix"
)

// LimitFiles has every write of the process beyond so many bytes of a file fail, as a full disk does, until NoFileLimit lifts it.
func (p *Process) LimitFiles(bytes uint64) {
	p.t.Helper()
	var limit unix.Rlimit
	err := unix.Prlimit(p.PID(), unix.RLIMIT_FSIZE, nil, &limit)
	if err == nil {
		limit.Cur = min(bytes, limit.Max)
		err = unix.Prlimit(p.PID(), unix.RLIMIT_FSIZE, &limit, nil)
	}
	select {
	case <-p.Done():
	default:
		if err != nil {
			p.t.Errorf("%s: limit the size of files: %v", p.Name, err)
		}
	}
}

// NoFileLimit ends LimitFiles.
func (p *Process) NoFileLimit() { p.LimitFiles(unix.RLIM_INFINITY) }
