package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/e2e/stack"
	"tollgate/gateway/admission"
	"tollgate/gateway/outbox"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/keys"
)

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// kept is what refused events say, by hour and kind.
type kept map[refused]int64

// read takes an event in and holds it against what every refused event must be.
func (k kept) read(t require.TestingT, e *event.Event) {
	data, err := e.Encode()
	require.NoError(t, err)
	require.Less(t, len(data), 2*maxRefusalBytes)
	e, err = event.Decode(data)
	require.NoError(t, err)
	r := e.Refusals
	require.NotEmpty(t, r.Counts)
	require.False(t, r.Until.Before(r.From))
	hour := r.From.Truncate(time.Hour)
	require.False(t, r.Until.After(hour.Add(time.Hour)), "%s to %s is in two hours", r.From, r.Until)
	for _, c := range r.Counts {
		require.Equal(t, e.App, c.App)
		require.Positive(t, c.Count)
		key := refused{hour.Unix() / 3600, c}
		key.kind.Count = 0
		k[key] += c.Count
	}
}

// Whatever is counted, at whatever hour, and however often recording fails, is on record exactly once in its hour.
func TestEachRefusalIsRecordedOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := noon
		r := newRefusals(now)
		want, got := kept{}, kept{}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(-int64(time.Minute), int64(20*time.Minute)).Draw(t, "later")))
			if rapid.IntRange(0, 9).Draw(t, "step") == 0 {
				record(t, r, now, got, rapid.IntRange(0, 3).Draw(t, "events before the outbox fails"))
				continue
			}
			kind := event.RefusalCount{
				Layer:   rapid.SampledFrom(ledger.Tiers()).Draw(t, "layer"),
				Reason:  rapid.SampledFrom([]ledger.Reason{ledger.ReasonAppQuota, ledger.ReasonRPMLimit}).Draw(t, "reason"),
				Limit:   rapid.SampledFrom([]string{"a", "b"}).Draw(t, "limit"),
				Subject: rapid.SampledFrom([]string{"app:x", "app:y"}).Draw(t, "subject"),
				App:     rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "app"), Endpoint: chatPath,
			}
			r.add(now, kind)
			want[refused{now.Unix() / 3600, kind}]++
		}
		record(t, r, now, got, 1000)
		require.Equal(t, want, got)
	})
}

// Counting goes on while counts are taken, and none gets lost or is taken twice.
func TestRefusalsAreTakenWhileTheyAreCounted(t *testing.T) {
	t.Parallel()
	r := newRefusals(noon)
	const callers, each = 4, 5000
	var counting sync.WaitGroup
	for i := range callers {
		counting.Go(func() {
			for n := range each {
				r.add(noon, event.RefusalCount{App: "shop", Subject: fmt.Sprint(i, n%7)})
			}
		})
	}
	done := make(chan struct{})
	go func() {
		counting.Wait()
		close(done)
	}()
	got := kept{}
	for taking := true; taking; {
		select {
		case <-done:
			taking = false
		default:
		}
		record(t, r, noon, got, 1_000_000)
	}
	var sum int64
	for _, n := range got {
		sum += n
	}
	require.Equal(t, int64(callers*each), sum)
}

// record does what the gateway does, with an outbox that fails after some events.
func record(t require.TestingT, r *refusals, now time.Time, into kept, room int) {
	counts, since := r.take(now)
	for ; len(counts) > 0; room-- {
		if room == 0 {
			r.giveBack(counts, since)
			return
		}
		e, rest, err := refusedEvent(counts, since, now)
		require.NoError(t, err)
		into.read(t, e)
		counts = rest
	}
}

// A storm of refusals over more subjects, apps and limits than can be told apart is bounded, and its sum is exact.
func TestRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRefusals(noon)
	const apps, subjects = 3 * maxRefused, 100_000
	for i := range subjects {
		// The worst that JSON makes longer, at the length that a subject may have.
		subject := fmt.Sprintf("user:shop/%s%d", strings.Repeat("<", 600), i)
		r.add(noon, event.RefusalCount{Layer: ledger.TierUser, Reason: ledger.ReasonUserQuota, Limit: "user-day", Subject: subject, App: "shop", Endpoint: chatPath})
	}
	require.Len(t, r.counts, maxRefused+1)
	require.Equal(t, int64(subjects-maxRefused), *r.counts[refused{noon.Unix() / 3600, event.RefusalCount{
		Layer: ledger.TierUser, Reason: ledger.ReasonUserQuota, Limit: "user-day", Subject: other, App: "shop", Endpoint: chatPath,
	}}])
	for i := range apps {
		app := fmt.Sprintf("app-%d", i)
		r.add(noon, event.RefusalCount{Layer: ledger.TierApp, Reason: ledger.ReasonAppQuota, Limit: "app-day", Subject: "app:" + app, App: app, Endpoint: chatPath})
	}
	require.Len(t, r.counts, 2*maxRefused+1)

	got := kept{}
	record(t, r, noon, got, 1_000_000)
	sums := map[ledger.Tier]int64{}
	for key, n := range got {
		sums[key.kind.Layer] += n
	}
	require.Equal(t, map[ledger.Tier]int64{ledger.TierUser: subjects, ledger.TierApp: apps}, sums)
	require.Empty(t, r.counts)
}

// A count keeps its own copy of the subject: what it was cut out of may be long.
func TestRefusalKeepsNoLongerText(t *testing.T) {
	t.Parallel()
	r := newRefusals(noon)
	text := strings.Repeat("x", 1000)
	r.add(noon, event.RefusalCount{Subject: text[10:20], App: "shop"})
	for key := range r.counts {
		require.NotSame(t, unsafe.StringData(text[10:20]), unsafe.StringData(key.kind.Subject))
	}
}

// Counts survive an outbox that cannot take them.
func TestRefusalsThatCannotBeRecorded(t *testing.T) {
	t.Parallel()
	w := begin(t, plain)
	box, err := outbox.Open(outbox.Config{Dir: t.TempDir(), AckTimeout: time.Second, SyncEvery: time.Second, SegmentBytes: 1 << 20, MaxBytes: 1 << 30}, w.nc,
		slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	require.NoError(t, err)
	require.NoError(t, box.Close())
	g := &Gateway{outbox: box, refusals: newRefusals(noon), clock: admission.NewClock(func() time.Time { return noon })}
	g.refusals.add(noon, event.RefusalCount{Reason: ledger.ReasonUnknownModel, App: "shop"})
	for range 2 {
		require.ErrorContains(t, g.recordRefusals(), "outbox is closed")
	}
	got := kept{}
	record(t, g.refusals, noon, got, 1)
	require.Equal(t, kept{{noon.Unix() / 3600, event.RefusalCount{Reason: ledger.ReasonUnknownModel, App: "shop"}}: 1}, got)
}

// refusedEvents adds up what the stream knows of refusals, over all hours.
func (w *world) refusedEvents() (map[event.RefusalCount]int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := w.js.Stream(ctx, event.Stream)
	if err != nil {
		return nil, err
	}
	sums, hourly := map[event.RefusalCount]int64{}, kept{}
	for i := uint64(1); i <= stream.CachedInfo().State.LastSeq; i++ {
		msg, err := stream.GetMsg(ctx, i)
		if err != nil {
			return nil, err
		}
		e, err := event.Decode(msg.Data)
		if err != nil {
			return nil, err
		}
		if e.Kind == event.KindRefused {
			require.Equal(w, "ledger.refused."+e.App, msg.Subject)
			hourly.read(w, e)
		}
	}
	for key, n := range hourly {
		sums[key.kind] += n
	}
	return sums, nil
}

// Each request that was refused is on record once, at the limit that its answer named; what was no decision is not.
func TestRefusalsOnRecord(t *testing.T) {
	t.Parallel()
	w := begin(t, plain)
	w.key("tg-expired", keys.Record{KeyID: "k_2", App: "batch", ExpiresAt: time.Now().Add(-time.Second)})
	w.run(`  - {name: app-total, tier: app, budget: {requests: 2, per: total}}
  - {name: ada-rpm, tier: user, match: {user: ada}, rate: {requests: 1, per: day, algorithm: sliding_log}}
  - {name: tiny, tier: key, match: {model: fast}, budget: {tokens: 1, per: day}}
  - {name: usd, tier: app, match: {model: unpriced}, budget: {usd: 1, per: day}}
`)
	send := func(n int, secret, body, reason string) {
		t.Helper()
		for range n {
			require.Equal(t, reason, w.problemOf(w.send("POST", chatPath, body, "Authorization", "Bearer "+secret)).Tollgate.Reason)
		}
	}
	require.Equal(t, 200, w.chat(`,"user":"ada"`).StatusCode)
	send(3, callerSecret, chatBody(`,"user":"ada"`), "RPM_LIMIT")
	require.Equal(t, 200, w.chat("").StatusCode)
	send(4, callerSecret, chatBody(""), "APP_QUOTA")
	send(1, callerSecret, chatBody(`,"user":"ada"`), "APP_QUOTA") // over both: counted at the wider one, as the answer says
	send(2, callerSecret, `{"model":"fast","messages":[]}`, "REQUEST_TOO_LARGE")
	send(2, callerSecret, `{"model":"unpriced","messages":[]}`, "UNPRICED_MODEL")
	send(2, callerSecret, `{"model":"x","messages":[]}`, "UNKNOWN_MODEL")
	send(1, "tg-expired", chatBody(""), "EXPIRED_KEY")
	send(5, "tg-nobody", chatBody(""), "UNKNOWN_KEY")
	send(5, callerSecret, "{", "BAD_REQUEST")
	require.NoError(t, w.redis.Del(t.Context(), w.redis.Keys(t.Context(), "*mark*").Val()...).Err())
	send(1, callerSecret, chatBody(""), "REBUILDING")
	require.NoError(t, w.stop())

	got, err := w.refusedEvents()
	require.NoError(t, err)
	kind := func(layer ledger.Tier, reason ledger.Reason, limit, subject, app string) event.RefusalCount {
		return event.RefusalCount{Layer: layer, Reason: reason, Limit: limit, Subject: subject, App: app, Endpoint: chatPath}
	}
	require.Equal(t, map[event.RefusalCount]int64{
		kind(ledger.TierUser, ledger.ReasonRPMLimit, "ada-rpm", "user:checkout/ada?user=ada", app):  3,
		kind(ledger.TierApp, ledger.ReasonAppQuota, "app-total", "app:checkout", app):               5,
		kind(ledger.TierKey, ledger.ReasonRequestTooLarge, "tiny", "key:k_1?model=fast", app):       2,
		kind(ledger.TierApp, ledger.ReasonUnpricedModel, "usd", "app:checkout?model=unpriced", app): 2,
		kind("", ledger.ReasonUnknownModel, "", "", app):                                            2,
		kind("", ledger.ReasonExpiredKey, "", "", "batch"):                                          1,
		kind("", ledger.ReasonRebuilding, "", "", app):                                              1,
	}, got)
}

// Refusals come on record while the gateway runs, not only when it stops.
func TestRefusalsAreRecordedEveryWhile(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, plain)
	require.Equal(t, 404, w.send("POST", chatPath, `{"model":"x","messages":[]}`).StatusCode)
	stack.Eventually(t, func() error {
		got, err := w.refusedEvents()
		if err == nil && len(got) != 1 {
			err = errors.New("nothing is on record")
		}
		return err
	})
}

func BenchmarkRefusal(b *testing.B) {
	r := newRefusals(noon)
	kind := event.RefusalCount{Layer: ledger.TierApp, Reason: ledger.ReasonAppQuota, Limit: "app-day", Subject: "app:checkout", App: app, Endpoint: chatPath}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r.add(noon, kind)
		}
	})
}
