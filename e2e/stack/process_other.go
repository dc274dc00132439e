//go:build !linux

package stack

// LimitFiles needs Linux.
func (p *Process) LimitFiles(uint64) {
	p.t.Fatal("the size of another process's files can be limited on Linux only")
}

// NoFileLimit needs Linux.
func (p *Process) NoFileLimit() { p.LimitFiles(0) }
