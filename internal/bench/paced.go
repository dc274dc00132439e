package bench

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// stream is requests of one kind at a fixed rate, whatever becomes of those before them.
type stream struct {
	address     string
	text        []byte // of one request
	connections int    // that take what is due in turn; as many requests can be under way
	perSecond   float64
}

// shot is what became of one request of a stream.
type shot struct {
	due    time.Duration // since the stream's start
	took   time.Duration // from when it was due, so a late start counts
	status int           // 0 when there was no whole answer
	err    error         // of anything but an answer that admits or says wait
}

// run sends the stream for the time and waits for its answers, or until ctx ends.
func (s stream) run(ctx context.Context, length time.Duration) []shot {
	start := time.Now()
	due := make(chan time.Duration, int(s.perSecond*length.Seconds())+1)
	for i := 0; ; i++ {
		at := time.Duration(float64(i) / s.perSecond * float64(time.Second))
		if at >= length {
			break
		}
		due <- at
	}
	close(due)
	results := make([][]shot, s.connections)
	var group sync.WaitGroup
	for i := range results {
		group.Go(func() {
			c := newClient(s.address)
			defer c.close()
			for at := range due {
				if !sleepUntil(ctx, start.Add(at)) {
					return
				}
				results[i] = append(results[i], c.shoot(s.text, start, at))
			}
		})
	}
	group.Wait()
	var all []shot
	for _, r := range results {
		all = append(all, r...)
	}
	return all
}

func (c *client) shoot(text []byte, start time.Time, due time.Duration) shot {
	_, err := c.do(text)
	r := shot{due: due, took: time.Since(start) - due, status: http.StatusOK, err: err}
	var answered *statusError
	switch {
	case err == nil:
	case errors.As(err, &answered):
		r.status = answered.status
		if answered.status == http.StatusTooManyRequests {
			r.err = nil
		}
	default:
		r.status = 0
		c.close()
	}
	return r
}

// sleepUntil reports false when ctx ended first.
func sleepUntil(ctx context.Context, at time.Time) bool {
	d := time.Until(at)
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// count is how many of the shots have a status, and the first error among all.
func count(shots []shot, status int) (n int, err error) {
	for _, s := range shots {
		if s.status == status {
			n++
		}
		if err == nil {
			err = s.err
		}
	}
	return n, err
}

// took is how long the shots took.
func took(shots []shot) []time.Duration {
	all := make([]time.Duration, len(shots))
	for i, s := range shots {
		all[i] = s.took
	}
	return all
}
