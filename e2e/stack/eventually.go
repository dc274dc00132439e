package stack

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Patience is how long a test waits for what must happen: far longer than it takes on a machine where each process may stand still
// for some seconds.
const Patience = 3 * time.Minute

// Eventually polls until check has no error, and fails with its last one.
func Eventually(t testing.TB, check func() error) {
	t.Helper()
	deadline := time.NewTimer(Patience)
	defer deadline.Stop()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			require.NoError(t, err)
		case <-ticker.C:
		}
	}
}

// AwayFromMidnight waits, where a day of the zone is about to end, for the next one: a test of budgets that end with the day is over
// before they do.
func AwayFromMidnight(t testing.TB, zone *time.Location) {
	t.Helper()
	for {
		now := time.Now().In(zone)
		left := time.Until(time.Date(now.Year(), now.Month(), now.Day()+1, 0, 0, 0, 0, zone))
		if left > Patience {
			return
		}
		t.Logf("it is midnight in %s", left)
		time.Sleep(left + time.Millisecond)
	}
}

// Logs gathers what is logged. It is safe for concurrent use.
type Logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write takes a line.
func (l *Logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String is everything so far.
func (l *Logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
