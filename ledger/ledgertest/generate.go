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
	const bucket, log = ledger.AlgorithmTokenBucket, ledger.AlgorithmSlidingLog
	return []Rate{
		{rate(ledger.TierApp, "rpm", log, ledger.UnitRequests), 6, 40 * time.Millisecond, 0},
		{rate(ledger.TierApp, "tpm", log, ledger.UnitTokens), 5000, 70 * time.Millisecond, 0},
		{rate(ledger.TierPlatform, "all-tpm", log, ledger.UnitTokens), 9000, 200 * time.Millisecond, 0},
		{rate(ledger.TierApp, "rps", bucket, ledger.UnitRequests), 7, 100 * time.Millisecond, 5},
		{rate(ledger.TierApp, "tps", bucket, ledger.UnitTokens), 3001, 50 * time.Millisecond, 4000},
		{rate(ledger.TierPlatform, "all-tps", bucket, ledger.UnitTokens), 9973, 150 * time.Millisecond, 6000},
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
			c.Budgets = append(c.Budgets, Budget{len(c.Counters) - 1, unit, w.limit(t, unit)})
		}
	}
	rates := w.Rates(app)
	for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, len(rates)-1), 0, 4, rapid.ID[int]).Draw(t, "rates") {
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
