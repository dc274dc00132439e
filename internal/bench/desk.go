package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tollgate/gateway/admission"
	"tollgate/gateway/provider"
	"tollgate/ledger"
	"tollgate/ledger/policy"
	"tollgate/lua"
)

// desk is a gateway's admission in this process: all that stands between a body that has been read and the decision on it.
type desk struct {
	*admission.Admission
	learner *admission.Learner
	scripts *lua.Scripts
	close   func() error
}

// openDesk makes a desk that judges in the Redis of that URL, and has it follow the keys. It must be closed.
func (s *system) openDesk(ctx context.Context, redisURL string, log *slog.Logger) (*desk, error) {
	p, err := s.parsePolicy(s.policy)
	if err != nil {
		return nil, err
	}
	// No call is given up: how long it takes is what is measured.
	const timeout = 10 * time.Second
	client, err := lua.Connect(redisURL, lua.Options{Timeout: timeout, PoolSize: 64})
	if err != nil {
		return nil, err
	}
	d := &desk{learner: admission.NewLearner(1000), scripts: lua.New(client)}
	directory, control := admission.NewDirectory(s.js, log), admission.NewControl(s.nc, s.js, func(context.Context) error { return nil })
	d.Admission = admission.New(admission.Parts{
		Scripts: d.scripts, Keys: directory, Control: control, Clock: admission.NewClock(time.Now), Timeout: timeout,
		Metrics: admission.NewMetrics(prometheus.NewRegistry()), Degraded: func(bool) {}, Log: log,
	})
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	var failures [2]error
	group.Go(func() { failures[0] = directory.Run(work) })
	group.Go(func() { failures[1] = d.Run(work) })
	d.close = func() error {
		stop()
		group.Wait()
		return errors.Join(failures[0], failures[1], client.Close())
	}
	err = errors.Join(d.SetPolicy(p, map[string]*provider.Upstream{}), control.Refresh(ctx))
	select {
	case <-directory.Ready():
	case <-ctx.Done():
		err = errors.Join(err, context.Cause(ctx))
	case <-time.After(startLimit):
		err = errors.Join(err, errors.New("the keys are not there"))
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (s *system) parsePolicy(text []byte) (*policy.Policy, error) {
	return policy.Parse(text, func(name string) (string, bool) { return "http://" + s.sim, name == providerURL })
}

// decide identifies the caller, reads and estimates the body, and judges.
func (d *desk) decide(ctx context.Context, c caller, body []byte) (*admission.Verdict, error) {
	who, refusal := d.Identify(c.key)
	if refusal != nil {
		return nil, fmt.Errorf("identify: %s", refusal.Message)
	}
	e := provider.Chat
	r, err := e.Parse(body)
	if err != nil {
		return nil, err
	}
	return d.Admit(ctx, &admission.Ask{
		Caller: who, User: c.user, Model: r.Model, Endpoint: e.Path, EndpointKind: e.Kind, IP: "127.0.0.1", Protocol: e.Protocol,
		Also: r.Also, Calls: r.Calls(), Tier: r.Tier(),
		Estimate: func(model string) (input, output ledger.Tokens) {
			return d.learner.Estimate(who.App, model, r.Estimate(model))
		},
	})
}

// settle ends reservations as released, as the settler would.
func (d *desk) settle(ctx context.Context, app string, admitted []*admission.Verdict) error {
	endings := make([]lua.Ending, len(admitted))
	for i, v := range admitted {
		res := &v.Reservation
		endings[i] = lua.Ending{ReservationID: res.ID, Counters: res.Counters, Rates: res.RateNames(), Held: res.Held}
	}
	r, err := d.scripts.Settle(ctx, app, nil, nil, endings)
	if err == nil && r.Ended != int64(len(endings)) {
		err = fmt.Errorf("settle %d reservations: %+v", len(endings), r)
	}
	return err
}

// bodyOf is the body of the request that callers send.
func bodyOf(c caller) []byte {
	_, body, _ := bytes.Cut(request("bench", c, false), []byte("\r\n\r\n"))
	return body
}

// timed makes calls from so many callers at once for the time, each the next as soon as it has its answer, and returns how long
// each took. The error is the first one; its caller stops there.
func timed(ctx context.Context, callers int, length time.Duration, call func(caller int) error) ([]time.Duration, error) {
	results, failures := make([][]time.Duration, callers), make([]error, callers)
	end := time.Now().Add(length)
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() {
			for start := time.Now(); start.Before(end) && failures[i] == nil && ctx.Err() == nil; start = time.Now() {
				failures[i] = call(i)
				results[i] = append(results[i], time.Since(start))
			}
		})
	}
	group.Wait()
	var all []time.Duration
	for _, r := range results {
		all = append(all, r...)
	}
	return all, errors.Join(append(failures, context.Cause(ctx))...)
}
