//go:build !linux

package child

import (
	"errors"
	"syscall"
	"time"
)

func attributes(cfg Config) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if cfg.RunAs != nil {
		attr.Credential = &syscall.Credential{Uid: cfg.RunAs.UID, Gid: cfg.RunAs.GID}
	}
	return attr
}

// CanReachAll tells whether this process may grant Config.ReachAll, which only Linux knows.
func CanReachAll() bool { return false }

func descendants(int) []int { return nil }

// CPU is measured on Linux only; elsewhere it returns errors.ErrUnsupported.
func (p *Process) CPU() (time.Duration, error) { return 0, errors.ErrUnsupported }

// RSS is measured on Linux only; elsewhere it returns errors.ErrUnsupported.
func (p *Process) RSS() (int64, error) { return 0, errors.ErrUnsupported }
