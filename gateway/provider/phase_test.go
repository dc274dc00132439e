package provider

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A wait of nothing, or until what has passed, is told: it is at once.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	date := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for _, c := range []struct {
		ms, text string
		wait     time.Duration
		told     bool
	}{
		{"", "", 0, false},
		{"", "soon", 0, false},
		{"", "NaN", 0, false},
		{"NaN", "2", 2 * time.Second, true},
		{"", "0", 0, true},
		{"", "-3", 0, true},
		{"0", "5", 0, true},
		{"-1", "", 0, true},
		{"150", "1", 150 * time.Millisecond, true},
		{"", "1.5", 1500 * time.Millisecond, true},
		{"", date(-time.Hour), 0, true},
		{"", date(30 * time.Second), 30 * time.Second, true},
	} {
		header := http.Header{}
		header.Set("Retry-After-Ms", c.ms)
		header.Set("Retry-After", c.text)
		wait, told := RetryAfter(header, now)
		require.Equal(t, c.told, told, "%+v", c)
		require.Equal(t, c.wait, wait, "%+v", c)
	}
}
