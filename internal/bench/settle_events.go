package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/lua"
)

const (
	settleApps   = 4
	keysPerApp   = 4
	usersPerKey  = 4
	modelName    = "gpt-4o-mini"
	priceRowName = "openai/gpt-4o-mini@2024-07-18"
	// inFlight is how many requests are reserved before the first of them is used.
	inFlight = 200
)

// requests makes the events of requests as a gateway would: ten budgets and two rates each, of several apps, keys and users.
type requests struct {
	calendar ledger.Calendar
	sequence uint64
}

func settleApp(i int) string { return fmt.Sprintf("app-%d", i%settleApps) }

func (g *requests) counters(i int, at time.Time) []ledger.Counter {
	app, key, user := settleApp(i), i/settleApps%keysPerApp, i/settleApps/keysPerApp%usersPerKey
	counter := func(tier ledger.Tier, family, subject string, period ledger.Period) ledger.Counter {
		c := ledger.Counter{Tier: tier, Family: family, Subject: subject, Period: period}
		if period != ledger.PeriodTotal {
			c.Window = g.calendar.Window(period, at)
		}
		return c
	}
	keySubject := fmt.Sprintf("key:k-%s-%d", app, key)
	userSubject := fmt.Sprintf("user:%s/u-%d-%d", app, key, user)
	return []ledger.Counter{
		counter(ledger.TierPlatform, "platform", "platform", ledger.PeriodDay),
		counter(ledger.TierPlatform, "platform", "platform", ledger.PeriodMonth),
		counter(ledger.TierApp, "app", "app:"+app, ledger.PeriodDay),
		counter(ledger.TierApp, "app", "app:"+app, ledger.PeriodMonth),
		counter(ledger.TierApp, "app", "app:"+app, ledger.PeriodTotal),
		counter(ledger.TierKey, "key", keySubject, ledger.PeriodDay),
		counter(ledger.TierKey, "key", keySubject, ledger.PeriodMonth),
		counter(ledger.TierKey, "key,by=model", keySubject+"|model="+modelName, ledger.PeriodDay),
		counter(ledger.TierUser, "user", userSubject, ledger.PeriodDay),
		counter(ledger.TierUser, "user", userSubject, ledger.PeriodMonth),
	}
}

func (g *requests) reservation(i int) *event.Reservation {
	now := time.Now().UTC()
	app, key := settleApp(i), i/settleApps%keysPerApp
	subject := fmt.Sprintf("key:k-%s-%d", app, key)
	rate := func(limit string, a ledger.Algorithm, unit ledger.Unit, amount int64) event.Rate {
		return event.Rate{
			Rate:     ledger.Rate{Tier: ledger.TierKey, Limit: limit, Subject: subject, Algorithm: a, Unit: unit},
			WindowMS: time.Minute.Milliseconds(), Amount: amount,
		}
	}
	return &event.Reservation{
		ID: event.NewReservationID(now), Key: fmt.Sprintf("k-%s-%d", app, key), User: fmt.Sprintf("u-%d-%d", key, i%usersPerKey),
		Plan: "paid", Provider: "openai", ModelRequested: modelName, Model: modelName, Endpoint: "/v1/chat/completions", Attempt: 1,
		Held:     ledger.Amounts{Requests: 1, Tokens: 500, NanoUSD: 200_000},
		Counters: g.counters(i, now),
		Rates: []event.Rate{
			rate("key-rpm", ledger.AlgorithmSlidingLog, ledger.UnitRequests, 10_000_000),
			rate("key-tpm", ledger.AlgorithmTokenBucket, ledger.UnitTokens, 1_000_000_000),
		},
		PriceRow: priceRowName, ReservedAt: now, Deadline: now.Add(15 * time.Minute), OnExpiry: event.ExpiryCharge,
		PolicyRevision: "0123456789abcdef",
	}
}

// message is one event on its way to the stream.
func (g *requests) message(kind event.Kind, i int, r *event.Reservation) (*nats.Msg, error) {
	g.sequence++
	e := &event.Event{
		V: event.Version, ID: event.ID(r.ID, kind), Kind: kind, App: settleApp(i), OccurredAt: time.Now().UTC(), Producer: "gw-bench",
		Sequence: g.sequence, TraceID: "0af7651916cd43dd8448eb211c80319c", Reservation: r,
	}
	if kind == event.KindUsed {
		e.Outcome = &event.Outcome{
			ModelServed: modelName + "-2024-07-18", Usage: ledger.Usage{Input: 200, CachedInput: 40, Output: 80}, UsageState: ledger.UsageReported,
			Cost: 81_000, PriceRow: priceRowName, Status: 200, UpstreamID: "chatcmpl-" + r.ID, Finish: ledger.ReasonOK,
			FirstByteMS: 180, DurationMS: 950,
			Components: []event.Component{
				{Class: ledger.ClassInput, Tokens: 200, Price: 150_000_000, Cost: 30_000},
				{Class: ledger.ClassCachedInput, Tokens: 40, Price: 75_000_000, Cost: 3_000},
				{Class: ledger.ClassOutput, Tokens: 80, Price: 600_000_000, Cost: 48_000},
			},
		}
	}
	body, err := e.Encode()
	// No message id: rounds publish the same events again within the time for which the server would drop them.
	return &nats.Msg{Subject: e.Subject(), Data: body}, err
}

// backlog is a stream's content, and what Redis holds for it.
type backlog struct {
	messages []*nats.Msg
	opens    map[string][]lua.Open // by app
}

// newBacklog makes the events of n requests, each used when inFlight others have been reserved after it.
func newBacklog(n int) (*backlog, error) {
	g, b := &requests{}, &backlog{opens: map[string][]lua.Open{}}
	reserved := make([]*event.Reservation, n)
	add := func(kind event.Kind, i int) error {
		m, err := g.message(kind, i, reserved[i])
		b.messages = append(b.messages, m)
		return err
	}
	for i := range n + inFlight {
		if i < n {
			r := g.reservation(i)
			reserved[i] = r
			app := settleApp(i)
			b.opens[app] = append(b.opens[app], lua.Open{ReservationID: r.ID, App: app, Held: r.Held, Counters: r.Counters, Deadline: r.Deadline})
			if err := add(event.KindReserved, i); err != nil {
				return nil, err
			}
		}
		if i >= inFlight {
			if err := add(event.KindUsed, i-inFlight); err != nil {
				return nil, err
			}
		}
	}
	return b, nil
}

// publish puts everything on the stream and waits for its acknowledgements.
func (b *backlog) publish(ctx context.Context, nc *nats.Conn) error {
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(1000))
	if err != nil {
		return err
	}
	for _, m := range b.messages {
		if _, err := js.PublishMsgAsync(&nats.Msg{Subject: m.Subject, Data: m.Data}, jetstream.WithStallWait(time.Minute)); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	select {
	case <-js.PublishAsyncComplete():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// bytes is the mean size of an event.
func (b *backlog) bytes() int {
	sum := 0
	for _, m := range b.messages {
		sum += len(m.Data)
	}
	return sum / max(1, len(b.messages))
}
