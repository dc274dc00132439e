package e2e

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
)

// mixed is traffic of all shapes: plain, streamed and embeddings, answered after a few milliseconds.
func mixed(i int) system.Request {
	header := map[string]string{"X-Sim-Latency": "10ms", "X-Tollgate-User": fmt.Sprintf("user%d", i%5)}
	switch i % 4 {
	case 0:
		return system.Request{Path: "/v1/embeddings", Body: system.EmbeddingBody(1 + i%50), Header: header}
	case 1:
		header["X-Sim-Chunk-Delay"] = "2ms"
		return system.Request{Path: "/v1/chat/completions", Body: system.ChatBody("gpt-4o", "How much is left?", 30+i%20, true), Header: header}
	default:
		return system.Request{Path: "/v1/chat/completions", Body: system.ChatBody("gpt-4o-mini", "How much is left?", 30+i%20, false), Header: header}
	}
}

// pause waits for a random time below d: the moment of the next fault must not follow from the test.
func pause(d time.Duration) { time.Sleep(20*time.Millisecond + rand.N(d)) }

// kills is how often the long tests kill a process.
const kills = 50

// A gateway that is killed between reserve and response at any moment leaves nothing held for ever, and the ledger equals the
// simulator's books plus what expiry charged.
func TestGatewayKilledUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("kills a gateway 50 times")
	}
	t.Parallel()
	s := system.New(t, system.Options{Limits: everyTier, Gateways: 1, Settlers: 1, TTL: 2 * time.Second})
	key := s.KnownKey(system.App)
	call := spread(t, s, key, mixed)
	var passed atomic.Int64
	stop := system.Traffic(12, func(i int) system.Answer {
		a := call(i)
		if a.Passed() {
			passed.Add(1)
		}
		if a.Status == 0 {
			time.Sleep(5 * time.Millisecond) // nobody listens
		}
		return a
	})
	for range kills {
		pause(180 * time.Millisecond)
		s.Gateways[0].Kill()
		s.Gateways[0].Start()
	}
	pause(time.Second)
	s.Eventually(system.Patience, "some requests have passed for each kill", func() error {
		if n := passed.Load(); n <= kills {
			return fmt.Errorf("%d have passed", n)
		}
		return nil
	})
	tally := system.Tally(stop())
	t.Logf("%v", tally)
	require.Positive(t, tally["broken"])
	s.Check()
	require.Positive(t, s.Int(`SELECT count(*) FROM reservations WHERE state = 'expired'`), "no kill hit a request in flight")
	require.Zero(t, s.Int(`SELECT count(*) FROM reservations WHERE state = 'expired' AND usage_state <> 'unconfirmed'`))
	require.EqualValues(t, 1, s.Int(`SELECT count(*) FROM producers WHERE producer LIKE 'gw-%'`), "a restart continues the numbering")
}

// A settler that is killed at any moment leaves every event settled exactly once.
func TestSettlerKilledUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("kills a settler 50 times")
	}
	t.Parallel()
	s := system.New(t, system.Options{
		Limits: everyTier, Gateways: 1, Settlers: 2,
		// Small batches and a short wait for what the dead one had: more places to die in, sooner.
		Env: []string{"TOLLGATE_SETTLER_BATCH=20", "TOLLGATE_SETTLER_ACK_WAIT=1s"},
	})
	key := s.KnownKey(system.App)
	stop := system.Traffic(8, spread(t, s, key, mixed))
	for i := range kills {
		pause(180 * time.Millisecond)
		settler := s.Settlers[i%2]
		settler.Kill()
		settler.Start()
	}
	tally := system.Tally(stop())
	t.Logf("%v", tally)
	require.Len(t, tally, 1, "a settler's death must not reach callers")
	s.Check()
	require.EqualValues(t, tally["passed"], s.Int(`SELECT count(*) FROM reservations WHERE state = 'settled' AND usage_state = 'reported'`))
	require.EqualValues(t, 2*tally["passed"]+1, s.Int(`SELECT count(*) FROM events`), "a Reserved and a Used event each, and a policy")
}
