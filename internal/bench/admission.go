package bench

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"

	"tollgate/gateway/admission"
	"tollgate/lua"
)

//go:embed admission.yaml
var admissionPolicy []byte

// What is measured, in this order.
const (
	callNothing  = "no-op script" // one EVALSHA that does nothing: the floor
	callAdmitted = "admitted"
	callRefused  = "refused last" // by the last of all limits, the others have room
	callLocal    = "without Redis"
)

// Calls is how one kind of call went from so many callers at once.
type Calls struct {
	What    string  `json:"what"`
	Callers int     `json:"callers"`
	Number  int     `json:"calls"`
	Rate    float64 `json:"calls_per_second"`
	Took    Spread  `json:"took_ms"`

	all    []time.Duration
	length time.Duration
}

// Decisions is a run of Admission.
type Decisions struct {
	Calls []Calls `json:"calls"`
	// Requests a second through gateway, events and all, judged in Redis and in the gateway alone.
	WithRedis    float64 `json:"requests_per_second"`
	WithoutRedis float64 `json:"requests_per_second_without_redis"`
	Foreign      float64 `json:"foreign_cores"`
}

// AdmissionOptions of Admission.
type AdmissionOptions struct {
	Callers []int         // at once
	Slice   time.Duration // of one kind of call, in turn with the others
	Rounds  int
}

// Validate joins every problem, each with its flag's name.
func (o AdmissionOptions) Validate() error {
	var problems []error
	for _, n := range o.Callers {
		if n < 1 || n > 1024 {
			problems = append(problems, fmt.Errorf("--callers: from 1 to 1024, not %d", n))
		}
	}
	if len(o.Callers) == 0 {
		problems = append(problems, errors.New("--callers: none"))
	}
	if o.Slice <= 0 || o.Slice > time.Minute {
		problems = append(problems, fmt.Errorf("--slice: above zero and at most 1m, not %s", o.Slice))
	}
	if o.Rounds < 1 || o.Rounds > 100 {
		problems = append(problems, fmt.Errorf("--rounds: from 1 to 100, not %d", o.Rounds))
	}
	return errors.Join(problems...)
}

// Admission measures what a decision takes: the gateway's own code in this process against Redis over loopback, beside a script
// that does nothing, with the kinds of call in turn so that a noisy machine hits them alike; and then whole requests through
// gateways with and without Redis. It errors when a call fails or is decided otherwise than it should be.
func Admission(ctx context.Context, o AdmissionOptions, out io.Writer) (result *Decisions, err error) {
	fmt.Fprintln(out, "starting Postgres, Redis, NATS, simulator, settler and gateway …")
	options := Options{Apps: 4, Keys: 16}
	s, err := start(ctx, options, admissionPolicy, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop(ctx)) }()
	bench, err := s.admissionBench(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bench.close()) }()
	result = &Decisions{}
	before, err := take(s.pids)
	if err != nil {
		return nil, err
	}
	for _, n := range o.Callers {
		calls, err := bench.round(ctx, n, o)
		if err != nil {
			return result, err
		}
		result.Calls = append(result.Calls, calls...)
		fmt.Fprintf(out, "%d callers done\n", n)
	}
	after, err := take(s.pids)
	if err != nil {
		return result, err
	}
	result.Foreign = after.foreign(before)
	return result, s.wholeRequests(ctx, options, o, result)
}

// admissionBench has what the calls are made of.
type admissionBench struct {
	redis   *redis.Client
	nothing string // hash of the script that does nothing
	desk    *desk
	alone   *desk // its Redis is not there
	callers []caller
	bodies  [][]byte

	mu       sync.Mutex // guards admitted
	admitted map[string][]*admission.Verdict
}

// nowhere is where no Redis listens.
const nowhere = "redis://127.0.0.1:1/0"

func (s *system) admissionBench(ctx context.Context) (b *admissionBench, err error) {
	b = &admissionBench{callers: s.callers, admitted: map[string][]*admission.Verdict{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	for _, c := range b.callers {
		b.bodies = append(b.bodies, bodyOf(c))
	}
	if b.redis, err = lua.Connect(s.redisURL, lua.Options{Timeout: 10 * time.Second, PoolSize: 64}); err != nil {
		return b, err
	}
	if b.nothing, err = b.redis.ScriptLoad(ctx, "return 1").Result(); err != nil {
		return b, err
	}
	if b.desk, err = s.openDesk(ctx, s.redisURL, slog.Default()); err != nil {
		return b, err
	}
	if b.alone, err = s.openDesk(ctx, nowhere, slog.New(slog.DiscardHandler)); err != nil {
		return b, err
	}
	// The first of each app waits until its counters are there, and the first of the user with one request is admitted.
	for i := range b.callers {
		if err := errors.Join(b.admit(ctx, b.desk, i), b.admit(ctx, b.alone, i)); err != nil {
			return b, err
		}
		if _, err := b.desk.decide(ctx, b.spent(i), b.bodies[i]); err != nil {
			return b, err
		}
	}
	return b, nil
}

func (b *admissionBench) close() error {
	var problems []error
	for _, d := range []*desk{b.desk, b.alone} {
		if d != nil {
			problems = append(problems, d.close())
		}
	}
	if b.redis != nil {
		problems = append(problems, b.redis.Close())
	}
	return errors.Join(problems...)
}

func (b *admissionBench) spent(i int) caller { return caller{b.callers[i].key, "spent"} }

func (b *admissionBench) admit(ctx context.Context, d *desk, i int) error {
	i %= len(b.callers)
	v, err := d.decide(ctx, b.callers[i], b.bodies[i])
	switch {
	case err != nil:
		return err
	case v.Refusal != nil:
		return fmt.Errorf("refused: %s %s", v.Refusal.Reason, v.Refusal.Message)
	case v.Degraded != (d == b.alone):
		return fmt.Errorf("judged without Redis: %v", v.Degraded)
	}
	d.Finish(v)
	if d == b.desk {
		b.mu.Lock()
		app := fmt.Sprintf("app-%d", i%4)
		b.admitted[app] = append(b.admitted[app], v)
		b.mu.Unlock()
	}
	return nil
}

func (b *admissionBench) refuse(ctx context.Context, i int) error {
	i %= len(b.callers)
	v, err := b.desk.decide(ctx, b.spent(i), b.bodies[i])
	if err == nil && (v.Refusal == nil || v.Refusal.LimitName != "last") {
		err = fmt.Errorf("not refused by the last limit: %+v", v.Refusal)
	}
	return err
}

// round measures every kind of call from so many callers.
func (b *admissionBench) round(ctx context.Context, callers int, o AdmissionOptions) ([]Calls, error) {
	kinds := []struct {
		what string
		call func(i int) error
	}{
		{callNothing, func(int) error { return b.redis.EvalSha(ctx, b.nothing, nil).Err() }},
		{callAdmitted, func(i int) error { return b.admit(ctx, b.desk, i) }},
		{callRefused, func(i int) error { return b.refuse(ctx, i) }},
		{callLocal, func(i int) error { return b.admit(ctx, b.alone, i) }},
	}
	all := make([]Calls, len(kinds))
	for range o.Rounds {
		for i, k := range kinds {
			start := time.Now()
			took, err := timed(ctx, callers, o.Slice, k.call)
			if err != nil {
				return nil, fmt.Errorf("%s from %d callers: %w", k.what, callers, err)
			}
			all[i].What, all[i].Callers = k.what, callers
			all[i].all, all[i].length = append(all[i].all, took...), all[i].length+time.Since(start)
			if err := b.settle(ctx); err != nil {
				return nil, err
			}
		}
	}
	for i := range all {
		c := &all[i]
		c.Number, c.Rate, c.Took = len(c.all), float64(len(c.all))/c.length.Seconds(), spread(c.all)
	}
	return all, nil
}

// settle gives back what was admitted, between the measurements.
func (b *admissionBench) settle(ctx context.Context) error {
	for app, admitted := range b.admitted {
		if err := b.desk.settle(ctx, app, admitted); err != nil {
			return err
		}
		delete(b.admitted, app)
	}
	return nil
}

// wholeRequests compares gateways that judge in Redis and alone, by what 64 connections get through each in turn.
func (s *system) wholeRequests(ctx context.Context, options Options, o AdmissionOptions, result *Decisions) error {
	alone, err := s.addGateway(ctx, options, "gateway-alone", nowhere)
	if err != nil {
		return err
	}
	l := Load{Connections: 64}
	var total [2]int
	for round := range o.Rounds + 1 {
		for i, address := range []string{s.gateway, alone} {
			operations, err := run(ctx, address, s.callers, l, o.Slice)
			switch {
			case round == 0 && ctx.Err() == nil: // the first requests find counters that are still being rebuilt
			case err != nil:
				return err
			default:
				total[i] += len(operations)
			}
			if err := s.quiet(ctx); err != nil {
				return err
			}
		}
	}
	seconds := o.Slice.Seconds() * float64(o.Rounds)
	result.WithRedis, result.WithoutRedis = float64(total[0])/seconds, float64(total[1])/seconds
	return s.verify(ctx)
}

// of finds a kind of call.
func (r *Decisions) of(what string, callers int) *Calls {
	for i := range r.Calls {
		if c := &r.Calls[i]; c.What == what && c.Callers == callers {
			return c
		}
	}
	return nil
}

// Print writes the table for people.
func (r *Decisions) Print(out io.Writer) error {
	fmt.Fprintf(out, "\nIdentify, read, estimate and judge 4 tiers × (day + month), requests and tokens a minute, and requests in flight, in one\n"+
		"process with Redis on loopback. Times in ms; × is against the script that does nothing. Others used %.2f cores meanwhile.\n\n", r.Foreign)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "callers\twhat\tcalls/s\tp50\tp99\t×p50\t×p99\t")
	for i := range r.Calls {
		c := &r.Calls[i]
		floor := r.of(callNothing, c.Callers)
		fmt.Fprintf(t, "%d\t%s\t%.0f\t%.3f\t%.3f\t%.2f\t%.2f\t\n", c.Callers, c.What, c.Rate, c.Took.P50, c.Took.P99,
			c.Took.P50/floor.Took.P50, c.Took.P99/floor.Took.P99)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for i := range r.Calls {
		if c := &r.Calls[i]; c.What == callAdmitted {
			refused, local := r.of(callRefused, c.Callers), r.of(callLocal, c.Callers)
			fmt.Fprintf(out, "%d callers: refused by the last limit / admitted, p99 %.2f; admitted in Redis / in the gateway alone, calls a second %.2f\n",
				c.Callers, refused.Took.P99/c.Took.P99, c.Rate/local.Rate)
		}
	}
	if r.WithoutRedis > 0 {
		fmt.Fprintf(out, "whole requests through a gateway: %.0f/s judged in Redis, %.0f/s in the gateway alone, ratio %.2f\n",
			r.WithRedis, r.WithoutRedis, r.WithRedis/r.WithoutRedis)
	}
	return nil
}
