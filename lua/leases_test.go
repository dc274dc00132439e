package lua

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

var (
	appInFlight = ledger.Rate{
		Tier: ledger.TierApp, Limit: "in-flight", Subject: "app:a", Algorithm: ledger.AlgorithmConcurrency, Unit: ledger.UnitRequests,
	}
	providerInFlight = ledger.Rate{
		Tier: ledger.TierProvider, Limit: "upstream", Subject: "provider:p", Algorithm: ledger.AlgorithmConcurrency,
		Unit: ledger.UnitRequests,
	}
)

func inflightKey(app string, rate *ledger.Rate) string {
	_, set := rateKeys(app, rate)
	return set
}

// leases is every lease of the limit with the instant it lapses at.
func (s *store) leases(rate ledger.Rate) map[string]time.Time {
	s.t.Helper()
	found, err := s.redis.ZRangeWithScores(s.t.Context(), inflightKey("a", &rate), 0, -1).Result()
	require.NoError(s.t, err)
	all := map[string]time.Time{}
	for _, z := range found {
		all[z.Member.(string)] = time.UnixMilli(int64(z.Score)).UTC()
	}
	return all
}

func TestLeasesAreRenewedAddedAgainAndReleased(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	ctx := t.Context()
	var all []Lease
	for i := range 2*leaseChunk + 3 {
		for _, rate := range []ledger.Rate{appInFlight, providerInFlight} {
			all = append(all, Lease{App: "a", Rate: rate, ReservationID: fmt.Sprint("r", i)})
		}
	}
	soon, late := time.Now().Add(time.Second).UTC().Truncate(time.Millisecond), time.Now().Add(2*s.leaseTTL).UTC().Truncate(time.Millisecond)
	require.NoError(t, s.redis.ZAdd(ctx, inflightKey("a", &appInFlight),
		redis.Z{Score: float64(soon.UnixMilli()), Member: "r0"}, redis.Z{Score: float64(late.UnixMilli()), Member: "r1"},
		redis.Z{Score: 1, Member: "lapsed"}).Err())

	before, err := s.redis.Time(ctx).Result()
	require.NoError(t, err)
	require.NoError(t, s.RenewLeases(ctx, all))
	after, err := s.redis.Time(ctx).Result()
	require.NoError(t, err)
	for _, rate := range []ledger.Rate{appInFlight, providerInFlight} {
		leases := s.leases(rate)
		require.Len(t, leases, 2*leaseChunk+3, "without the one that had lapsed")
		for id, lapses := range leases {
			if id == "r1" && rate == appInFlight {
				require.Equal(t, late, lapses, "never shortened")
				continue
			}
			require.False(t, lapses.Before(before.Add(s.leaseTTL).Truncate(time.Millisecond)), id)
			require.False(t, lapses.After(after.Add(s.leaseTTL)), id)
		}
	}
	s.requireTTLs()

	for range 2 {
		require.NoError(t, s.ReleaseLeases(ctx, all[2:]))
		require.Len(t, s.leases(appInFlight), 1)
		require.Len(t, s.leases(providerInFlight), 1)
	}
	require.NoError(t, s.ReleaseLeases(ctx, all))
	require.Empty(t, s.keys("*:inflight:*"))
	require.NoError(t, s.RenewLeases(ctx, nil))
	require.NoError(t, s.ReleaseLeases(ctx, nil))
}

// A renewal that was on its way when its request was settled takes up no room.
func TestARenewalAfterTheEndAddsNothing(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	require.Equal(t, StatusAllowed, s.reserve(fullCall("ended")).Status)
	require.EqualValues(t, 1, s.settle(nil, ending(fullCall("ended"), 1)).Ended)
	require.NoError(t, s.RenewLeases(t.Context(), []Lease{{"a", appInFlight, "ended"}, {"a", appInFlight, "unknown"}}))
	require.Len(t, s.leases(appInFlight), 1)
	require.Contains(t, s.leases(appInFlight), "unknown", "admitted while Redis was not asked, or lost by it")
}

// One key of a wrong type is told, and costs no other limit its leases.
func TestLeasesInAKeyOfAWrongType(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	require.NoError(t, s.redis.Set(t.Context(), inflightKey("a", &appInFlight), "x", time.Minute).Err())
	var leases []Lease
	for i := range leaseChunk + 1 {
		leases = append(leases, Lease{"a", appInFlight, fmt.Sprint(i)}, Lease{"a", providerInFlight, fmt.Sprint(i)})
	}
	require.ErrorContains(t, s.RenewLeases(t.Context(), leases), "WRONGTYPE")
	require.Len(t, s.leases(providerInFlight), leaseChunk+1)
	require.ErrorContains(t, s.ReleaseLeases(t.Context(), leases), "WRONGTYPE")
	require.Empty(t, s.leases(providerInFlight))
}

// A lease lapses at its millisecond: among leases that lapse at every one, the figure tells where the edge was.
func TestTheEdgeOfALeaseIsExact(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	const n = 500
	first := time.Now().UnixMilli()
	var leases []redis.Z
	for i := range n {
		leases = append(leases, redis.Z{Score: float64(first + int64(i)), Member: fmt.Sprint(i)})
	}
	require.NoError(t, s.redis.ZAdd(t.Context(), inflightKey("a", &appInFlight), leases...).Err())
	c := &ReserveCall{App: "a", Generation: generation, TTL: time.Minute, Need: ledger.Amounts{Requests: 1}}
	c.Rates = []Rate{{Rate: appInFlight, Amount: 0}}
	for i := 0; ; i++ {
		c.ID = fmt.Sprint("r", i)
		d := s.reserve(c)
		require.Equal(t, StatusRefused, d.Status)
		require.Equal(t, time.Second, d.Rates[0].Wait)
		require.Equal(t, max(0, n-1-(d.Now.UnixMilli()-first)), d.Rates[0].Used)
		if d.Rates[0].Used == 0 {
			break
		}
	}
	c.ID, c.Rates[0].Amount = "one", 1
	d := s.reserve(c)
	require.Equal(t, StatusAllowed, d.Status)
	require.Equal(t, map[string]time.Time{"one": d.Now.Truncate(time.Millisecond).Add(s.leaseTTL)}, s.leases(appInFlight), "those that lapsed are gone")
	s.requireTTLs()
}

// A gateway died: what it had in flight comes free by itself. While it lives, a renewal keeps its place.
func TestALeaseThatIsNotRenewedComesFree(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	s.leaseTTL = 500 * time.Millisecond
	c := &ReserveCall{ID: "dead", App: "a", Generation: generation, TTL: time.Minute, Need: ledger.Amounts{Requests: 1}}
	c.Rates = []Rate{{Rate: appInFlight, Amount: 2}}
	dead := s.reserve(c)
	require.Equal(t, StatusAllowed, dead.Status)
	c.ID = "alive"
	alive := s.reserve(c)
	require.Equal(t, StatusAllowed, alive.Status)
	for i := 0; ; i++ {
		renewed := s.now()
		require.NoError(t, s.RenewLeases(t.Context(), []Lease{{"a", appInFlight, "alive"}}))
		c.ID, c.Rates[0].Amount = fmt.Sprint(i), 1
		d := s.reserve(c)
		if s.stoodStill(renewed, c, d) {
			continue
		}
		require.Equal(t, StatusRefused, d.Status, "one is alive")
		lapsed := !d.Now.Before(dead.Now.Truncate(time.Millisecond).Add(s.leaseTTL))
		require.Equal(t, map[bool]int64{true: 1, false: 2}[lapsed], d.Rates[0].Used)
		if lapsed && d.Now.After(alive.Now.Add(3*s.leaseTTL)) {
			break
		}
	}
}

// stoodStill tells whether what was renewed before the decision may have lapsed until it: then it says nothing, and is undone.
func (s *store) stoodStill(renewed time.Time, c *ReserveCall, d Decision) bool {
	s.t.Helper()
	if d.Now.Before(renewed.Truncate(time.Millisecond).Add(s.leaseTTL)) {
		return false
	}
	require.NoError(s.t, s.ReleaseLeases(s.t.Context(), []Lease{{c.App, c.Rates[0].Rate, c.ID}}))
	return true
}

// After a loss nothing is admitted until every gateway has renewed its leases; then those are back.
func TestLostLeasesAreBackBeforeAnythingIsAdmitted(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	s.leaseTTL = 60 * time.Millisecond
	require.NoError(t, s.Scripts.Rebuild(t.Context(), RebuildCall{Slot: "a", Generation: generation, Active: true}))
	lost := s.lost("a")
	c := &ReserveCall{App: "a", Generation: generation, TTL: time.Minute, Need: ledger.Amounts{Requests: 1}}
	c.Rates = []Rate{{Rate: appInFlight, Amount: 2}}
	for i := 0; ; i++ {
		renewed := s.now()
		require.NoError(t, s.RenewLeases(t.Context(), []Lease{{"a", appInFlight, "before the loss"}}))
		c.ID = fmt.Sprint(i)
		d := s.reserve(c)
		if s.stoodStill(renewed, c, d) {
			continue
		}
		if !d.Now.Before(lost.Add(s.leaseTTL)) {
			require.Equal(t, StatusAllowed, d.Status)
			require.EqualValues(t, 1, d.Rates[0].Used)
			return
		}
		require.Equal(t, RateState{Used: 2, Wait: lost.Add(s.leaseTTL).Sub(d.Now)}, d.Rates[0])
	}
}
