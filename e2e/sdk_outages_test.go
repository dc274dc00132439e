package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
)

// awhile is a refusal because of the limiter's own trouble: SDKs come back.
func awhile(reason, says string, most time.Duration) sdkRefusal {
	return sdkRefusal{
		status: http.StatusTooManyRequests, reason: reason, openAIType: "requests", openAICode: rateLimit, anthropicType: slowDown,
		class: rateClass, says: says, told: [2]time.Duration{time.Second, most},
	}
}

// requireRebuilding empties Redis while the settler stands still. An SDK is refused for a moment, and passes once it goes on. One
// after the other: a gateway that has waited for some seconds judges by itself.
func (r *sdkRig) requireRebuilding(t *testing.T) {
	t.Helper()
	settler := r.system.Settlers[0]
	k := &sdkKind{
		name: "rebuilding", model: "plain", call: sdkCall{MaxTokens: 10}, attempts: retried, passes: true,
		refused: awhile("REBUILDING", "being rebuilt", time.Second),
	}
	k.meanwhile = func() error {
		settler.Resume()
		return eventually(func() error {
			if a := r.system.Send(t.Context(), r.url(), r.plain(k, &sdkClient{name: "probe"}, 10, small)); !a.Passed() {
				return fmt.Errorf("%s", a)
			}
			return nil
		})
	}
	for _, c := range r.clients {
		settler.Pause()
		require.NoError(t, r.system.Flush(t.Context()))
		r.playAndRequire(t, []*sdkKind{k}, []*sdkClient{c})
	}
}

// requireDegraded takes Redis away. The SDKs share a small allowance, wait for it, and are told as before of budgets that are
// known to be spent.
func (r *sdkRig) requireDegraded(t *testing.T) {
	t.Helper()
	s := r.system
	require.NoError(t, s.Redis.Kill())
	spent := spentKinds()[0]
	spent.name, spent.model, spent.fill, spent.shown = "degraded, spent", spent.name, nil, sdkShown{}
	closed := &sdkKind{
		name: "degraded, closed plan", model: "plain", key: "closed", attempts: givenUp, refused: awhile("DEGRADED", "is closed", time.Second),
	}
	local := &sdkKind{
		name: "degraded, allowance", model: "plain", fill: small, passing: true, attempts: retried, passes: true,
		refused: awhile("DEGRADED", "is used up", 1200*time.Millisecond),
	}
	for _, k := range []*sdkKind{spent, closed, local} {
		k.call.MaxTokens = 10
	}
	r.playAndRequire(t, []*sdkKind{spent, closed}, r.clients)
	for _, c := range r.clients {
		r.playAndRequire(t, []*sdkKind{local}, []*sdkClient{c}) // one allowance for all
	}
	require.NoError(t, s.Redis.Restart(t.Context()))
	s.Eventually(system.Patience, "the gateway asks Redis again", func() error {
		degraded, err := s.Metric(t.Context(), s.Gateways[0], "tollgate_degraded")
		if err == nil && degraded != 0 {
			err = fmt.Errorf("tollgate_degraded %v", degraded)
		}
		return err
	})
}
