package dev

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEndWithParent(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var parent atomic.Int64
	parent.Store(7)
	done := make(chan struct{})
	go func() {
		defer close(done)
		endWithParent(ctx, cancel, 7, func() int { return int(parent.Load()) })
	}()
	require.NoError(t, ctx.Err(), "the parent lives")
	parent.Store(1)
	select {
	case <-ctx.Done():
	case <-time.After(2 * time.Minute):
		t.Fatal("the parent is gone and nothing ends")
	}
	<-done
}
