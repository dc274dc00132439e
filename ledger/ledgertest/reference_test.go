package ledgertest_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/ledger"
	"tollgate/ledger/ledgertest"
)

// clocked is the reference as a System: every call happens a microsecond after the last.
type clocked struct {
	*ledgertest.Reference
	now time.Time
}

func (c *clocked) tick() time.Time {
	c.now = c.now.Add(time.Microsecond)
	return c.now
}

func (c *clocked) Reserve(call ledgertest.Reserve) ledgertest.Decision {
	return c.Reference.Reserve(c.tick(), call)
}

func (c *clocked) Settle(s ledgertest.Settlement) ledgertest.Settled {
	return c.Reference.Settle(c.tick(), s)
}
func (c *clocked) Rebuild(b ledgertest.Rebuild) { c.Reference.Rebuild(c.tick(), b) }

func TestReferenceConforms(t *testing.T) {
	t.Parallel()
	ledgertest.Conformance(t, func(*testing.T) ledgertest.System {
		reference := ledgertest.NewReference()
		reference.LeaseTTL = ledgertest.LeaseTTL
		return &clocked{reference, time.Now().UTC()}
	})
}

func TestWaitIsTheFirstMomentThatFits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ref, now := ledgertest.NewReference(), time.UnixMicro(1_000_000_000_000_000).UTC()
		world := ledgertest.World{Apps: []string{"a"}, Generation: "g", At: now}
		ref.Rebuild(now, ledgertest.Rebuild{Slot: "a", Generation: "g", Active: rapid.Bool().Draw(t, "active")})
		ref.Rebuild(now, ledgertest.Rebuild{Slot: ledgertest.Shared, Generation: "g"})
		rate := rapid.SampledFrom(slices.DeleteFunc(world.Rates("a"), func(r ledgertest.Rate) bool {
			return r.Algorithm == ledger.AlgorithmConcurrency // whose wait is a guess
		})).Draw(t, "rate")
		call := ledgertest.Reserve{App: "a", Generation: "g", TTL: time.Minute, Rates: []ledgertest.Rate{rate}}
		for i := range 40 {
			call.ID = fmt.Sprint(i)
			call.Need = ledger.Amounts{Requests: 1, Tokens: ledger.Tokens(rapid.Int64Range(1, 2500).Draw(t, "tokens"))}
			got := ref.Reserve(now, call).Rates[0]
			if !got.Fits {
				require.Greater(t, got.Wait, time.Duration(0))
				early := ref.Reserve(now.Add(got.Wait-time.Microsecond), call)
				require.Equal(t, ledgertest.Refused, early.Outcome)
				now = now.Add(got.Wait)
				require.Equal(t, ledgertest.Allowed, ref.Reserve(now, call).Outcome)
			}
			require.NoError(t, ref.Check())
			now = now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "pause")) * time.Microsecond)
		}
	})
}
