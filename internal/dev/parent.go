package dev

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// parentCheck is how often a parent that may die silently is looked for.
const parentCheck = 250 * time.Millisecond

// withGoRun gives a context that also ends when the `go run` that started this process does: it passes an interrupt on to its
// program, but dies of SIGTERM alone and would leave the whole system running.
func withGoRun(ctx context.Context, parent func() int) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	started := parent()
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", started))
	if err != nil || strings.TrimSpace(string(name)) != "go" {
		return ctx, cancel // another parent, or a system that does not tell: its signals reach us, or nobody minds
	}
	go endWithParent(ctx, cancel, started, parent)
	return ctx, cancel
}

// endWithParent cancels when the parent is no longer the one that started us.
func endWithParent(ctx context.Context, cancel context.CancelFunc, started int, parent func() int) {
	ticker := time.NewTicker(parentCheck)
	defer ticker.Stop()
	for parent() == started {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
	cancel()
}
