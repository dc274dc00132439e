package bench

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

//go:embed limits.yaml
var limitsPolicy []byte

// What is sent: requests of 800 tokens against 50,000 a minute, so 62 fit.
const (
	limitsTokens  = 800
	limitsRate    = 300 // a second, for each limit
	limitsClients = 200
	limitsMost    = 62
)

// Minute is how one limit on a minute's tokens did.
type Minute struct {
	Algorithm string `json:"algorithm"`
	Sent      int    `json:"sent"`
	Passed    int    `json:"passed"`
	// Most is the largest number of requests decided on within any minute, by Redis's clock; AtProvider is the same by the
	// clock of who served them, who sees what the way there has squeezed together.
	Most       int `json:"most_in_any_minute"`
	AtProvider int `json:"most_in_any_minute_at_provider"`
}

// Bursts is how a bucket did under 50 requests within a second, twice, with ten seconds between.
type Bursts struct {
	Passed     [2]int `json:"passed"`
	Arithmetic [2]int `json:"arithmetic"` // by the instants at which the requests were sent
}

// Limits is a run of RunLimits.
type Limits struct {
	Length  time.Duration `json:"duration_ns"`
	Minutes []Minute      `json:"minutes"`
	Bursts  Bursts        `json:"bursts"`
}

// RunLimits holds the limits to a real minute: 200 clients send 300 requests a second against each. It errors when the system
// cannot be run or the ledger is broken afterwards; figures are for the reader to judge.
func RunLimits(ctx context.Context, length time.Duration, out io.Writer) (result *Limits, err error) {
	if length < time.Second || length > time.Hour {
		return nil, fmt.Errorf("--duration: from 1s to 1h, not %s", length)
	}
	fmt.Fprintln(out, "starting Postgres, Redis, NATS, simulator, settler and gateway …")
	// What passes must not depend on how busy this machine is.
	s, err := start(ctx, Options{Apps: 4, Keys: 4, Env: []string{"TOLLGATE_LIMITER_TIMEOUT=10s"}}, limitsPolicy, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop(ctx)) }()
	// What is used is what was held: the simulator counts.
	if err := errors.Join(call(ctx, http.MethodPost, "http://"+s.sim+"/sim/control", "{}"), s.warmApps(ctx, func(c caller) []byte { return embeddingRequest(s.gateway, c, 1) })); err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "sending %d requests a second against each of three limits for %s …\n", limitsRate, length)
	result = &Limits{Length: length}
	var sent [3][]shot
	var group errgroup.Group
	for i := range sent {
		group.Go(func() error {
			text := embeddingRequest(s.gateway, s.callers[i], limitsTokens)
			sent[i] = stream{s.gateway, text, limitsClients, limitsRate}.run(ctx, length)
			_, err := count(sent[i], http.StatusOK)
			return err
		})
	}
	group.Go(func() (err error) {
		result.Bursts, err = s.bursts(ctx)
		return err
	})
	if err := errors.Join(group.Wait(), context.Cause(ctx), s.quiet(ctx)); err != nil {
		return result, err
	}
	for i, algorithm := range []string{"sliding_log", "sliding_counter", "token_bucket"} {
		m := Minute{Algorithm: algorithm, Sent: len(sent[i])}
		m.Passed, _ = count(sent[i], http.StatusOK)
		if m.Most, m.AtProvider, err = s.most(ctx, fmt.Sprint("app-", i), time.Minute); err != nil {
			return result, err
		}
		result.Minutes = append(result.Minutes, m)
	}
	return result, s.verify(ctx)
}

// embeddingRequest is a request for the embedding of token ids: it holds and uses exactly so many tokens.
func embeddingRequest(host string, c caller, tokens int) []byte {
	body := fmt.Sprintf(`{"model":"text-embedding-3-small","user":%q,"input":[%s1]}`, c.user, strings.Repeat("1,", tokens-1))
	return fmt.Appendf(nil, "POST /v1/embeddings HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nUser-Agent: tollgate-bench\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", host, c.key, len(body), body)
}

// bursts sends 50 requests within a second, waits ten, and sends 50 more.
func (s *system) bursts(ctx context.Context) (b Bursts, err error) {
	const perMinute, holds = 120, 30
	text := embeddingRequest(s.gateway, s.callers[3], 1)
	if !sleepUntil(ctx, time.Now().Add(time.Second)) { // for what warming took
		return b, context.Cause(ctx)
	}
	level, last := float64(holds), time.Time{}
	for half := range b.Passed {
		start := time.Now()
		shots := stream{s.gateway, text, 8, 50}.run(ctx, time.Second)
		if b.Passed[half], err = count(shots, http.StatusOK); err != nil {
			return b, err
		}
		slices.SortFunc(shots, func(a, b shot) int { return cmp.Compare(a.due, b.due) })
		for _, sent := range shots {
			at := start.Add(sent.due)
			if !last.IsZero() && at.After(last) {
				level = min(holds, level+at.Sub(last).Minutes()*perMinute)
			}
			last = at
			if level >= 1 {
				level--
				b.Arithmetic[half]++
			}
		}
		if half == 0 && !sleepUntil(ctx, time.Now().Add(10*time.Second)) {
			return b, context.Cause(ctx)
		}
	}
	return b, nil
}

// most is the largest number of requests of the app within any window, as decided and as received by the provider.
func (s *system) most(ctx context.Context, app string, window time.Duration) (decided, received int, err error) {
	conn, err := pgx.Connect(ctx, s.databaseURL)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	const query = `SELECT occurred_at, request_id FROM finance.requests WHERE app = $1 AND charged_tokens = $2`
	rows, err := conn.Query(ctx, query, app, limitsTokens)
	if err != nil {
		return 0, 0, err
	}
	ids := map[string]bool{}
	var at time.Time
	var id string
	var instants []time.Time
	if _, err := pgx.ForEachRow(rows, []any{&at, &id}, func() error {
		instants, ids[id] = append(instants, at), true
		return nil
	}); err != nil {
		return 0, 0, err
	}
	books, err := s.books(ctx)
	if err != nil {
		return 0, 0, err
	}
	var there []time.Time
	for _, b := range books {
		if ids[b.TollgateRequestID] {
			there = append(there, b.ReceivedAt)
		}
	}
	return mostWithin(instants, window), mostWithin(there, window), nil
}

// mostWithin is the largest number of instants in any one window, its end left out.
func mostWithin(instants []time.Time, window time.Duration) int {
	slices.SortFunc(instants, time.Time.Compare)
	most, first := 0, 0
	for i, at := range instants {
		for !instants[first].Add(window).After(at) {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// Print writes the table for people.
func (r *Limits) Print(out io.Writer) error {
	fmt.Fprintf(out, "\n%d clients send %d requests of %d tokens a second against 50,000 tokens a minute, for %s: %d fit a minute.\n\n",
		limitsClients, limitsRate, limitsTokens, r.Length, limitsMost)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "algorithm\tsent\tpassed\tmost in any minute\tas the provider received them\t")
	for _, m := range r.Minutes {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t\n", m.Algorithm, m.Sent, m.Passed, m.Most, m.AtProvider)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\na bucket of 30 with 120 a minute, 50 requests within a second, 10 s idle, 50 more: %d and %d passed, by its arithmetic %d and %d\n",
		r.Bursts.Passed[0], r.Bursts.Passed[1], r.Bursts.Arithmetic[0], r.Bursts.Arithmetic[1])
	return nil
}
