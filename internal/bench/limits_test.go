package bench

import (
	"bytes"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMostWithin(t *testing.T) {
	t.Parallel()
	at := func(seconds ...float64) (instants []time.Time) {
		for _, s := range seconds {
			instants = append(instants, time.Unix(0, int64(s*1e9)))
		}
		return instants
	}
	require.Zero(t, mostWithin(nil, time.Second))
	require.Equal(t, 1, mostWithin(at(0, 1, 2), time.Second), "the end of a window is not in it")
	require.Equal(t, 2, mostWithin(at(5, 0, 4.5), time.Second), "in any order")
	require.Equal(t, 3, mostWithin(at(0, 0.4, 0.9, 1.1, 1.5, 2.2), time.Second))
}

// A stream sends what is due whether or not earlier answers are there, and counts the wait of who came late.
func TestStreamKeepsItsRate(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	address := startServer(t, func(w http.ResponseWriter, _ *http.Request) {
		switch asked.Add(1) % 4 {
		case 0:
			w.WriteHeader(http.StatusTooManyRequests)
		case 1:
			panic(http.ErrAbortHandler)
		case 2:
			w.WriteHeader(http.StatusInternalServerError)
		default:
			time.Sleep(50 * time.Millisecond)
		}
	})
	text := request(address, caller{key: "plain"}, false)
	shots := stream{address, text, 4, 100}.run(t.Context(), 400*time.Millisecond)
	require.Len(t, shots, 40)
	total := 0
	for _, status := range []int{http.StatusOK, http.StatusTooManyRequests, http.StatusInternalServerError, 0} {
		n, err := count(shots, status)
		require.Error(t, err, "broken answers are errors")
		require.Equal(t, 10, n, status)
		total += n
	}
	require.Equal(t, len(shots), total)
	for _, s := range shots {
		require.Less(t, s.due, 400*time.Millisecond)
		if s.status == http.StatusOK {
			require.GreaterOrEqual(t, s.took, 50*time.Millisecond)
			require.NoError(t, s.err)
		}
	}
	late := stream{address, text, 1, 1000}.run(t.Context(), 20*time.Millisecond)
	slowest := spread(took(late)).Max
	require.Greater(t, slowest, 200.0, "five of 50 ms each, one after the other: the last is late by four of them")
}

func TestReportsOfLimits(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	limits := Limits{Length: time.Minute, Minutes: []Minute{{"sliding_log", 300, 62, 62, 63}}, Bursts: Bursts{Passed: [2]int{31, 22}}}
	require.NoError(t, limits.Print(&out))
	require.Regexp(t, `sliding_log +300 +62 +62 +63`, out.String())
	require.Contains(t, out.String(), "31 and 22 passed")

	out.Reset()
	isolation := Isolation{Length: time.Minute, Alone: Spread{P99: 3}, Beside: Spread{P99: 5}, Refused: 1}
	require.NoError(t, isolation.Print(&out))
	require.Contains(t, out.String(), "NOT MET  requests of the nine that were refused: 1 of 1, at most 0")
	require.Contains(t, out.String(), "NOT MET  their p99 beside / alone: 1.67, at most 1.33")
	isolation.Beside.P99, isolation.Refused = 4, 0
	out.Reset()
	require.NoError(t, isolation.Print(&out))
	require.NotContains(t, out.String(), "NOT MET")

	out.Reset()
	decisions := Decisions{WithRedis: 3, WithoutRedis: 4, Calls: []Calls{
		{What: callNothing, Callers: 16, Rate: 1000, Took: Spread{P50: 0.1, P99: 0.2}},
		{What: callAdmitted, Callers: 16, Rate: 500, Took: Spread{P50: 0.2, P99: 0.5}},
		{What: callRefused, Callers: 16, Rate: 800, Took: Spread{P50: 0.15, P99: 0.4}},
		{What: callLocal, Callers: 16, Rate: 1000, Took: Spread{P50: 0.01, P99: 0.02}},
	}}
	require.NoError(t, decisions.Print(&out))
	require.Regexp(t, `16 +admitted +500 +0\.200 +0\.500 +2\.00 +2\.50`, out.String())
	require.Contains(t, out.String(), "16 callers: refused by the last limit / admitted, p99 0.80; admitted in Redis / in the gateway alone, calls a second 0.50")
	require.Contains(t, out.String(), "ratio 0.75")

	out.Reset()
	users := Users{Users: 1000, Took: time.Second, RedisStart: 1 << 20, RedisEnd: 3 << 19, DayCounter: 313.4}
	require.NoError(t, users.Print(&out))
	require.Contains(t, out.String(), "Redis, MiB: 1.00 before, 0.0 at the end, 1.50 once their windows were over")
	require.Contains(t, out.String(), "takes 313 bytes")
}

func TestOptionsOfLimits(t *testing.T) {
	t.Parallel()
	require.NoError(t, AdmissionOptions{Callers: []int{1}, Slice: time.Second, Rounds: 1}.Validate())
	err := AdmissionOptions{Callers: []int{0}}.Validate()
	for _, flag := range []string{"--callers", "--slice", "--rounds"} {
		require.ErrorContains(t, err, flag)
	}
	require.ErrorContains(t, AdmissionOptions{Slice: time.Second, Rounds: 1}.Validate(), "--callers")
	_, err = RunLimits(t.Context(), 0, nil)
	require.ErrorContains(t, err, "--duration")
	_, err = RunIsolation(t.Context(), time.Second, 0, nil)
	require.ErrorContains(t, err, "--round")
	_, err = RunUsers(t.Context(), 1, nil)
	require.ErrorContains(t, err, "--users")
}
