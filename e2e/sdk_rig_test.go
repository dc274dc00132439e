package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
	"tollgate/ledger/policy"
)

// claudeModel serves the models claude-NAME.
const claudeModel = "claude-haiku-4-5"

// sdkRig is a system with one gateway that meets every kind of limit, and the SDKs that ask it.
type sdkRig struct {
	system  *system.System
	counter *counter
	gate    *gate
	clients []*sdkClient
	keys    map[string]string
}

// sdkRun is what came of one call.
type sdkRun struct {
	outcome  sdkOutcome
	attempts []attempt
	err      error // of the preparation: the call was not made as it should
}

func newSDKRig(t *testing.T, kinds []*sdkKind) *sdkRig {
	t.Helper()
	r := &sdkRig{gate: newGate(t), clients: sdkClients(t)}
	models, limits := sdkPolicy(kinds)
	r.system = system.New(t, system.Options{
		Providers: `  anthropic: {protocol: anthropic, base_url: "${TOLLGATE_SIM_URL}/v1", api_key_env: TOLLGATE_SIM_KEY}`,
		Models:    models, Limits: limits, Sections: "plans:\n  closed: {on_exceed: {action: reject}}",
		Degraded: "{breaker: {latency: 1m, probe_every: 1s}, local: {requests_per_second: 1, tokens_per_minute: 100000}, closed_plans: [closed]}",
		Gateways: 1, Settlers: 1,
		Env: []string{"TOLLGATE_SIM_URL=" + r.gate.url, "TOLLGATE_SETTLER_PRESENCE_WAIT=100ms"},
	})
	r.gate.lead(t, r.system.Sim.URL)
	r.counter = newCounter(t, r.url())
	r.makeKeys(t)
	return r
}

func (r *sdkRig) url() string { return r.system.Gateways[0].URL }

// sdkPolicy is a model of each protocol for each kind, and the limits on them.
func sdkPolicy(kinds []*sdkKind) (models, limits string) {
	var m, l strings.Builder
	fmt.Fprintf(&l, "  - {name: wide, tier: user, budget: {requests: %s, per: day}}\n", wide.limit)
	// In nano-dollars it has more digits than a structured field's integer may have.
	fmt.Fprint(&l, "  - {name: rich, tier: user, budget: {usd: 5000000, per: month}}\n")
	for _, k := range kinds {
		if k.model != "" {
			continue
		}
		gpt, claude := "gpt-4o-mini", claudeModel
		if k.refused.reason == "UNPRICED_MODEL" {
			gpt, claude = "in-house", "in-house"
		}
		fmt.Fprintf(&m, "  gpt-%s: {provider: openai, upstream_model: %s}\n", k.name, gpt)
		fmt.Fprintf(&m, "  claude-%s: {provider: anthropic, upstream_model: %s}\n", k.name, claude)
		if k.limit != "" {
			fmt.Fprintf(&l, "  - {name: %s, tier: user, match: {model: [gpt-%s, claude-%s]}, %s}\n", k.name, k.name, k.name, k.limit)
		}
	}
	return m.String(), l.String()
}

// makeKeys makes the keys that kinds name, in the state that their names say.
func (r *sdkRig) makeKeys(t *testing.T) {
	t.Helper()
	s := r.system
	r.keys = map[string]string{
		"unknown-key": "tg-" + strings.Repeat("x", 43),
		"expired-key": s.Key(system.App, "--expires", "1s"),
		"revoked-key": s.Key(system.App, "--name", "revoked"),
		"closed":      s.Key(system.App, "--plan", "closed"),
		"":            s.KnownKey(system.App),
	}
	var id string
	require.NoError(t, s.Pool.QueryRow(t.Context(), `SELECT key_id FROM api_keys WHERE name = 'revoked'`).Scan(&id))
	s.CLI("key", "revoke", id)
	for name, reason := range map[string]string{"revoked-key": "DISABLED_KEY", "expired-key": "EXPIRED_KEY"} {
		s.Eventually(system.Patience, "the gateway refuses the "+name, func() error {
			a := s.Send(t.Context(), r.url(), system.Request{Key: r.keys[name], Path: "/v1/embeddings", Body: `{"model":"none","input":"x"}`})
			if a.Reason != reason {
				return fmt.Errorf("%s", a)
			}
			return nil
		})
	}
}

// playAll has every SDK make the call of every kind, all side by side.
func (r *sdkRig) playAll(ctx context.Context, kinds []*sdkKind, clients []*sdkClient) map[*sdkKind]map[*sdkClient]*sdkRun {
	runs := map[*sdkKind]map[*sdkClient]*sdkRun{}
	var wg sync.WaitGroup
	for _, k := range kinds {
		runs[k] = map[*sdkClient]*sdkRun{}
		for _, c := range clients {
			run := &sdkRun{}
			runs[k][c] = run
			wg.Go(func() { *run = r.play(ctx, k, c) })
		}
	}
	wg.Wait()
	return runs
}

// play makes the call once, and again where the limit had room by the time that the SDK asked.
func (r *sdkRig) play(ctx context.Context, k *sdkKind, c *sdkClient) sdkRun {
	for range 10 {
		run := r.playOnce(ctx, k, c)
		if !k.passing || run.err != nil || len(run.attempts) != 1 || run.attempts[0].status != http.StatusOK {
			return run
		}
	}
	return sdkRun{err: errors.New("the limit had room ten times when the SDK asked")}
}

func (r *sdkRig) playOnce(ctx context.Context, k *sdkKind, c *sdkClient) (run sdkRun) {
	call, tracked := k.call, r.counter.begin()
	call.URL, call.Key, call.User, call.Model = tracked.url, r.keys[k.key], c.name, k.modelOf(c.protocol)
	call.Answered = tracked.first
	if k.fill != nil {
		if run.err = r.fill(ctx, k, c); run.err != nil {
			return run
		}
	}
	meanwhile := func() error { return nil }
	if k.meanwhile != nil {
		meanwhile = k.meanwhile
	}
	if k.held > 0 {
		if meanwhile, run.err = r.gate.hold(ctx, r.system, r.url(), r.plain(k, c, k.held, small)); run.err != nil {
			return run
		}
	}
	done := make(chan error, 1)
	go func() {
		<-tracked.first
		err := meanwhile()
		close(tracked.pass) // SDKs come back twice or three times: what they wait for must be over by then
		done <- err
	}()
	run.outcome = c.call(ctx, &call)
	run.attempts = tracked.end()
	run.err = <-done
	return run
}

// modelOf is the model of the protocol that the kind asks for.
func (k *sdkKind) modelOf(spoken policy.Protocol) string {
	name := k.model
	if name == "" {
		name = k.name
	}
	if spoken == policy.ProtocolAnthropic {
		return "claude-" + name
	}
	return "gpt-" + name
}

// plain is a request that counts against the kind's limit as the client's own call does.
func (r *sdkRig) plain(k *sdkKind, c *sdkClient, tokens int64, more map[string]string) system.Request {
	header := map[string]string{"X-Tollgate-User": c.name}
	for name, value := range more {
		header[name] = value
	}
	return system.Request{
		Key: r.keys[k.key], Path: "/v1/chat/completions", Header: header,
		Body: system.ChatBody(k.modelOf(policy.ProtocolOpenAI), "Hello", int(tokens), false),
	}
}

// fill uses the limit up: until it refuses as the kind says, which for a budget is when what was used is settled.
func (r *sdkRig) fill(ctx context.Context, k *sdkKind, c *sdkClient) error {
	hopeless := k.refused.hopeless()
	var a system.Answer
	for end := time.Now().Add(system.Patience); time.Now().Before(end); {
		a = r.system.Send(ctx, r.url(), r.plain(k, c, k.call.MaxTokens, k.fill))
		switch {
		case a.Passed():
			continue
		case a.Reason == k.refused.reason && (a.Header.Get("X-Should-Retry") == "false") == hopeless:
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("%s is not filled: %s", k.name, a)
}

// hopeless reports whether no program should wait until the refusal is over.
func (r *sdkRefusal) hopeless() bool {
	return r.told[1] > time.Minute || r.reason != "" && r.status != http.StatusTooManyRequests
}
