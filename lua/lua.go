// Package lua is the fast copy of the ledger in Redis: the scripts that judge, settle and rebuild, one typed Go call each,
// and the keys they touch.
//
// Two kinds of state are never mixed. A counter (one hash per subject and window) has used_* and held_* for requests,
// tokens and nano-dollars, and the version of the Postgres row that used_* came from. A reservation (one record each, with
// its deadline) says what is held and on which counters; an amount is never held without one. When a reservation ends, a
// tombstone stays for a minute, so that a reserve that arrives late cannot hold anything for it.
//
// A reservation can be extended: its record says what is held in all, and Extend raises that, with the counters, to a figure that
// the call names; so it may be asked again, also after a rebuild that knew less.
//
// A rate's state is of one of six kinds, each with its own keys: a bucket, a fixed window and a sliding counter are one string,
// a log of requests and the requests in flight one sorted set, a log of tokens a set and its sum. A request in flight is a
// lease that lapses LeaseTTL after its reserve or its last renewal, so what a dead gateway had comes free by itself. When a
// reservation ends, its lease ends with it, and the other rates of tokens take the difference of spent and held: a bucket at
// once, a log at its entry, a window or sliding counter in the (sub-)window that the reservation was charged to, which is found
// by the time in its record. Where that has gone, or lies before a loss, nothing is corrected. A rebuild charges rates anew with
// what the ledger knows; what came before that is lost, and a rate reads as used up until that has left its window, or its
// leases are renewed.
//
// A slot (one app, or "shared" for the counters that all apps share) has a mark, written when its counters were last
// written from Postgres. Without the mark nothing of the slot is believed: Reserve answers StatusRebuild. The mark lives
// shorter than any counter that has no window end, so a counter that is missing while the mark stands is truly zero. Beside the
// shared mark stands the list of the apps that had marks with it: the shared counters may hold something of those.
//
// Not guaranteed: a replica that is promoted without the last writes has forgotten them, and until that is noticed the
// amounts they held can be admitted again. An ending that Settle drops because a mark is missing leaves no tombstone: a
// reserve of that id that arrives after the rebuild is held until its deadline. On a Redis Cluster every call fails with
// CROSSSLOT: shared counters have no slot of their own there yet.
package lua

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by SHA-1.
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// How long state lives. The order matters: a mark must be gone before any counter without a window end can be.
const (
	markTTL       = 7 * 24 * time.Hour
	totalTTL      = 15 * 24 * time.Hour // counters without a window end, from their last change
	windowGrace   = 24 * time.Hour      // counters with one, after it
	recordTTL     = 7 * 24 * time.Hour  // a reservation's record; the sweeper ends it long before
	tombstoneTTL  = time.Minute
	rebuildingTTL = 10 * time.Minute // longer than a rebuild may take
)

var (
	//go:embed rates.lua
	ratesSource string
	//go:embed rate_sets.lua
	rateSetsSource string
	//go:embed decimal.lua
	decimalSource string
	//go:embed reserve.lua
	reserveSource string
	//go:embed extend.lua
	extendSource string
	//go:embed settle.lua
	settleSource string
	//go:embed rebuild.lua
	rebuildSource string
	//go:embed replay_rate.lua
	replaySource string
	//go:embed renew_leases.lua
	renewSource string
)

// ErrReply is wrapped by every call whose script answered something else than its header says: state of a wrong type, or
// a script of another version.
var ErrReply = errors.New("unexpected reply")

// ErrCall is wrapped by Reserve for a call that cannot be judged exactly, whatever Redis holds: a negative amount, a rate
// without a window, figures too large for its arithmetic. Nothing was sent.
var ErrCall = errors.New("call cannot be judged")

// Scripts runs the scripts on one Redis. It is safe for concurrent use and owns no goroutine; the client belongs to the
// caller.
type Scripts struct {
	client       redis.UniversalClient
	leaseTTL     time.Duration // LeaseTTL, shorter in tests
	tombstoneTTL time.Duration // tombstoneTTL, shorter in tests
	reserve      script
	extend       script
	settle       script
	rebuild      script
	replay       script
	renew        script
}

// New binds the scripts to a client, which should come from Connect: its timeouts are then those of a limiter.
func New(client redis.UniversalClient) *Scripts {
	return &Scripts{
		client: client, leaseTTL: LeaseTTL, tombstoneTTL: tombstoneTTL,
		reserve: newScript(ratesSource + rateSetsSource + decimalSource + reserveSource),
		extend:  newScript(decimalSource + extendSource),
		settle:  newScript(ratesSource + rateSetsSource + settleSource),
		rebuild: newScript(rebuildSource),
		replay:  newScript(ratesSource + rateSetsSource + replaySource),
		renew:   newScript(renewSource),
	}
}

// Options are the limits on how long a caller may wait for Redis.
type Options struct {
	Timeout  time.Duration // read, write, and the wait for a connection, each; 0 means 50 ms
	PoolSize int           // connections; 0 means 32
}

// dialTimeout bounds the making of a connection.
const dialTimeout = time.Second

// Connect connects lazily to a URL of the form redis://, rediss:// or unix://. It errors on a URL it cannot read; a Redis that
// is away is met by the first call. The client obeys contexts and never repeats a command by itself.
func Connect(url string, o Options) (*redis.Client, error) {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("REDIS_URL: %w", err)
	}
	if o.Timeout == 0 {
		o.Timeout = 50 * time.Millisecond
	}
	if o.PoolSize == 0 {
		o.PoolSize = 32
	}
	opts.ReadTimeout, opts.WriteTimeout, opts.PoolTimeout = o.Timeout, o.Timeout, o.Timeout
	// A new connection may take longer than a decision: who waited for it leaves by its context, and the connection is there
	// for the next. With one limit for both, a Redis that is slow for a moment lost every connection and got none back.
	opts.DialTimeout = max(o.Timeout, dialTimeout)
	opts.PoolSize, opts.MinIdleConns = o.PoolSize, o.PoolSize/8
	// Nothing of RESP3 is used, and its push messages would be looked for before every answer.
	opts.Protocol, opts.DisableIdentity = 2, true
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	// One attempt to connect: the default, five with 100 ms between, would make every decision wait while Redis is down.
	opts.DialerRetries = 1
	opts.ContextTimeoutEnabled = true
	opts.MaxRetries = -1
	return redis.NewClient(opts), nil
}

// KeepLeases has requests in flight lapse so long after their reserve or last renewal, instead of LeaseTTL: for tests, whose process
// may stand still for longer than that. It must come before the first call.
func (s *Scripts) KeepLeases(ttl time.Duration) { s.leaseTTL = ttl }

type script struct{ source, hash string }

func newScript(source string) script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // as above
	return script{source, hex.EncodeToString(sum[:])}
}

// once is a command that the client must not repeat by itself: after a timeout nobody knows whether the script ran, and
// only the caller, who has the reservation's id, may ask again.
type once struct{ *redis.Cmd }

// NoRetry is asked by go-redis before it repeats a command.
func (once) NoRetry() bool { return true }

// run sends the script by hash, and by source when Redis does not have it (restart, failover, SCRIPT FLUSH): a NOSCRIPT
// answer means that nothing ran. args must begin with three free places.
func (s *Scripts) run(ctx context.Context, sc script, keys int, args []any) ([]any, error) {
	args[0], args[1], args[2] = "evalsha", sc.hash, keys
	reply, err := s.send(ctx, args)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		args[0], args[1] = "eval", sc.source
		reply, err = s.send(ctx, args)
	}
	return reply, err
}

func (s *Scripts) send(ctx context.Context, args []any) ([]any, error) {
	cmd := once{redis.NewCmd(ctx, args...)}
	if err := s.client.Process(ctx, cmd); err != nil {
		return nil, err
	}
	reply, err := cmd.Slice()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReply, err)
	}
	return reply, nil
}

// Unknown reports whether after err nobody can say if the script ran: it was sent and the answer did not arrive. A reserve
// may then be asked again with the same id, never with a fresh one. Where there was no connection, nothing was sent.
func Unknown(err error) bool {
	var answered redis.Error
	var network *net.OpError
	switch {
	case err == nil, errors.Is(err, ErrCall), errors.As(err, &answered):
		return false
	case errors.Is(err, redis.ErrPoolTimeout), errors.As(err, &network) && network.Op == "dial":
		return false
	default:
		return true
	}
}
