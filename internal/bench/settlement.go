package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"tollgate/ledger/event"
	"tollgate/lua"
)

// SettleOptions of RunSettle.
type SettleOptions struct {
	Events   int      // on the stream, two a request
	Settlers []int    // processes; a round for each number
	Env      []string // NAME=VALUE, more environment for the settlers
	Profile  string   // folder for processor profiles of the first settler; "" for none
}

// Validate joins every problem, each with its flag's name.
func (o SettleOptions) Validate() error {
	var problems []error
	if o.Events < 2000 || o.Events > 2_000_000 {
		problems = append(problems, fmt.Errorf("--events: from 2000 to 2000000, not %d", o.Events))
	}
	if len(o.Settlers) == 0 || slices.Min(o.Settlers) < 1 || slices.Max(o.Settlers) > 8 {
		problems = append(problems, errors.New("--settlers: must be numbers from 1 to 8"))
	}
	return errors.Join(problems...)
}

// Sample is how far a round had come.
type Sample struct {
	After   time.Duration `json:"after_ns"`
	Settled int           `json:"settled"`
}

// SettleRound is one way of emptying the stream.
type SettleRound struct {
	What    string  `json:"what"`
	Rate    float64 `json:"events_per_second"`
	Bare    bool    `json:"bare"` // one of the two that settlement is held against
	Settled bool    `json:"settled"`
	// CPU is processor time an event by part, in microseconds; that of all settlers is one.
	CPU     map[string]float64 `json:"cpu_us"`
	Foreign float64            `json:"foreign_cores"`
	Samples []Sample           `json:"samples,omitempty"`
}

// Settlement is a run of RunSettle. Its rounds are settlers side by side, a client that takes every event off the stream and
// acknowledges it, and Postgres taking the rows that the events become: into tables without keys, and into such as the ledger's.
type Settlement struct {
	Started time.Time     `json:"started"`
	Cores   int           `json:"cores"`
	Go      string        `json:"go"`
	Events  int           `json:"events"`
	Bytes   int           `json:"bytes_per_event"`
	Rounds  []SettleRound `json:"rounds"`
}

// Of settlers that are measured: they are held at the gate while the stream is filled, and what they have taken before must not
// come again; and there are no gateways to wait for.
var settlerEnv = []string{"TOLLGATE_SETTLER_ACK_WAIT=2m", "TOLLGATE_SETTLER_PRESENCE_WAIT=0s"}

// RunSettle fills a stream and measures how fast settlers empty it into Postgres and Redis, each round with a ledger of its own,
// beside what the stream and Postgres can do at most. It errors when an event is not settled or the ledger breaks an invariant.
func RunSettle(ctx context.Context, o SettleOptions, out io.Writer) (result *Settlement, err error) {
	b, err := newBacklog(o.Events / eventsPerRequest)
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(out, "starting Postgres, Redis and NATS …")
	s, err := startSteps(ctx, Options{}, nil, servers)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop(ctx)) }()
	result = &Settlement{
		Started: time.Now().UTC(), Cores: runtime.NumCPU(), Go: runtime.Version(), Events: len(b.messages), Bytes: b.bytes(),
	}
	run := settleRun{system: s, backlog: b, options: Options{Env: slices.Concat(settlerEnv, o.Env), Profile: o.Profile}}
	rounds := []func() (SettleRound, error){
		func() (SettleRound, error) { return run.round(ctx, 0, o.Settlers[0]) },
		func() (SettleRound, error) { return s.bareConsume(ctx, len(b.messages)) },
		func() (SettleRound, error) { return s.bareCopy(ctx, len(b.messages), false) },
		func() (SettleRound, error) { return s.bareCopy(ctx, len(b.messages), true) },
	}
	for i, settlers := range o.Settlers[1:] {
		rounds = append(rounds, func() (SettleRound, error) { return run.round(ctx, i+1, settlers) })
	}
	for _, round := range rounds {
		r, err := round()
		if err != nil {
			return result, fmt.Errorf("%s: %w", r.What, err)
		}
		fmt.Fprintf(out, "%s: %.0f events/s\n", r.What, r.Rate)
		result.Rounds = append(result.Rounds, r)
	}
	return result, nil
}

// newRound is what was done with so many events since the snapshot.
func (s *system) newRound(what string, events int, took time.Duration, before snapshot) (SettleRound, error) {
	r := SettleRound{What: what, Rate: float64(events) / took.Seconds(), CPU: map[string]float64{}}
	after, err := take(s.pids)
	if err != nil {
		return r, err
	}
	r.Foreign = after.foreign(before)
	for part, cpu := range after.used(before) {
		if strings.HasPrefix(part, partSettler) {
			part = partSettler
		}
		r.CPU[part] += float64(cpu.Nanoseconds()) / 1000 / float64(events)
	}
	return r, nil
}

// settleRun is a backlog and the system that settles it.
type settleRun struct {
	*system
	backlog *backlog
	options Options
}

// round has so many settlers settle the backlog into an empty ledger.
func (r *settleRun) round(ctx context.Context, i, settlers int) (round SettleRound, err error) {
	round.What = fmt.Sprintf("settlers: %d", settlers)
	if i > 0 {
		if err := r.openLedger(ctx, fmt.Sprintf("round_%d", i+1)); err != nil {
			return round, err
		}
	}
	client, err := lua.Connect(r.redisURL, lua.Options{Timeout: 10 * time.Second})
	if err != nil {
		return round, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	if err := client.FlushAll(ctx).Err(); err != nil {
		return round, err
	}
	parts, err := r.startSettlers(ctx, settlers, lua.New(client))
	if err != nil {
		return round, err
	}
	defer func() {
		for _, part := range parts {
			err = errors.Join(err, r.end(ctx, part))
		}
	}()
	if round, err = r.empty(ctx, round.What, parts, client); err != nil {
		return round, err
	}
	return round, r.check(ctx)
}

// startSettlers starts settlers on an empty stream and waits until every app may be written back to.
func (r *settleRun) startSettlers(ctx context.Context, n int, scripts *lua.Scripts) ([]string, error) {
	if err := r.js.DeleteStream(ctx, event.Stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("delete stream: %w", err)
	}
	slots := []string{lua.SharedSlot}
	for i := range settleApps {
		if err := r.store.CreateApp(ctx, settleApp(i), ""); err != nil {
			return nil, err
		}
		slots = append(slots, settleApp(i))
	}
	var parts []string
	for i := range n {
		part := partSettler
		if i > 0 {
			part = fmt.Sprintf("%s-%d", partSettler, i+1)
		}
		if err := r.addSettler(ctx, r.options, part); err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	for _, slot := range slots {
		err := r.await(ctx, partSettler, func() error {
			_, ok, err := scripts.Mark(ctx, slot)
			if err == nil && !ok {
				err = fmt.Errorf("slot %s is not rebuilt", slot)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// empty fills the stream while settlements are kept out, then lets them in and waits until all is acknowledged.
func (r *settleRun) empty(ctx context.Context, what string, parts []string, client *redis.Client) (round SettleRound, err error) {
	round.What = what
	gate, err := r.store.Rebuilding(ctx)
	if err != nil {
		return round, err
	}
	if err := r.fill(ctx, client); err != nil {
		gate.Close(ctx)
		return round, err
	}
	before, err := take(r.pids)
	if err != nil {
		gate.Close(ctx)
		return round, err
	}
	var profiles errgroup.Group
	if address := r.debug[partSettler]; address != "" {
		file := filepath.Join(r.options.Profile, fmt.Sprintf("settle-%d.pprof", len(parts)))
		profiles.Go(func() error { return download(ctx, profileURL(address, 5*time.Second), file) })
	}
	start := time.Now()
	gate.Close(ctx)
	samples, err := r.awaitEmpty(ctx, consumerName, start)
	if err = errors.Join(err, profiles.Wait()); err != nil {
		return round, err
	}
	round, err = r.newRound(what, len(r.backlog.messages), samples[len(samples)-1].After, before)
	round.Settled, round.Samples = true, samples
	return round, err
}

// fill brings the stream and Redis to where gateways would have left them, and has every server write what it owes for that.
func (r *settleRun) fill(ctx context.Context, client *redis.Client) error {
	scripts := lua.New(client)
	for app, opens := range r.backlog.opens {
		if _, err := scripts.Settle(ctx, app, nil, opens, nil); err != nil {
			return err
		}
	}
	if err := r.backlog.publish(ctx, r.nc); err != nil {
		return err
	}
	if err := rewriteLog(ctx, client); err != nil {
		return err
	}
	return r.checkpoint(ctx)
}

// rewriteLog has Redis shorten its log now. It would else begin in the middle of a measurement, because of the reservations of the
// whole backlog, which are never open at once anywhere else.
func rewriteLog(ctx context.Context, client *redis.Client) error {
	if err := client.BgRewriteAOF(ctx).Err(); err != nil {
		return fmt.Errorf("shorten Redis's log: %w", err)
	}
	for {
		info, err := client.InfoMap(ctx, "persistence").Result()
		if err != nil {
			return fmt.Errorf("shorten Redis's log: %w", err)
		}
		if p := info["Persistence"]; p["aof_rewrite_in_progress"] == "0" && p["aof_rewrite_scheduled"] == "0" {
			return nil
		}
		if !sleepUntil(ctx, time.Now().Add(20*time.Millisecond)) {
			return context.Cause(ctx)
		}
	}
}

// awaitEmpty waits until a consumer has everything acknowledged, and notes how far it came on the way.
func (s *system) awaitEmpty(ctx context.Context, consumer string, start time.Time) ([]Sample, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, settleLimit, fmt.Errorf("the stream is not empty within %v", settleLimit))
	defer cancel()
	var samples []Sample
	for {
		c, err := s.js.Consumer(ctx, event.Stream, consumer)
		if err != nil {
			return samples, fmt.Errorf("position of consumer %s: %w", consumer, errors.Join(err, context.Cause(ctx)))
		}
		info := c.CachedInfo()
		samples = append(samples, Sample{time.Since(start), int(info.AckFloor.Stream)})
		if info.NumPending == 0 && info.NumAckPending == 0 {
			return samples, nil
		}
		if !sleepUntil(ctx, time.Now().Add(20*time.Millisecond)) {
			return samples, context.Cause(ctx)
		}
	}
}

// check proves that every event is in the ledger and none is parked or left open.
func (r *settleRun) check(ctx context.Context) error {
	held, err := r.store.Held(ctx, "gw-bench")
	if err != nil {
		return err
	}
	if held.Through != uint64(len(r.backlog.messages)) || len(held.Missing) > 0 {
		return fmt.Errorf("of %d events the ledger has %+v", len(r.backlog.messages), held)
	}
	return r.verify(ctx)
}
