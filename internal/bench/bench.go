package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"time"
)

// Options of Gateway.
type Options struct {
	Duration    time.Duration   // of each point, after the warm-up
	Warmup      time.Duration   // of each point
	Connections []int           // side by side
	Upstream    []time.Duration // the provider's waits
	Modes       []bool          // streamed or not
	Apps, Keys  int             // that the connections speak for, in turn
	Env         []string        // NAME=VALUE, more environment for gateway and settler
	Raw         string          // file for every single request, gzipped CSV; "" for none
	Profile     string          // folder for processor profiles; "" for none
}

// Validate joins every problem, each with its flag's name.
func (o Options) Validate() error {
	var problems []error
	if o.Duration <= 0 || o.Duration > 5*time.Minute {
		problems = append(problems, fmt.Errorf("--duration: must be above zero and at most 5m, not %s", o.Duration))
	}
	if len(o.Connections) == 0 || slices.Min(o.Connections) < 1 || slices.Max(o.Connections) > 1024 {
		problems = append(problems, errors.New("--concurrency: must be numbers from 1 to 1024"))
	}
	if len(o.Upstream) == 0 || slices.Min(o.Upstream) < 0 || slices.Max(o.Upstream) > 10*time.Second {
		problems = append(problems, errors.New("--upstream: must be durations from 0s to 10s"))
	}
	if len(o.Modes) == 0 {
		problems = append(problems, errors.New("--mode: must be plain, streamed or both"))
	}
	if o.Apps < 1 || o.Keys < o.Apps || o.Keys > 1000 {
		problems = append(problems, errors.New("--apps, --keys: at least one app, a key for each, and at most 1000 keys"))
	}
	return errors.Join(problems...)
}

// The targets, in the order in which each load meets them.
const (
	TargetDirect   = "direct"   // the provider alone
	TargetProxy    = "proxy"    // the bare proxy before it
	TargetTollgate = "tollgate" // the gateway before it, with everything behind
)

// Point is one target under one load.
type Point struct {
	Target string `json:"target"`
	Load
	Requests int     `json:"requests"` // measured, after the warm-up
	Failed   int     `json:"failed"`   // of all, warm-up included
	Failure  string  `json:"failure,omitempty"`
	Rate     float64 `json:"requests_per_second"`
	Total    Spread  `json:"total_ms"` // until the last byte
	First    Spread  `json:"first_ms"` // until the first byte
	// CPU is processor time a request by part, in microseconds; Path is the sum of those that the target adds to the provider.
	CPU    map[string]float64 `json:"cpu_us"`
	Path   float64            `json:"path_cpu_us"`
	Memory map[string]Memory  `json:"memory_bytes"`
	// Settling is how long after the load's end the settler needed to settle everything.
	Settling time.Duration `json:"settling_ns,omitempty"`
	Foreign  float64       `json:"foreign_cores"`
	Stolen   float64       `json:"stolen_cores"`
}

// Result is a whole run.
type Result struct {
	Started time.Time     `json:"started"`
	Cores   int           `json:"cores"`
	Go      string        `json:"go"`
	Length  time.Duration `json:"duration_ns"`
	// Idle is what the parts use with nothing to do, in microseconds a second.
	Idle   map[string]float64 `json:"idle_us_per_second"`
	Points []Point            `json:"points"`
}

// path lists the parts that a target adds to the provider.
func path(target string) []string {
	switch target {
	case TargetProxy:
		return []string{partProxy}
	case TargetTollgate:
		return []string{partGateway, partSettler, partRedis, partNATS, partPostgres}
	}
	return nil
}

// Gateway starts every part, measures every point, stops everything and returns what it found, also with an error. Progress goes
// to out. It errors when a part cannot be run, when the ledger breaks an invariant afterwards, or when ctx ends; requests that
// failed are in the points.
func Gateway(ctx context.Context, o Options, out io.Writer) (result *Result, err error) {
	raw, err := openRaw(o.Raw, gatewayHeader)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, raw.close()) }()
	fmt.Fprintln(out, "starting Postgres, Redis, NATS, simulator, proxy, settler and gateway …")
	s, err := start(ctx, o, gatewayPolicy, true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop(ctx)) }()
	result = &Result{Started: time.Now().UTC(), Cores: runtime.NumCPU(), Go: runtime.Version(), Length: o.Duration}
	if err := s.warm(ctx, slices.Max(o.Connections)); err != nil {
		return result, err
	}
	if result.Idle, err = s.idle(ctx); err != nil {
		return result, err
	}
	for _, l := range loads(o) {
		if err := s.setSim(ctx, l.Upstream); err != nil {
			return result, err
		}
		for _, target := range []string{TargetDirect, TargetProxy, TargetTollgate} {
			p, operations, err := s.measure(ctx, target, l, o)
			if err != nil {
				return result, fmt.Errorf("%s, %s: %w", target, l, err)
			}
			fmt.Fprintf(out, "%-9s %s: %.0f requests/s\n", target, l, p.Rate)
			result.Points = append(result.Points, p)
			if err := raw.write(target, l, operations); err != nil {
				return result, err
			}
		}
	}
	if o.Profile != "" {
		if err := s.profile(ctx, o, out); err != nil {
			return result, fmt.Errorf("profile: %w", err)
		}
	}
	return result, s.verify(ctx)
}

func loads(o Options) []Load {
	var all []Load
	for _, streamed := range o.Modes {
		for _, upstream := range o.Upstream {
			for _, n := range o.Connections {
				all = append(all, Load{Streamed: streamed, Upstream: upstream, Connections: n})
			}
		}
	}
	return all
}

// String names the load for people.
func (l Load) String() string {
	kind := "plain"
	if l.Streamed {
		kind = "streamed"
	}
	return fmt.Sprintf("%s, upstream %s, %d connections", kind, l.Upstream, l.Connections)
}

func (s *system) address(target string) string {
	return map[string]string{TargetDirect: s.sim, TargetProxy: s.proxy, TargetTollgate: s.gateway}[target]
}

// warm asks every target until it answers: the first requests of an app find counters that are still being rebuilt.
func (s *system) warm(ctx context.Context, connections int) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for _, target := range []string{TargetDirect, TargetProxy, TargetTollgate} {
		for {
			l := Load{Connections: max(connections, len(s.callers))}
			_, err := run(ctx, s.address(target), s.callers, l, 200*time.Millisecond)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return fmt.Errorf("%s does not answer: %w", target, err)
			}
		}
	}
	return s.quiet(ctx)
}

// quiet waits until the settler has nothing left to do.
func (s *system) quiet(ctx context.Context) error {
	last, err := s.lastEvent(ctx)
	if err != nil {
		return err
	}
	return s.awaitSettled(ctx, last, 0)
}

// idle measures what the parts use while nobody asks anything.
func (s *system) idle(ctx context.Context) (map[string]float64, error) {
	const d = 2 * time.Second
	before, err := take(s.pids)
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(d):
	}
	after, err := take(s.pids)
	if err != nil {
		return nil, err
	}
	idle := map[string]float64{}
	for name, cpu := range after.used(before) {
		idle[name] = float64(cpu.Microseconds()) / d.Seconds()
	}
	return idle, nil
}

// measure runs one point.
func (s *system) measure(ctx context.Context, target string, l Load, o Options) (Point, []operation, error) {
	p := Point{Target: target, Load: l, CPU: map[string]float64{}}
	since, err := s.lastEvent(ctx)
	if err != nil {
		return p, nil, err
	}
	before, err := take(s.pids)
	if err != nil {
		return p, nil, err
	}
	operations, failure := run(ctx, s.address(target), s.callers, l, o.Warmup+o.Duration)
	if ctx.Err() != nil {
		return p, nil, context.Cause(ctx)
	}
	loaded, err := take(s.pids)
	if err != nil {
		return p, nil, err
	}
	ended, settled := loaded, loaded
	if target == TargetTollgate {
		if err := s.awaitSettled(ctx, since, succeeded(operations)); err != nil {
			return p, nil, err
		}
		if settled, err = take(s.pids); err != nil {
			return p, nil, err
		}
		p.Settling = settled.at.Sub(ended.at)
	}
	if failure != nil {
		p.Failure = failure.Error()
	}
	p.summarize(operations, o.Warmup, o.Duration)
	for name, cpu := range settled.used(before) {
		if name == partLoad { // it only waits afterwards
			cpu = loaded.used(before)[name]
		}
		p.CPU[name] = float64(cpu.Nanoseconds()) / 1000 / float64(max(1, len(operations)))
	}
	for _, name := range path(target) {
		p.Path += p.CPU[name]
	}
	p.Foreign, p.Stolen = settled.foreign(before), settled.stolen(before)
	p.Memory, err = memory(s.pids)
	return p, operations, err
}

func succeeded(operations []operation) int {
	n := 0
	for _, op := range operations {
		if !op.failed {
			n++
		}
	}
	return n
}

// summarize fills in what the client saw. A request counts in the rate when it ended within the measured time.
func (p *Point) summarize(operations []operation, warmup, d time.Duration) {
	var total, first []time.Duration
	ended := 0
	for _, op := range operations {
		if op.failed {
			p.Failed++
			continue
		}
		if op.end >= warmup && op.end < warmup+d {
			ended++
		}
		if op.start >= warmup {
			total, first = append(total, op.end-op.start), append(first, op.first-op.start)
		}
	}
	p.Requests, p.Rate = len(total), float64(ended)/d.Seconds()
	p.Total, p.First = spread(total), spread(first)
}

// Spread tells quantiles in milliseconds, 0 of nothing.
type Spread struct {
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99_9"`
	Max  float64 `json:"max"`
}

func spread(values []time.Duration) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	slices.Sort(values)
	at := func(q float64) float64 {
		return float64(values[min(len(values)-1, int(q*float64(len(values))))].Microseconds()) / 1000
	}
	return Spread{P50: at(0.50), P95: at(0.95), P99: at(0.99), P999: at(0.999), Max: at(1)}
}

func sortedParts(m map[string]float64) []string { return slices.Sorted(maps.Keys(m)) }
