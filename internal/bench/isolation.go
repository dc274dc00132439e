package bench

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

//go:embed isolation.yaml
var isolationPolicy []byte

// The apps: nine that stay within their limit of 20 requests a second, and one far above it.
const (
	quietApps  = 9
	quietRate  = 16.0   // a second, 80 %
	loudRate   = 1000.0 // a second, 50 times the limit
	maxSlowed  = 4.0 / 3
	quietConns = 16
	loudConns  = 32
)

// Isolation is a run of RunIsolation.
type Isolation struct {
	Length       time.Duration `json:"duration_ns"` // of either case
	Alone        Spread        `json:"alone_ms"`    // what the nine apps saw while the loud one was quiet
	Beside       Spread        `json:"beside_ms"`   // and while it was not
	Refused      int           `json:"refused"`     // of the nine apps' requests
	Passed       int           `json:"passed"`
	LoudSent     int           `json:"loud_sent"`
	LoudPassed   int           `json:"loud_passed"`
	GatewayCores [2]float64    `json:"gateway_cores"` // used alone and beside
	Foreign      float64       `json:"foreign_cores"`
}

// RunIsolation measures what nine apps notice of a tenth that sends 50 times its limit. Both cases take turns, so that a noisy
// machine hits them alike. It errors when the system cannot be run, a request fails, or the ledger is broken afterwards.
func RunIsolation(ctx context.Context, round time.Duration, rounds int, out io.Writer) (result *Isolation, err error) {
	if round < 100*time.Millisecond || round > time.Hour || rounds < 1 || rounds > 1000 {
		return nil, errors.New("--round, --rounds: from 100ms to 1h, and from 1 to 1000")
	}
	fmt.Fprintln(out, "starting Postgres, Redis, NATS, simulator, settler and gateway …")
	s, err := start(ctx, Options{Apps: quietApps + 1, Keys: quietApps + 1}, isolationPolicy, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop(ctx)) }()
	if err := s.warmApps(ctx, func(c caller) []byte { return request(s.gateway, c, false) }); err != nil {
		return nil, err
	}
	result = &Isolation{Length: round * time.Duration(rounds)}
	var alone, beside []shot
	before, err := take(s.pids)
	if err != nil {
		return result, err
	}
	for i := range rounds {
		var quiet, loud []shot
		if quiet, _, result.GatewayCores[0], err = s.isolationRound(ctx, round, false); err != nil {
			return result, err
		}
		alone = append(alone, quiet...)
		if quiet, loud, result.GatewayCores[1], err = s.isolationRound(ctx, round, true); err != nil {
			return result, err
		}
		beside = append(beside, quiet...)
		passed, _ := count(loud, http.StatusOK)
		result.LoudSent, result.LoudPassed = result.LoudSent+len(loud), result.LoudPassed+passed
		fmt.Fprintf(out, "round %d of %d done\n", i+1, rounds)
	}
	after, err := take(s.pids)
	if err != nil {
		return result, err
	}
	result.Foreign = after.foreign(before)
	result.Alone, result.Beside = spread(took(alone)), spread(took(beside))
	all := append(alone, beside...)
	result.Passed, _ = count(all, http.StatusOK)
	result.Refused, _ = count(all, http.StatusTooManyRequests)
	return result, errors.Join(s.quiet(ctx), s.verify(ctx))
}

// warmApps asks once for each app, until its counters are there.
func (s *system) warmApps(ctx context.Context, text func(caller) []byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, errors.New("the apps are not served"))
	defer cancel()
	for _, caller := range s.callers {
		c := newClient(s.gateway)
		defer c.close()
		for _, err := c.do(text(caller)); err != nil; _, err = c.do(text(caller)) {
			if !sleepUntil(ctx, time.Now().Add(100*time.Millisecond)) {
				return errors.Join(err, context.Cause(ctx))
			}
			c.close()
		}
	}
	return nil
}

// isolationRound has the nine apps send for the time, and the tenth where it is loud.
func (s *system) isolationRound(ctx context.Context, length time.Duration, loud bool) (quiet, tenth []shot, cores float64, err error) {
	before, err := take(s.pids)
	if err != nil {
		return nil, nil, 0, err
	}
	results := make([][]shot, quietApps+1)
	var group sync.WaitGroup
	for i := range results {
		st := stream{s.gateway, request(s.gateway, s.callers[i], false), quietConns, quietRate}
		if i == quietApps {
			if !loud {
				continue
			}
			st.connections, st.perSecond = loudConns, loudRate
		}
		group.Go(func() {
			// They do not begin in step, or they would wait for each other.
			if sleepUntil(ctx, time.Now().Add(time.Duration(float64(i)/quietApps/quietRate*float64(time.Second)))) {
				results[i] = st.run(ctx, length)
			}
		})
	}
	group.Wait()
	after, err := take(s.pids)
	if err != nil {
		return nil, nil, 0, err
	}
	for i, r := range results {
		if _, failed := count(r, http.StatusOK); failed != nil {
			return nil, nil, 0, fmt.Errorf("app %d: %w", i, failed)
		}
		if i < quietApps {
			quiet = append(quiet, r...)
		}
	}
	cores = after.used(before)[partGateway].Seconds() / after.at.Sub(before.at).Seconds()
	return quiet, results[quietApps], cores, context.Cause(ctx)
}

// Slowed is by what the nine apps' p99 grew.
func (r *Isolation) Slowed() float64 { return r.Beside.P99 / r.Alone.P99 }

// Print writes the figures for people.
func (r *Isolation) Print(out io.Writer) error {
	verdict := func(met bool) string {
		if met {
			return "met    "
		}
		return "NOT MET"
	}
	_, err := fmt.Fprintf(out, `
Nine apps send %.0f requests a second each, of 20 that they may, for %s alone and for %s beside a tenth that sends %.0f.
Others used %.2f cores meanwhile, the gateway %.2f alone and %.2f beside.

          p50 ms  p95 ms  p99 ms
alone     %6.2f  %6.2f  %6.2f
beside    %6.2f  %6.2f  %6.2f

the loud one: %d of %d passed, %.1f a second
%s  requests of the nine that were refused: %d of %d, at most 0
%s  their p99 beside / alone: %.2f, at most %.2f
`, quietRate, r.Length, r.Length, loudRate, r.Foreign, r.GatewayCores[0], r.GatewayCores[1],
		r.Alone.P50, r.Alone.P95, r.Alone.P99, r.Beside.P50, r.Beside.P95, r.Beside.P99,
		r.LoudPassed, r.LoudSent, float64(r.LoudPassed)/r.Length.Seconds(),
		verdict(r.Refused == 0), r.Refused, r.Refused+r.Passed,
		verdict(r.Slowed() <= maxSlowed), r.Slowed(), maxSlowed)
	return err
}
