package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger/event"
	"tollgate/lua"
)

// Line is one invariant with its figure.
type Line struct {
	Name    string
	Figure  string
	Problem string // "" when the invariant holds
}

// Check waits until nothing is in flight and every invariant holds, then prints a line for each. When time runs out it fails
// the test with what does not hold. Steps of the caller are looked at with the system's own.
func (s *System) Check(more ...func(context.Context) ([]Line, error)) {
	s.t.Helper()
	// The books are read only once the rest is quiet.
	steps := append([]func(context.Context) ([]Line, error){s.checkQuiet, s.checkCounters, s.checkBooks}, more...)
	// Reservations whose outcome was lost must expire first.
	deadline := time.Now().Add(Patience + min(s.options.TTL, time.Minute))
	var lines []Line
	var problem, before error // what is wrong, and what was before it became that
	for {
		last := problem
		lines, problem = lines[:0], nil
		for _, step := range steps {
			found, err := s.step(step)
			lines = append(lines, found...)
			if problem = errors.Join(err, problemsOf(found)); problem != nil {
				break
			}
		}
		if problem == nil {
			break
		}
		if last != nil && last.Error() != problem.Error() {
			before = last
		}
		if time.Now().After(deadline) {
			s.print(lines)
			require.NoError(s.t, problem, "the system did not come to rest in order; before that it was: %v", before)
		}
		time.Sleep(100 * time.Millisecond)
	}
	verify, err := s.TryCLI("ledger", "verify")
	s.print(lines)
	s.t.Log("ledger verify:\n" + verify)
	require.NoError(s.t, err)
}

func (s *System) step(step func(context.Context) ([]Line, error)) ([]Line, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), Patience)
	defer cancel()
	return step(ctx)
}

func problemsOf(lines []Line) error {
	var problems []error
	for _, l := range lines {
		if l.Problem != "" {
			problems = append(problems, fmt.Errorf("%s: %s", l.Name, l.Problem))
		}
	}
	return errors.Join(problems...)
}

func (s *System) print(lines []Line) {
	var b strings.Builder
	for _, l := range lines {
		verdict := "ok"
		if l.Problem != "" {
			verdict = "BROKEN " + l.Problem
		}
		fmt.Fprintf(&b, "%-42s %-60s %s\n", l.Name, l.Figure, verdict)
	}
	s.t.Log("invariants:\n" + b.String())
}

// zero is a line whose figure must be 0.
func zero(name string, n int64) Line {
	l := Line{Name: name, Figure: strconv.FormatInt(n, 10)}
	if n != 0 {
		l.Problem = "must be 0"
	}
	return l
}

// checkQuiet is about what is in flight: outboxes, the stream, reservations, and a Redis that nobody has noticed is another one.
func (s *System) checkQuiet(ctx context.Context) ([]Line, error) {
	var spooled int64
	for _, g := range s.Gateways {
		select {
		case <-g.Done():
			continue // not running: its outbox waits for its next start
		default:
		}
		n, err := s.Metric(ctx, g, "tollgate_spool_events")
		if err != nil {
			return nil, err
		}
		spooled += int64(n)
	}
	consumer, err := s.JetStream.Consumer(ctx, event.Stream, "settler")
	if err != nil {
		return nil, fmt.Errorf("the settlers' consumer: %w", err)
	}
	info := consumer.CachedInfo()
	var pending, gaps, parked int64
	const counts = `
SELECT (SELECT count(*) FROM reservations WHERE state = 'pending'),
    (SELECT coalesce(sum(upper(hole) - lower(hole)), 0)::bigint
     FROM producers p, unnest(int8multirange(int8range(1, upper(p.seen))) - p.seen) AS hole),
    (SELECT count(*) FROM parked_events)`
	if err := s.Pool.QueryRow(ctx, counts).Scan(&pending, &gaps, &parked); err != nil {
		return nil, err
	}
	held, err := s.heldReservations(ctx)
	if err != nil {
		return nil, err
	}
	unnoticed, err := s.unnoticedRedis(ctx)
	if err != nil {
		return nil, err
	}
	return []Line{
		zero("I8 events waiting in outboxes", spooled),
		zero("I8 events waiting on the stream", int64(info.NumPending)+int64(info.NumAckPending)),
		zero("I8 gaps in gateways' sequences", gaps),
		zero("I8 events parked", parked),
		zero("I3 reservations pending in the ledger", pending),
		zero("I3 reservations held in Redis", held),
		zero("I1 failovers of Redis not noticed yet", unnoticed),
	}, nil
}

// unnoticedRedis is 1 while another Redis answers than the one that the marks were written to.
func (s *System) unnoticedRedis(ctx context.Context) (int64, error) {
	control, err := s.JetStream.KeyValue(ctx, event.ControlBucket)
	if err != nil {
		return 0, fmt.Errorf("bucket %s: %w", event.ControlBucket, err)
	}
	rebuilt, err := control.Get(ctx, event.RebuiltKey)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", event.RebuiltKey, err)
	}
	_, marked, _ := strings.Cut(string(rebuilt.Value()), " ")
	present, err := lua.New(s.RedisClient).Identity(ctx)
	if err != nil || present == marked {
		return 0, err
	}
	return 1, nil
}

// checkCounters compares Redis with the ledger's budgets.
func (s *System) checkCounters(ctx context.Context) ([]Line, error) {
	counters, err := s.Counters(ctx)
	if err != nil {
		return nil, err
	}
	const budgets = `
SELECT app, period, subject, CASE WHEN period = 'total' THEN 0 ELSE extract(epoch FROM window_start)::bigint END,
    requests, tokens, nanousd, version, window_end IS NULL OR window_end > now()
FROM budgets`
	rows, err := s.Pool.Query(ctx, budgets)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var problems []string
	known, live := map[CounterKey]bool{}, 0
	for rows.Next() {
		var k CounterKey
		var want Counter
		var alive bool
		if err := rows.Scan(&k.App, &k.Period, &k.Subject, &k.Start, &want.Used[0], &want.Used[1], &want.Used[2], &want.Version, &alive); err != nil {
			return nil, err
		}
		known[k] = true
		got, there := counters[k]
		switch {
		case there && (got.Used != want.Used || got.Version != want.Version):
			problems = append(problems, fmt.Sprintf("%+v: Redis %+v, ledger %+v", k, got, want))
		case !there && alive && want.Used != [3]int64{}:
			problems = append(problems, fmt.Sprintf("%+v: missing in Redis, ledger %+v", k, want))
		}
		if alive {
			live++
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	var held int64
	for k, c := range counters {
		held += c.Held[0] + c.Held[1] + c.Held[2]
		if !known[k] && c.Used != [3]int64{} {
			problems = append(problems, fmt.Sprintf("%+v: used in Redis, unknown to the ledger: %+v", k, c))
		}
	}
	var unbalanced int64
	if err := s.Pool.QueryRow(ctx, `SELECT abs(coalesce(sum(balance_usd), 0) * 1000000000)::bigint FROM finance.trial_balance`).Scan(&unbalanced); err != nil {
		return nil, err
	}
	slices.Sort(problems)
	return []Line{
		zero("I3 amounts held in Redis", held),
		{
			Name: "I5 counters in Redis = budgets", Problem: strings.Join(problems, "; "),
			Figure: fmt.Sprintf("%d in Redis, %d in the ledger, %d of a running window", len(counters), len(known), live),
		},
		zero("I6 debits - credits (nano-dollars)", unbalanced),
	}, nil
}

var metricLine = regexp.MustCompile(`(?m)^([a-z_]+)(?:\{([^}]*)\})? (\S+)$`)

// Metric is the sum of a metric's series of one part. It is safe for concurrent use.
func (s *System) Metric(ctx context.Context, p *Part, name string) (sum float64, err error) {
	series, err := s.Series(ctx, p, name)
	for _, value := range series {
		sum += value
	}
	return sum, err
}

// Series are a metric's series of one part by their labels, as in `result="open"`. It is safe for concurrent use.
func (s *System) Series(ctx context.Context, p *Part, name string) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Admin+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	res, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return nil, err
	}
	series := map[string]float64{}
	for _, match := range metricLine.FindAllStringSubmatch(string(body), -1) {
		if match[1] != name {
			continue
		}
		if series[match[2]], err = strconv.ParseFloat(match[3], 64); err != nil {
			return nil, fmt.Errorf("metric %s: %w", name, err)
		}
	}
	if len(series) == 0 {
		return nil, fmt.Errorf("%s has no metric %s", p.Name, name)
	}
	return series, nil
}
