package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"tollgate/gateway"
	"tollgate/gateway/outbox"
	"tollgate/ledger/event"
	"tollgate/ledger/policy"
	"tollgate/lua"
	"tollgate/migrations"
	"tollgate/settler"
)

// doctorConfig is everything that gateway and settler would read.
type doctorConfig struct {
	Connections
	Listeners
	Gateway gateway.Config
	Outbox  outbox.Config
	Settler settler.Config
	Policy  string `env:"TOLLGATE_POLICY"`
}

const (
	// askLimit bounds one question to a service.
	askLimit = 5 * time.Second
	// mostSkew is how far clocks may differ: windows are cut by Redis's, times in the ledger come from gateways.
	mostSkew = time.Second
	// leastRedis is the oldest major version that the scripts are tested on.
	leastRedis = 7
)

func newDoctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check configuration, connections and what they lead to: a line each, exit code 1 if something must be done",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			d := &doctor{out: c.OutOrStdout()}
			d.run(c.Context())
			if d.problems > 0 {
				fmt.Fprintf(c.ErrOrStderr(), "%d things to do\n", d.problems)
				return ErrFailed
			}
			return nil
		},
	}
}

// doctor writes one line for each thing it looks at.
type doctor struct {
	out      io.Writer
	config   doctorConfig
	problems int
}

func (d *doctor) ok(name, format string, args ...any) { d.line("ok", name, format, args...) }

func (d *doctor) warn(name, format string, args ...any) { d.line("warning", name, format, args...) }

// bad reports something that must be done; its text says what.
func (d *doctor) bad(name, format string, args ...any) {
	d.problems++
	d.line("PROBLEM", name, format, args...)
}

func (d *doctor) line(verdict, name, format string, args ...any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")
	fmt.Fprintf(d.out, "%-8s %-14s %s\n", verdict, name, text)
}

func (d *doctor) run(ctx context.Context) {
	if err := errors.Join(readEnv(&d.config)); err != nil {
		d.bad("configuration", "%v", err)
		return // nothing below would look at what was meant
	}
	err := errors.Join(d.config.needDatabase(), d.config.Gateway.Validate(), d.config.Outbox.Validate(), d.config.Settler.Validate())
	if err != nil {
		d.bad("configuration", "%v", err)
	} else {
		d.ok("configuration", "every variable can be read")
	}
	for _, look := range []func(context.Context){d.postgres, d.redis, d.nats} {
		ctx, cancel := context.WithTimeoutCause(ctx, 3*askLimit, errors.New("doctor: no answer in time"))
		look(ctx)
		cancel()
	}
}

func (d *doctor) postgres(ctx context.Context) {
	if d.config.Database == "" {
		return // told above
	}
	url := d.config.Database.Reveal()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		d.bad("postgres", "DATABASE_URL: %v", err)
		return
	}
	defer func() { _ = conn.Close(ctx) }() // it was only asked
	var version, user string
	var now time.Time
	asked := time.Now()
	if err := conn.QueryRow(ctx, `SELECT current_setting('server_version'), current_user, clock_timestamp()`).Scan(&version, &user, &now); err != nil {
		d.bad("postgres", "%v", err)
		return
	}
	d.ok("postgres", "version %s, as %s", version, user)
	d.clock("postgres clock", now, asked)
	var schema bool
	if err := conn.QueryRow(ctx, `SELECT to_regclass('public.goose_db_version') IS NOT NULL`).Scan(&schema); err != nil {
		d.bad("migrations", "%v", err)
		return
	}
	if !schema {
		d.bad("migrations", "none is applied: run 'tollgate migrate up'")
		return
	}
	d.migrations(ctx, url)
}

func (d *doctor) migrations(ctx context.Context, url string) {
	states, err := migrations.Status(ctx, url)
	if err != nil {
		d.bad("migrations", "%v", err)
		return
	}
	var missing []string
	for _, s := range states {
		if !s.Applied {
			missing = append(missing, s.Name)
		}
	}
	if len(missing) > 0 {
		d.bad("migrations", "not applied: %s: run 'tollgate migrate up'", strings.Join(missing, ", "))
		return
	}
	d.ok("migrations", "all %d applied", len(states))
}

// clock compares a server's time with the middle of the question. A difference within the time that the question took
// cannot be told from none.
func (d *doctor) clock(name string, server, asked time.Time) {
	took := time.Since(asked)
	skew := server.Sub(asked.Add(took / 2)).Round(time.Millisecond)
	if skew.Abs() > mostSkew+took/2 {
		d.bad(name, "differs from this machine's by %s: synchronise both (NTP), windows would begin and end at other times", skew)
		return
	}
	d.ok(name, "within %s of this machine's", max(skew.Abs(), (took/2).Round(time.Millisecond)))
}

func (d *doctor) redis(ctx context.Context) {
	client, err := lua.Connect(d.config.Redis.Reveal(), lua.Options{Timeout: askLimit})
	if err != nil {
		d.bad("redis", "%v", err)
		return
	}
	defer func() { _ = client.Close() }() // it was only asked
	asked := time.Now()
	now, err := client.Time(ctx).Result()
	if err != nil {
		d.bad("redis", "REDIS_URL: %v", err)
		return
	}
	took := time.Since(asked)
	d.redisServer(ctx, client, took)
	d.clock("redis clock", now, asked)
}

func (d *doctor) redisServer(ctx context.Context, client *redis.Client, took time.Duration) {
	text, err := client.Info(ctx).Result()
	if err != nil {
		d.bad("redis", "INFO: %v", err)
		return
	}
	info := infoFields(text)
	major, _, _ := strings.Cut(info["redis_version"], ".")
	switch n, err := strconv.Atoi(major); {
	case err != nil:
		d.warn("redis", "does not tell its version: the scripts are tested on Redis %d and later", leastRedis)
	case n < leastRedis:
		d.bad("redis", "version %s: the scripts are tested on %d and later", info["redis_version"], leastRedis)
	default:
		d.ok("redis", "version %s, answered in %s", info["redis_version"], took.Round(10*time.Microsecond))
	}
	switch role := info["role"]; {
	case info["cluster_enabled"] == "1":
		d.bad("redis mode", "a cluster: not supported yet, use a single server or a replicated one")
	case role == "slave":
		d.bad("redis mode", "a replica: REDIS_URL must name the primary")
	default:
		d.ok("redis mode", "%s", role)
	}
	if eviction := info["maxmemory_policy"]; eviction != "noeviction" {
		d.bad("redis eviction", "maxmemory-policy is %q: an evicted counter reads as a fresh quota; run 'CONFIG SET maxmemory-policy noeviction', and set it in redis.conf", eviction)
	} else {
		d.ok("redis eviction", "noeviction")
	}
	if info["aof_enabled"] != "1" {
		d.warn("redis disk", "appendonly is off: every restart rebuilds all counters from the ledger before requests are judged")
	} else {
		d.ok("redis disk", "appendonly")
	}
}

func infoFields(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

func (d *doctor) nats(ctx context.Context) {
	nc, err := nats.Connect(d.config.NATS.Reveal(), nats.Name("tollgate-doctor"), nats.Timeout(askLimit))
	if err != nil {
		d.bad("nats", "NATS_URL: %v", err)
		return
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err == nil {
		_, err = js.AccountInfo(ctx)
	}
	if err != nil {
		d.bad("nats", "version %s without JetStream (%v): start it with a 'jetstream' section", nc.ConnectedServerVersion(), err)
		return
	}
	d.ok("nats", "version %s with JetStream", nc.ConnectedServerVersion())
	d.stream(ctx, js)
	d.policy(ctx, js)
}

// stream looks at what the settler makes when it starts.
func (d *doctor) stream(ctx context.Context, js jetstream.JetStream) {
	stream, err := js.Stream(ctx, event.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		d.bad("stream", "%s does not exist: start a settler, it makes it", event.Stream)
		return
	}
	if err != nil {
		d.bad("stream", "%v", err)
		return
	}
	info := stream.CachedInfo()
	if info.Config.Storage != jetstream.FileStorage {
		d.bad("stream", "%s is kept in memory: delete it and start a settler, which makes one on disk", event.Stream)
	} else {
		d.ok("stream", "%s, %d events, replicas: %d", event.Stream, info.State.Msgs, info.Config.Replicas)
	}
	consumer, err := stream.Consumer(ctx, settler.Consumer)
	if err != nil {
		d.bad("consumer", "%s: %v: start a settler, it makes it", settler.Consumer, err)
		return
	}
	state := consumer.CachedInfo()
	if waiting := state.NumPending + uint64(state.NumAckPending); waiting > 0 && state.NumWaiting == 0 {
		d.bad("consumer", "%d events wait and no settler asks for them: start one", waiting)
		return
	}
	d.ok("consumer", "%s, %d events wait, %d are being settled", settler.Consumer, state.NumPending, state.NumAckPending)
}

// policy looks at the policy that a gateway with this environment would start with.
func (d *doctor) policy(ctx context.Context, js jetstream.JetStream) {
	source, data := d.config.Policy, []byte(nil)
	if source != "" {
		var err error
		if data, err = os.ReadFile(source); err != nil {
			d.bad("policy", "TOLLGATE_POLICY: %v", err)
			return
		}
	} else {
		bucket, err := js.KeyValue(ctx, policy.Bucket)
		var entry jetstream.KeyValueEntry
		if err == nil {
			entry, err = bucket.Get(ctx, policy.BucketKey)
		}
		if errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, jetstream.ErrKeyNotFound) {
			d.bad("policy", "none: run 'tollgate policy push FILE', or set TOLLGATE_POLICY for a gateway of its own")
			return
		}
		if err != nil {
			d.bad("policy", "%v", err)
			return
		}
		source, data = fmt.Sprintf("pushed as revision %d", entry.Revision()), entry.Value()
	}
	p, err := policy.Parse(data, os.LookupEnv)
	if err != nil {
		d.bad("policy", "%s: %v", source, err)
		return
	}
	for _, w := range p.Warnings() {
		d.warn("policy", "%s", w)
	}
	for name, pr := range p.Providers {
		for _, key := range pr.Keys {
			if key.Env != "" && os.Getenv(key.Env) == "" {
				d.warn("policy", "provider %s: %s is not set here; it must be where gateways run", name, key.Env)
			}
		}
	}
	d.ok("policy", "%s (%s), %d limits", source, p.Revision, len(p.Limits))
}
