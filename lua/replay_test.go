package lua

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// replayed are rates of every kind whose charges do not all leave while a test runs.
func replayed() []Rate {
	rates := []Rate{
		{Rate: requestLog, Amount: 1000, Window: time.Hour},
		{Rate: tokenLog, Amount: 100_000, Window: time.Hour},
		{Rate: tokenBucket, Amount: 100_000, Window: month, Burst: 100_000}, // a token drains in half a minute
		{Rate: tokenWindow, Amount: 100_000, Window: month},
		{Rate: tokenSliding, Amount: 100_000, Window: time.Hour},
	}
	for i := range rates {
		rates[i].Tier, rates[i].Subject = ledger.TierApp, "app:a"
	}
	return rates
}

// figuresNow reads the rates without charging them: another one refuses.
func (s *store) figuresNow(rates []Rate) Decision {
	s.t.Helper()
	shut := Rate{Rate: ledger.Rate{Tier: ledger.TierApp, Limit: "shut", Subject: "app:a", Algorithm: ledger.AlgorithmSlidingLog, Unit: ledger.UnitRequests}, Window: time.Second}
	d := s.reserve(&ReserveCall{
		ID: "figures", App: "a", Generation: generation, TTL: time.Minute, Need: ledger.Amounts{Requests: 1, Tokens: 1},
		Rates: append([]Rate{shut}, rates...),
	})
	require.Equal(s.t, StatusRefused, d.Status)
	d.Rates = d.Rates[1:]
	return d
}

// charge admits requests, settles some of them to another amount, and returns what the ledger would know of each.
func (s *store) charge(rates []Rate, n int) []RateCharges {
	s.t.Helper()
	known := make([]RateCharges, len(rates))
	for i, r := range rates {
		known[i] = RateCharges{App: "a", Rate: r}
	}
	var endings []Ending
	for i := range n {
		c := &ReserveCall{
			ID: fmt.Sprint(i), App: "a", Generation: generation, TTL: time.Hour, Rates: rates,
			Need: ledger.Amounts{Requests: 1, Tokens: ledger.Tokens(1 + rand.IntN(300))},
		}
		d := s.reserve(c)
		require.Equal(s.t, StatusAllowed, d.Status)
		spent := c.Need
		if i%3 == 0 {
			spent.Tokens = ledger.Tokens(rand.IntN(400))
			endings = append(endings, Ending{ReservationID: c.ID, Rates: identities(rates), Held: c.Need, Spent: spent})
		}
		for j, r := range rates {
			known[j].Charges = append(known[j].Charges, Charge{c.ID, spent.In(r.Unit), d.Now})
		}
	}
	_, err := s.Scripts.Settle(s.t.Context(), "a", nil, nil, endings)
	require.NoError(s.t, err)
	return known
}

func identities(rates []Rate) (all []ledger.Rate) {
	for _, r := range rates {
		all = append(all, r.Rate)
	}
	return all
}

// Rates that were lost with everything else are as they were, when the ledger knows all that they remember.
func TestRebuildChargesRatesAnew(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	rates := replayed()
	known := s.charge(rates, 3*replayChunk/2)
	before := s.figuresNow(rates)
	require.NoError(t, s.redis.FlushDB(t.Context()).Err())
	s.open()
	rebuild := RebuildCall{Slot: "a", Generation: generation, Active: true, Charges: known, ChargedSince: time.Now().Add(-month - time.Hour)}
	for range 2 { // a rebuild that is repeated charges nothing twice
		require.NoError(t, s.Scripts.Rebuild(t.Context(), rebuild))
	}
	after := s.figuresNow(rates)
	for i, r := range rates {
		name := fmt.Sprint(r.Algorithm, " of ", r.Unit)
		require.InDelta(t, before.Rates[i].Used, after.Rates[i].Used, 1, name) // a bucket drains meanwhile
		require.Equal(t, before.Rates[i].Fits, after.Rates[i].Fits, name)
		if r.Algorithm != ledger.AlgorithmSlidingLog { // a log is idle when its newest entry has left, whenever it is asked
			require.WithinDuration(t, before.Now.Add(before.Rates[i].Reset), after.Now.Add(after.Rates[i].Reset), 10*time.Millisecond, name)
		}
	}

	// What is settled later corrects what was charged before the loss, as if nothing had happened.
	const last = 3*replayChunk/2 - 1
	held := known[1].Charges[last].Units
	_, err := s.Scripts.Settle(t.Context(), "a", nil, []Open{{ReservationID: "other", App: "a", Deadline: time.Now().Add(time.Hour)}}, nil)
	require.NoError(t, err)
	rebuild.Open = []Open{{
		ReservationID: fmt.Sprint(last), App: "a", Held: ledger.Amounts{Requests: 1, Tokens: ledger.Tokens(held)},
		Deadline: time.Now().Add(time.Hour), ReservedAt: known[1].Charges[last].At,
	}}
	require.NoError(t, s.Scripts.Rebuild(t.Context(), rebuild))
	_, err = s.Scripts.Settle(t.Context(), "a", nil, nil, []Ending{{
		ReservationID: fmt.Sprint(last), Rates: identities(rates), Held: rebuild.Open[0].Held, Spent: ledger.Amounts{Requests: 1, Tokens: ledger.Tokens(held) + 1000},
	}})
	require.NoError(t, err)
	corrected := s.figuresNow(rates)
	for i, r := range rates {
		if r.Unit == ledger.UnitTokens {
			require.InDelta(t, after.Rates[i].Used+1000, corrected.Rates[i].Used, 1, r.Algorithm)
		}
	}
}

// What the ledger knows too little of is as if used up: a window that began before, a bucket until it has drained.
func TestRebuildShutsWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	rates := replayed()
	known := s.charge(rates, 5)
	require.NoError(t, s.redis.FlushDB(t.Context()).Err())
	s.open()
	since := known[0].Charges[2].At // the first two are unknown
	for i := range known {
		known[i].Charges = known[i].Charges[2:]
	}
	require.NoError(t, s.Scripts.Rebuild(t.Context(), RebuildCall{Slot: "a", Generation: generation, Active: true, Charges: known, ChargedSince: since}))
	for i, state := range s.figuresNow(rates).Rates {
		require.False(t, state.Fits, rates[i].Algorithm)
		require.GreaterOrEqual(t, state.Used, min(rates[i].Amount, 100_000), rates[i].Algorithm)
	}
}
