package bench

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"tollgate/gateway/admission"
	"tollgate/gateway/provider"
	"tollgate/lua"
)

//go:embed users.yaml
var usersPolicy []byte

// A counter that lives for a day is what a user who came once costs for longest.
const userDay = "  - {name: user-day, tier: user, budget: {usd: 10, per: day}}\n"

const (
	usersAtOnce   = 16
	usersPerBatch = 500 // then they are settled
	keysLookedAt  = 200_000
)

// Users is a run of RunUsers. Memory is in bytes: of Redis as it counts itself, of the admission's process after a collection.
type Users struct {
	Users      int           `json:"users"`
	Took       time.Duration `json:"took_ns"`
	Keys       int64         `json:"keys_at_the_end"`
	Endless    int64         `json:"keys_without_end"` // of those looked at
	RedisStart int64         `json:"redis_start_bytes"`
	RedisPeak  int64         `json:"redis_peak_bytes"`
	RedisEnd   int64         `json:"redis_end_bytes"`
	Gone       time.Duration `json:"gone_after_ns"` // until nothing of the users was left
	HeapStart  uint64        `json:"heap_start_bytes"`
	HeapEnd    uint64        `json:"heap_end_bytes"`
	DayCounter float64       `json:"bytes_a_user_with_a_budget_for_the_day"`
}

// RunUsers has so many end users come once each through the admission, and looks at what they leave behind: in Redis, where
// everything must have an end, and in the process. It errors when a request is not admitted or Redis does not become empty.
func RunUsers(ctx context.Context, users int, out io.Writer) (result *Users, err error) {
	if users < 1000 || users > 100_000_000 {
		return nil, fmt.Errorf("--users: from 1000 to 100000000, not %d", users)
	}
	fmt.Fprintln(out, "starting Postgres, Redis, NATS, simulator, settler and gateway …")
	s, err := start(ctx, Options{Apps: 1, Keys: 1}, usersPolicy, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop(ctx)) }()
	client, err := lua.Connect(s.redisURL, lua.Options{Timeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	// The append-only file of so many would only fill the disk.
	if err := client.ConfigSet(ctx, "appendonly", "no").Err(); err != nil {
		return nil, err
	}
	d, err := s.openDesk(ctx, s.redisURL, slog.Default())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	c := crowd{s, d, client, 0}
	result = &Users{Users: users}
	if err := c.pass(ctx, result, out); err != nil {
		return result, err
	}
	return result, c.measureDay(ctx, result)
}

// crowd is users without end, each with a name of its own.
type crowd struct {
	*system
	desk  *desk
	redis *redis.Client
	next  int
}

// standing is more keys than there are without users: marks, and counters that all share.
const standing = 20

// pass has the users come and go.
func (c *crowd) pass(ctx context.Context, r *Users, out io.Writer) (err error) {
	// Scripts are loaded, pools are filled, and what has no user is there.
	if err := errors.Join(c.come(ctx, 2000, io.Discard), c.forget(ctx)); err != nil {
		return err
	}
	if r.RedisStart, err = c.usedMemory(ctx); err != nil {
		return err
	}
	r.HeapStart = heap()
	fmt.Fprintf(out, "%d users come …\n", r.Users)
	start := time.Now()
	if err := c.come(ctx, r.Users, out); err != nil {
		return err
	}
	r.Took, r.HeapEnd = time.Since(start), heap()
	if r.RedisPeak, err = c.usedMemory(ctx); err != nil {
		return err
	}
	if r.Keys, r.Endless, err = c.lookAtKeys(ctx); err != nil {
		return err
	}
	fmt.Fprintln(out, "waiting until nothing of them is left …")
	start = time.Now()
	if err := c.awaitKeys(ctx, standing); err != nil {
		return err
	}
	r.Gone = time.Since(start)
	r.RedisEnd, err = c.usedMemory(ctx)
	return err
}

// come admits and settles n users who have not come before.
func (c *crowd) come(ctx context.Context, n int, out io.Writer) error {
	body, told := bodyOf(c.callers[0]), time.Now()
	for done := 0; done < n; {
		admitted := make([]*admission.Verdict, min(usersPerBatch, n-done))
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(usersAtOnce)
		for i := range admitted {
			user := "u" + strconv.Itoa(c.next+i)
			group.Go(func() error {
				v, err := c.desk.decide(ctx, caller{c.callers[0].key, user}, body)
				if err != nil {
					return err
				}
				if v.Refusal != nil || v.Degraded {
					return fmt.Errorf("%s was not admitted: %+v", user, v.Refusal)
				}
				c.desk.Finish(v)
				admitted[i] = v
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		if err := c.desk.settle(context.WithoutCancel(ctx), "app-0", admitted); err != nil {
			return err
		}
		done, c.next = done+len(admitted), c.next+len(admitted)
		if time.Since(told) > 10*time.Second {
			told = time.Now()
			fmt.Fprintf(out, "%d of %d\n", done, n)
		}
	}
	return nil
}

// awaitKeys waits until Redis has no more than so many keys: until the windows are over, and the minute for which it knows that
// a reservation has ended.
func (c *crowd) awaitKeys(ctx context.Context, most int64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Minute, errors.New("keys do not go"))
	defer cancel()
	for {
		n, err := c.redis.DBSize(ctx).Result()
		if err != nil || n <= most {
			return err
		}
		if !sleepUntil(ctx, time.Now().Add(200*time.Millisecond)) {
			return fmt.Errorf("%d keys are left: %w", n, context.Cause(ctx))
		}
	}
}

func (c *crowd) usedMemory(ctx context.Context) (int64, error) {
	info, err := c.redis.Info(ctx, "memory").Result()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(info) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "used_memory:"); ok {
			return strconv.ParseInt(text, 10, 64)
		}
	}
	return 0, errors.New("redis tells no used_memory")
}

// lookAtKeys counts all keys, and among many of them those that would stay for ever.
func (c *crowd) lookAtKeys(ctx context.Context) (all, endless int64, err error) {
	if all, err = c.redis.DBSize(ctx).Result(); err != nil {
		return 0, 0, err
	}
	looked := 0
	for cursor, first := uint64(0), true; looked < keysLookedAt && (first || cursor != 0); first = false {
		names, next, err := c.redis.Scan(ctx, cursor, "*", 1000).Result()
		if err != nil {
			return 0, 0, err
		}
		answers, err := c.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, name := range names {
				pipe.PTTL(ctx, name)
			}
			return nil
		})
		if err != nil {
			return 0, 0, err
		}
		for _, a := range answers {
			if a.(*redis.DurationCmd).Val() == -1 {
				endless++
			}
		}
		cursor, looked = next, looked+len(names)
	}
	return all, endless, nil
}

// forget deletes what users have left, as time would.
func (c *crowd) forget(ctx context.Context) error {
	scan := c.redis.Scan(ctx, 0, "*", 1000).Iterator()
	for scan.Next(ctx) {
		name := scan.Val()
		if !strings.Contains(name, ":user:") && !strings.Contains(name, ":reservation:") {
			continue
		}
		if err := c.redis.Del(ctx, name).Err(); err != nil {
			return err
		}
	}
	return scan.Err()
}

// measureDay looks what a counter takes of users who have a budget for the day.
func (c *crowd) measureDay(ctx context.Context, r *Users) error {
	p, err := c.parsePolicy(append(slices.Clone(c.policy), userDay...))
	if err != nil {
		return err
	}
	if err := c.desk.SetPolicy(p, map[string]*provider.Upstream{}); err != nil {
		return err
	}
	if err := c.come(ctx, 1000, io.Discard); err != nil {
		return err
	}
	var total int64
	counters := 0
	for scan := c.redis.Scan(ctx, 0, "*:budget:day:*:user:*", 1000).Iterator(); ; counters++ {
		if !scan.Next(ctx) {
			if err := scan.Err(); err != nil {
				return err
			}
			break
		}
		n, err := c.redis.MemoryUsage(ctx, scan.Val()).Result()
		if err != nil {
			return err
		}
		total += n
	}
	r.DayCounter = float64(total) / float64(max(counters, 1))
	return nil
}

// heap is what the process keeps, garbage left out.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what pools held at the first is free at the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Print writes the figures for people.
func (r *Users) Print(out io.Writer) error {
	const mib = 1 << 20
	_, err := fmt.Fprintf(out, `
%d end users come once each, in %s (%.0f a second), and meet windows of a second and a minute and a limit on requests in flight.

Redis, MiB: %.2f before, %.1f at the end, %.2f once their windows were over, after %s
keys at the end: %d, without end among those looked at: %d
heap of the admission, MiB: %.1f before, %.1f after
a user with a budget for the day takes %.0f bytes of Redis until a day after its end
`, r.Users, r.Took.Round(time.Second), float64(r.Users)/r.Took.Seconds(),
		float64(r.RedisStart)/mib, float64(r.RedisPeak)/mib, float64(r.RedisEnd)/mib, r.Gone.Round(time.Second),
		r.Keys, r.Endless, float64(r.HeapStart)/mib, float64(r.HeapEnd)/mib, r.DayCounter)
	return err
}
