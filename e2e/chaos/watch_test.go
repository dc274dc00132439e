package chaos

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tollgate/e2e/system"
	"tollgate/ledger/event"
)

// watch is what was seen in Redis during a run.
type watch struct {
	mu      sync.Mutex // guards what follows
	samples int
	late    int              // of them, in which a budget was above its limit but for what was both used and held
	most    map[string]int64 // subject of a daily budget in requests -> most used + held at an instant
}

// limitOf is what a daily budget in requests allows; false for counters that have none.
func limitOf(k system.CounterKey) (int64, bool) {
	switch {
	case k.Period != "day":
	case k.Subject == "app:"+depot:
		return depotDay, true
	case k.Subject == "app:"+spent:
		return spentDay, true
	case strings.HasPrefix(k.Subject, "user:"):
		return userDay, true
	}
	return 0, false
}

// watch reads Redis from now on until the returned function is called.
func (r *run) watch() (stop func()) {
	r.seen.most = map[string]int64{}
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			counters, err := r.Counters(ctx)
			if err != nil {
				continue // Redis is away: the faults see to that
			}
			r.note(ctx, counters)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	r.t.Cleanup(stop)
	return stop
}

func (r *run) note(ctx context.Context, counters map[system.CounterKey]system.Counter) {
	late := false
	for k, c := range counters {
		limit, limited := limitOf(k)
		if !limited {
			continue
		}
		sum := c.Used[0] + c.Held[0]
		if sum > limit {
			twice := int64(0)
			var err error
			if sum, twice, err = r.lookTwice(ctx, k); err != nil {
				continue // Redis or Postgres is away
			}
			late = late || twice > 0 && sum-twice <= limit
			sum -= twice
		}
		r.seen.mu.Lock()
		r.seen.most[k.Subject] = max(r.seen.most[k.Subject], sum)
		r.seen.mu.Unlock()
	}
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	r.seen.samples++
	if late {
		r.seen.late++
	}
}

// lookTwice reads a counter again, together with the reservations held, and how many of those are settled: until their batch is
// written back they count both as used and as held, when a later batch was faster.
func (r *run) lookTwice(ctx context.Context, k system.CounterKey) (sum, twice int64, err error) {
	slot := fmt.Sprintf("{app:%s}:tg1:", k.App)
	pipe := r.RedisClient.TxPipeline()
	counter := pipe.HMGet(ctx, fmt.Sprintf("%sbudget:%s:%d:%s", slot, k.Period, k.Start, k.Subject), "used_requests", "held_requests")
	held := pipe.ZRange(ctx, slot+"deadlines", 0, -1)
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, 0, err
	}
	for _, value := range counter.Val() {
		if text, ok := value.(string); ok {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return 0, 0, err
			}
			sum += n
		}
	}
	const query = `
SELECT count(*) FROM reservations
WHERE reservation_id = ANY($1) AND state <> 'pending' AND $2 IN ('app:' || app, 'user:' || app || '/' || end_user)`
	err = r.Pool.QueryRow(ctx, query, held.Val(), k.Subject).Scan(&twice)
	return sum, twice, err
}

// sampled holds every sample of I1 against the limits. What was admitted without Redis, or by a Redis that a replica without its
// last writes replaced, may be above them.
func (r *run) sampled(ctx context.Context) ([]system.Line, error) {
	beyond, err := r.beyond(ctx)
	if err != nil {
		return nil, err
	}
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	var problems []string
	nearest, at := int64(1<<62), "none"
	for _, subject := range slices.Sorted(maps.Keys(r.seen.most)) {
		limit, _ := limitOf(system.CounterKey{Period: "day", Subject: subject})
		room := limit + beyond[subject] - r.seen.most[subject]
		if room < nearest {
			nearest, at = room, fmt.Sprintf("%s at most %d of %d", subject, r.seen.most[subject], limit)
		}
		if room < 0 {
			problems = append(problems, fmt.Sprintf("%s had %d of %d, and %d beyond explained", subject, r.seen.most[subject], limit, beyond[subject]))
		}
	}
	return []system.Line{{
		Name: "I1 used + held <= limit, sampled in Redis", Problem: strings.Join(problems, "; "),
		Figure: fmt.Sprintf("%d budgets, %d samples, %d with a late write-back; %s", len(r.seen.most), r.seen.samples, r.seen.late, at),
	}}, nil
}

// beyond is how many requests by subject may have been admitted beyond its limit: without Redis, and what a lost Redis had
// reserved and its replica did not know.
func (r *run) beyond(ctx context.Context) (map[string]int64, error) {
	froms, untils := make([]time.Time, 0, len(r.losses)), make([]time.Time, 0, len(r.losses))
	for _, s := range r.losses {
		froms, untils = append(froms, s.from), append(untils, s.until)
	}
	const query = `
SELECT 'app:' || app, 'user:' || app || '/' || end_user, count(*)
FROM reservations
WHERE 'degraded' = ANY(flags)
    OR EXISTS (SELECT FROM unnest($1::timestamptz[], $2::timestamptz[]) AS lost (since, until)
        WHERE reserved_at BETWEEN lost.since - interval '100 ms' AND lost.until + interval '100 ms')
GROUP BY 1, 2`
	rows, err := r.Pool.Query(ctx, query, froms, untils)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	beyond := map[string]int64{}
	for rows.Next() {
		var app, user string
		var n int64
		if err := rows.Scan(&app, &user, &n); err != nil {
			return nil, err
		}
		beyond[app] += n
		beyond[user] += n
	}
	return beyond, rows.Err()
}

// spending holds the ledger's daily budgets in requests against their limits.
func (r *run) spending(ctx context.Context) ([]system.Line, error) {
	beyond, err := r.beyond(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := r.Pool.Query(ctx, `SELECT subject, requests FROM budgets WHERE period = 'day'`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	budgets, explained := 0, int64(0)
	var full, problems []string
	for rows.Next() {
		var subject string
		var used int64
		if err := rows.Scan(&subject, &used); err != nil {
			return nil, err
		}
		limit, limited := limitOf(system.CounterKey{Period: "day", Subject: subject})
		if !limited {
			continue
		}
		budgets++
		explained += max(0, used-limit)
		if used >= limit {
			full = append(full, subject)
		}
		if used > limit+beyond[subject] {
			problems = append(problems, fmt.Sprintf("%s used %d of %d, and %d beyond are explained", subject, used, limit, beyond[subject]))
		}
	}
	return []system.Line{{
		Name: "I1 used <= limit, in the ledger", Problem: strings.Join(problems, "; "),
		Figure: fmt.Sprintf("%d budgets, %d used up, %d requests beyond, without Redis or lost by its replica", budgets, len(full), explained),
	}}, rows.Err()
}

// refusals holds I2 of the run: an app whose budget was used up before it was only ever refused, and no tier counted that.
func (r *run) refusals(ctx context.Context) ([]system.Line, error) {
	const query = `
SELECT (SELECT count(*) FROM reservations WHERE app = $1 AND charged_requests > 0), (SELECT count(*) FROM budgets WHERE app = $1),
    (SELECT coalesce(sum(requests), 0)::bigint FROM budgets WHERE app = $1 AND period = 'day' AND subject = 'app:' || $1)`
	var charged, budgets, used int64
	if err := r.Pool.QueryRow(ctx, query, spent).Scan(&charged, &budgets, &used); err != nil {
		return nil, err
	}
	r.seen.mu.Lock()
	most := r.seen.most["app:"+spent]
	r.seen.mu.Unlock()
	line := system.Line{
		Name:   "I2 refusals change no counter, during the run",
		Figure: fmt.Sprintf("%d refused; %d of %d used in the ledger, at most %d in Redis", r.refused.Load(), used, spentDay, most),
	}
	if charged != spentDay || used != spentDay || most > spentDay {
		line.Problem = fmt.Sprintf("%d requests of %s were charged", charged, spent)
	}
	return []system.Line{line}, nil
}

// probes are how many calls are refused at rest.
const probes = 12

// refuseAtRest holds I2 at rest: the whole of Redis is the same before and after refusals.
func (r *run) refuseAtRest() {
	before, err := r.Dump(r.t.Context())
	r.do(err)
	keys, began := len(before), time.Now()
	for i := range probes {
		r.Eventually(system.Patience, "a call beyond the budget", func() error { // it is refused in another way while Redis is slow to answer
			a := r.askSpent(i)
			if a.Passed() {
				r.t.Errorf("a call beyond the budget: %s", a)
			} else if a.Status != http.StatusTooManyRequests {
				return fmt.Errorf("%s", a)
			}
			return nil
		})
	}
	after, err := r.Dump(r.t.Context())
	r.do(err)
	verdict := "ok"
	for key, value := range before {
		if _, there := after[key]; !there && lapses(key, value) {
			after[key] = value
		}
	}
	maps.DeleteFunc(after, func(key, value string) bool {
		_, there := before[key]
		return !there && (endedBefore(began, key, value) || strings.HasSuffix(key, "}:tg1:probe")) // of a gateway whose breaker was open
	})
	if !maps.Equal(before, after) {
		verdict = "BROKEN"
		maps.DeleteFunc(before, func(key, value string) bool {
			same := after[key] == value
			if same {
				delete(after, key)
			}
			return same
		})
		r.t.Errorf("%d refusals changed Redis: from %v to %v", probes, before, after)
	}
	r.t.Logf("%-42s %-60s %s", "I2 refusals change nothing in Redis, at rest", fmt.Sprintf("%d refused, %d keys alike", probes, keys), verdict)
}

// endedBefore tells the mark of a request from before an instant that has ended: an event that comes once more writes it again,
// long after it lapsed.
func endedBefore(at time.Time, key, value string) bool {
	_, id, found := strings.Cut(key, "}:tg1:reservation:")
	if !found || value != "string ended" {
		return false
	}
	made, err := event.PartitionTime(id)
	return err == nil && made.Before(at)
}

// lapses tells keys that go away by themselves within a run: a bucket that is full, a window that is over, a reservation that
// ended some time ago.
func lapses(key, value string) bool {
	_, kind, _ := strings.Cut(key, "}:tg1:")
	if strings.HasPrefix(kind, "reservation:") {
		return value == "string ended"
	}
	return !strings.HasPrefix(kind, "budget:") && !strings.HasPrefix(kind, "mark")
}
