package ledgertest

import (
	"fmt"
	"time"

	"pgregory.net/rapid"

	"tollgate/ledger"
)

// World is a small universe that random calls are drawn from: small enough that they meet the same counters and edges often.
type World struct {
	Apps       []string
	Generation string
	At         time.Time // the calendar windows are those that contain it
}

// Counters are all that requests of the app may meet: two tiers of its own, two shared by all apps.
func (w World) Counters(app string) []ledger.Counter {
	var all []ledger.Counter
	for _, tier := range []ledger.Tier{ledger.TierPlatform, ledger.TierPlan, ledger.TierApp, ledger.TierKey} {
		for _, period := range []ledger.Period{ledger.PeriodDay, ledger.PeriodMonth, ledger.PeriodTotal} {
			name := app
			if tier.Shared() {
				name = "all"
			}
			all = append(all, ledger.Counter{
				Tier: tier, Family: string(tier), Subject: fmt.Sprintf("%s:%s", tier, name), Period: period,
				Window: ledger.Calendar{}.Window(period, w.At),
			})
		}
	}
	return all
}

// Rates are all that requests of the app may meet. Their windows are so short that a test walks over their edges.
func (w World) Rates(app string) []Rate {
	rate := func(tier ledger.Tier, name string, algorithm ledger.Algorithm, unit ledger.Unit) ledger.Rate {
		subject := "app:" + app
		if tier.Shared() {
			subject = "platform:all"
		}
		return ledger.Rate{Tier: tier, Limit: name, Subject: subject, Algorithm: algorithm, Unit: unit}
	}
	const (
		bucket, log, window = ledger.AlgorithmTokenBucket, ledger.AlgorithmSlidingLog, ledger.AlgorithmFixedWindow
		sliding, inflight   = ledger.AlgorithmSlidingCounter, ledger.AlgorithmConcurrency
		requests, tokens    = ledger.UnitRequests, ledger.UnitTokens
		ms                  = time.Millisecond
	)
	return []Rate{
		{Rate: rate(ledger.TierApp, "rpm", log, requests), Amount: 3, Window: 40 * ms},
		{Rate: rate(ledger.TierApp, "tpm", log, tokens), Amount: 2500, Window: 70 * ms},
		{Rate: rate(ledger.TierPlatform, "all-tpm", log, tokens), Amount: 7000, Window: 200 * ms},
		{Rate: rate(ledger.TierApp, "rps", bucket, requests), Amount: 7, Window: 100 * ms, Burst: 5},
		{Rate: rate(ledger.TierApp, "tps", bucket, tokens), Amount: 3001, Window: 50 * ms, Burst: 4000},
		{Rate: rate(ledger.TierPlatform, "all-tps", bucket, tokens), Amount: 9973, Window: 150 * ms, Burst: 6000},
		{Rate: rate(ledger.TierApp, "rph", window, requests), Amount: 2, Window: 60 * ms},
		{Rate: rate(ledger.TierApp, "tph", window, tokens), Amount: 2500, Window: 90 * ms},
		{Rate: rate(ledger.TierPlatform, "all-tph", window, tokens), Amount: 6000, Window: 170 * ms},
		{Rate: rate(ledger.TierApp, "rpd", sliding, requests), Amount: 2, Window: 50 * ms},
		// No multiple of twenty microseconds, so the last sub-window is only partly inside.
		{Rate: rate(ledger.TierApp, "tpd", sliding, tokens), Amount: 2500, Window: 80_007 * time.Microsecond},
		{Rate: rate(ledger.TierPlatform, "all-tpd", sliding, tokens), Amount: 6000, Window: 190 * ms},
		{Rate: rate(ledger.TierApp, "busy", inflight, requests), Amount: 2},
		{Rate: rate(ledger.TierPlatform, "all-busy", inflight, requests), Amount: 3},
	}
}

// Reserve draws a call of one app. Amounts and limits lie around each other, and some around 10^15, 2^53 and beyond, where
// doubles would blur; a hundred calls together stay within int64.
func (w World) Reserve(t *rapid.T, id string) Reserve {
	app := rapid.SampledFrom(w.Apps).Draw(t, "app")
	c := Reserve{
		ID: id, App: app, Generation: w.Generation, TTL: time.Minute,
		Need: ledger.Amounts{
			Requests: 1,
			Tokens:   ledger.Tokens(rapid.Int64Range(0, 2000).Draw(t, "tokens")),
			NanoUSD:  ledger.NanoUSD(amount().Draw(t, "nanousd")),
		},
	}
	all := w.Counters(app)
	for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, len(all)-1), 0, 8, rapid.ID[int]).Draw(t, "counters") {
		c.Counters = append(c.Counters, all[i])
		for _, unit := range rapid.SliceOfNDistinct(rapid.SampledFrom([]ledger.Unit{
			ledger.UnitRequests, ledger.UnitTokens, ledger.UnitUSD,
		}), 0, 3, rapid.ID[ledger.Unit]).Draw(t, "units") {
			c.Budgets = append(c.Budgets, Budget{
				Counter: len(c.Counters) - 1, Unit: unit, Limit: w.limit(t, unit), Soft: rapid.IntRange(0, 4).Draw(t, "soft budget") == 0,
			})
		}
	}
	rates := w.Rates(app)
	for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, len(rates)-1), 0, 6, rapid.ID[int]).Draw(t, "rates") {
		rates[i].Soft = rapid.IntRange(0, 3).Draw(t, "soft rate") == 0
		c.Rates = append(c.Rates, rates[i])
	}
	if len(c.Rates) == 0 && rapid.IntRange(0, 9).Draw(t, "huge") == 0 {
		c.Need.Tokens = ledger.Tokens(amount().Draw(t, "huge tokens"))
	}
	return c
}

func (w World) limit(t *rapid.T, unit ledger.Unit) int64 {
	switch {
	case rapid.IntRange(0, 2).Draw(t, "roomy") > 0:
		return 1<<63 - 1
	case unit == ledger.UnitRequests:
		return rapid.Int64Range(0, 40).Draw(t, "limit")
	case unit == ledger.UnitTokens:
		return rapid.Int64Range(0, 40_000).Draw(t, "limit")
	default:
		return amount().Draw(t, "limit")
	}
}

func amount() *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Int64Range(0, 1_000_000),
		rapid.Int64Range(999_999_999_999_990, 1_000_000_000_000_010),
		rapid.Int64Range(1<<53-3, 1<<53+3),
		rapid.Int64Range(0, 40_000_000_000_000_000),
	)
}

// Spent draws what a reservation turned out to use: mostly less than held, sometimes nothing or more.
func (w World) Spent(t *rapid.T, held ledger.Amounts) ledger.Amounts {
	switch rapid.IntRange(0, 4).Draw(t, "outcome") {
	case 0:
		return ledger.Amounts{}
	case 1:
		return ledger.Amounts{Requests: held.Requests, Tokens: held.Tokens + 700, NanoUSD: held.NanoUSD + 1}
	case 2:
		return held
	default:
		return ledger.Amounts{Requests: held.Requests, Tokens: held.Tokens / 3, NanoUSD: held.NanoUSD / 3}
	}
}
