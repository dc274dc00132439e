package e2e

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"tollgate/ledger/policy"
)

// Slack of clocks and timers: JavaScript's may fire a little early, and a busy computer is late.
const (
	tooEarly = 5 * time.Millisecond
	tooLate  = time.Minute
)

// The official SDKs do on each kind of answer what it asks for (D6): so many attempts, each after the wait that was told, and in
// the end the error or the answer, parsed.
func TestSDKsOnEachAnswer(t *testing.T) {
	t.Parallel()
	kinds := sdkKinds()
	r := newSDKRig(t, kinds)
	r.playAndRequire(t, kinds, r.clients)
	r.requireRebuilding(t)
	r.requireDegraded(t)
	r.system.Check()
}

func (r *sdkRig) playAndRequire(t *testing.T, kinds []*sdkKind, clients []*sdkClient) {
	t.Helper()
	runs := r.playAll(t.Context(), kinds, clients)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) { requireRuns(t, k, runs[k]) })
	}
}

func requireRuns(t *testing.T, k *sdkKind, runs map[*sdkClient]*sdkRun) {
	t.Helper()
	for c, run := range runs {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, run.err)
			defer func() {
				if t.Failed() {
					for i, a := range run.attempts {
						t.Logf("attempt %d: %d %v %s", i+1, a.status, a.header, a.body)
					}
					t.Logf("%+v, error %+v", run.outcome, run.outcome.Error)
				}
			}()
			requireAttempts(t, k, c, run)
			requireOutcome(t, k, c, run)
		})
	}
}

func requireAttempts(t *testing.T, k *sdkKind, c *sdkClient, run *sdkRun) {
	t.Helper()
	n := len(run.attempts)
	require.GreaterOrEqual(t, n, k.attempts[0])
	require.LessOrEqual(t, n, k.attempts[1])
	for i := range run.attempts {
		a := &run.attempts[i]
		require.Equal(t, strconv.Itoa(i), a.retry)
		requireLimitHeaders(t, c.protocol, a)
		requireShown(t, k.shown, c.protocol, a)
		if k.passes && i == n-1 {
			require.Equal(t, http.StatusOK, a.status)
			continue
		}
		requireRefusal(t, &k.refused, a)
		requireFigures(t, &k.refused, c, a)
		if i == n-1 {
			continue
		}
		wait, between := a.waitAtLeast(t), run.attempts[i+1].asked.Sub(a.answered)
		require.GreaterOrEqual(t, between, wait-tooEarly, "came back too early")
		require.Less(t, between, wait+tooLate, "came back too late")
		t.Logf("came back after %s, told %s", between.Round(time.Millisecond), wait)
	}
}

// waitAtLeast is what the answer tells, or the shortest that SDKs choose by themselves: half a second, less a quarter.
func (a *attempt) waitAtLeast(t *testing.T) time.Duration {
	t.Helper()
	if wait, ok := a.told(t); ok {
		return wait
	}
	return 375 * time.Millisecond
}

// requireRefusal holds one refused attempt against what the kind says.
func requireRefusal(t *testing.T, want *sdkRefusal, a *attempt) {
	t.Helper()
	require.Equal(t, want.status, a.status)
	require.Equal(t, want.reason, gjson.GetBytes(a.body, "tollgate.reason").Str)
	shouldRetry := ""
	if want.hopeless() {
		shouldRetry = "false"
	}
	require.Equal(t, shouldRetry, a.header.Get("X-Should-Retry"))
	wait, told := a.told(t)
	if want.told[1] == 0 {
		require.False(t, told, "told to wait %s", wait)
		return
	}
	require.True(t, told)
	require.GreaterOrEqual(t, wait, want.told[0])
	// At random a little longer, so that those who were refused together do not come back together.
	require.LessOrEqual(t, wait, want.told[1]+want.told[1]/10)
	if want.reason == "" {
		return
	}
	exact := gjson.GetBytes(a.body, "tollgate.retry_after_s").Int()
	require.Positive(t, exact)
	require.GreaterOrEqual(t, int64((wait+time.Second-1)/time.Second), exact)
	require.Equal(t, exact, gjson.GetBytes(a.body, `tollgate.options.#(action=="wait").retry_after_s`).Int())
}

// requireFigures finds in the answer whose limit refused, and figures that leave no room.
func requireFigures(t *testing.T, want *sdkRefusal, c *sdkClient, a *attempt) {
	t.Helper()
	told := gjson.GetBytes(a.body, "tollgate")
	if told.Get("limit_name").Str == "" {
		return
	}
	require.Equal(t, "user", told.Get("layer").Str)
	require.Contains(t, told.Get("subject").Str, c.name)
	if want.status == http.StatusForbidden {
		return // no figure decided
	}
	limit, needed := told.Get("limit").Num, told.Get("needed").Num
	require.Positive(t, limit)
	require.Positive(t, needed)
	if want.reason != "TOKEN_BUCKET" { // its limit is a speed
		require.Greater(t, told.Get("used").Num+told.Get("held").Num+needed, limit)
	}
	if until := told.Get("resets_at"); until.Exists() {
		require.True(t, until.Time().After(a.asked), "resets at %s, asked at %s", until.Str, a.asked)
	}
}

func requireShown(t *testing.T, want sdkShown, spoken policy.Protocol, a *attempt) {
	t.Helper()
	if want.unit == "" {
		return
	}
	require.NotEmpty(t, a.header.Get("RateLimit"))
	limit, remaining, reset := a.shows(spoken, want.unit)
	require.Equal(t, want.limit, limit)
	require.NotEmpty(t, reset)
	if want.remaining != "" {
		require.Equal(t, want.remaining, remaining)
	}
}

// requireOutcome holds what the caller got from its SDK against the last attempt.
func requireOutcome(t *testing.T, k *sdkKind, c *sdkClient, run *sdkRun) {
	t.Helper()
	o, want, last := run.outcome, &k.refused, &run.attempts[len(run.attempts)-1]
	if k.call.Patience > 0 {
		require.True(t, o.Left, "the SDK gave up by itself: %+v", o.Error)
		return
	}
	require.False(t, o.Left, "the SDK still waited after %s", longest)
	if k.passes {
		require.Nil(t, o.Error)
		require.NotEmpty(t, o.Text)
		require.NotEmpty(t, last.header.Get("X-Tollgate-Request-Id"))
		require.NotEmpty(t, last.header.Get("X-Tollgate-Model"))
		return
	}
	require.NotNil(t, o.Error)
	e := o.Error
	require.Equal(t, want.status, e.Status)
	require.Equal(t, gjson.GetBytes(last.body, "error.message").Str, e.Message)
	require.NotEmpty(t, e.Message)
	require.Contains(t, e.Message, want.says)
	if c.classes {
		require.Contains(t, e.Classes, want.class)
		if want.anthropicClass != "" && c.protocol == policy.ProtocolAnthropic {
			require.Equal(t, want.anthropicClass, e.Classes[0])
		}
	}
	if c.protocol == policy.ProtocolOpenAI {
		require.Equal(t, []string{want.openAIType, want.openAICode}, []string{e.Type, e.Code})
		return
	}
	require.Equal(t, []string{want.anthropicType, want.anthropicCode}, []string{e.Type, e.Code})
	require.Equal(t, last.header.Get("Request-Id"), e.RequestID)
}
