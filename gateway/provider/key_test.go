package provider

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger/policy"
)

const chatModel = "gpt-4o-mini"

// keyed is a provider with keys of these weights: a, b, c …
func keyed(weights ...int) *Upstream {
	p := &policy.Provider{Name: "openai", Protocol: policy.ProtocolOpenAI, BaseURL: "https://a/v1"}
	secrets := make([]string, len(weights))
	for i, weight := range weights {
		p.Keys = append(p.Keys, policy.ProviderKey{Name: string(rune('a' + i)), Weight: weight})
		secrets[i] = fmt.Sprint("secret-", i)
	}
	return NewUpstream(p, nil, secrets...)
}

func chosen(t *testing.T, u *Upstream, p Pick, now time.Time) string {
	t.Helper()
	k, err := u.Choose(p, now)
	require.NoError(t, err)
	return k.Name
}

// Keys that are idle take turns; those in use are chosen by what they have in flight for their weight.
func TestChoose(t *testing.T) {
	t.Parallel()
	now := time.Now()
	u := keyed(1, 1, 1)
	for i := range 9 {
		now = now.Add(time.Millisecond)
		require.Equal(t, string(rune('a'+i%3)), chosen(t, u, Pick{Model: chatModel}, now))
	}
	u = keyed(1, 3)
	for range 80 {
		now = now.Add(time.Millisecond)
		k, err := u.Choose(Pick{Model: chatModel}, now)
		require.NoError(t, err)
		k.begin(chatModel, now)
	}
	require.Equal(t, []int{20, 60}, []int{u.keys[0].InFlight(), u.keys[1].InFlight()})
	require.Equal(t, "a", chosen(t, u, Pick{Model: chatModel, Without: []string{"b"}}, now))
	require.Equal(t, "a", chosen(t, u, Pick{Model: chatModel, Only: "a"}, now))
	require.NotEmpty(t, chosen(t, u, Pick{Model: chatModel, Only: "of another policy"}, now))
	_, err := u.Choose(Pick{Model: chatModel, Without: []string{"a", "b"}}, now)
	require.Error(t, err)
}

// How long a key rests, for which models, and what ends it.
func TestRests(t *testing.T) {
	t.Parallel()
	start := time.Now()
	told := func(name, value string) http.Header { return http.Header{name: {value}} }
	for name, c := range map[string]struct {
		status      int
		header      http.Header
		times       int
		least, most time.Duration // of the rest; 0 is none
		others      bool          // other models rest, too
		cause       Cause
	}{
		"401":                   {401, nil, 1, 5 * time.Second, 10 * time.Second, true, CauseRefused},
		"403 twice":             {403, nil, refusedAfter - 2, 0, 0, false, ""},
		"403 in a row":          {403, nil, refusedAfter - 1, 5 * time.Second, 10 * time.Second, false, CauseRefused},
		"403 and again":         {403, nil, refusedAfter + 2, 20 * time.Second, 40 * time.Second, false, CauseRefused},
		"403 for ever":          {403, nil, 50, 150 * time.Second, 300 * time.Second, false, CauseRefused},
		"429":                   {429, nil, 1, 500 * time.Millisecond, time.Second, false, CauseLimited},
		"429 with seconds":      {429, told("Retry-After", "20"), 1, 20 * time.Second, 22 * time.Second, false, CauseLimited},
		"429 with milliseconds": {429, told("Retry-After-Ms", "150"), 1, 150 * time.Millisecond, 165 * time.Millisecond, false, CauseLimited},
		"429 with a date":       {429, told("Retry-After", start.Add(30*time.Second).UTC().Format(http.TimeFormat)), 1, 28 * time.Second, 33 * time.Second, false, CauseLimited},
		"429 for a week":        {429, told("Retry-After", "604800"), 1, longestTold, longestTold * 11 / 10, false, CauseLimited},
		"429 for no time":       {429, told("Retry-After", "0"), 1, 500 * time.Millisecond, time.Second, false, CauseLimited},
		"503 with seconds":      {503, told("Retry-After", "20"), 1, 20 * time.Second, 22 * time.Second, false, CauseLimited},
		"503":                   {503, nil, downAfter - 2, 0, 0, false, ""},
		"503 in a row":          {503, nil, downAfter - 1, 500 * time.Millisecond, time.Second, false, CauseDown},
		"500 in a row":          {500, nil, 50, 0, 0, false, ""},
		"400":                   {400, nil, 50, 0, 0, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, start := keyed(1, 1), start
			k := u.keys[0]
			for range c.times - 1 {
				k.answered(chatModel, c.status, c.header, start, start, 0)
				if until, _ := k.resting(chatModel, start, false); !until.IsZero() {
					start = until
				}
			}
			k.answered(chatModel, c.status, c.header, start, start, 0)
			k.answered(chatModel, c.status, nil, start, start, 0) // it was under way
			until, cause := k.resting(chatModel, start, false)
			if c.most == 0 {
				require.Zero(t, until)
				return
			}
			require.Equal(t, c.cause, cause)
			require.GreaterOrEqual(t, until.Sub(start), c.least)
			require.LessOrEqual(t, until.Sub(start), c.most)
			others, _ := k.resting("another", start, false)
			require.Equal(t, c.others, !others.IsZero())
			require.Equal(t, "b", chosen(t, u, Pick{Model: chatModel}, start))
			after, _ := k.resting(chatModel, until, false)
			require.Zero(t, after)
			k.answered(chatModel, 200, nil, until, until, 0)
			require.Empty(t, k.Rests(start))
		})
	}
}

// An answer to what was sent before a rest began does not end it, and what a caller provokes now and then begins none.
func TestRestsAreOfWhatWasSentSince(t *testing.T) {
	t.Parallel()
	before := time.Now()
	k := keyed(1, 1).keys[0]
	now := before.Add(time.Second)
	k.answered(chatModel, 429, nil, before, now, 0)
	k.answered(chatModel, 200, nil, before, now, 0)
	until, _ := k.resting(chatModel, now, false)
	require.NotZero(t, until, "a late answer ended the rest")
	k.answered(chatModel, 200, nil, until, until, 0)
	require.Empty(t, k.Rests(now))

	k.answered("", 429, nil, now, now, 0) // for something stored
	until, _ = k.resting(chatModel, now, false)
	require.Zero(t, until, "models rest")
	until, _ = k.resting("", now, false)
	require.NotZero(t, until)
	k.answered("", 200, nil, until, until, 0)

	for range downAfter {
		k.unanswered(chatModel, false, now, 0)
	}
	until, cause := k.resting(chatModel, now, false)
	require.Equal(t, CauseDown, cause)
	k.begin(chatModel, until)
	k.unanswered(chatModel, false, until.Add(time.Millisecond), 0) // sent long ago
	k.answered(chatModel, 200, nil, until, until.Add(2*time.Millisecond), 0)
	require.Empty(t, k.Rests(until), "the probe found somebody there")

	for range 3 * refusedAfter {
		k.answered(chatModel, 403, nil, now, now, 0)
		k.answered(chatModel, 200, nil, now, now, 0)
	}
	require.Empty(t, k.Rests(now))
}

// The only key is asked in spite of what its provider said, but not while the provider is down; of several none is then.
func TestChooseWhileAllRest(t *testing.T) {
	t.Parallel()
	now := time.Now()
	one, two := keyed(1), keyed(1, 1)
	for _, u := range []*Upstream{one, two} {
		for _, k := range u.keys {
			k.answered(chatModel, 429, http.Header{"Retry-After": {"20"}}, now, now, 0)
		}
	}
	require.Equal(t, "a", chosen(t, one, Pick{Model: chatModel}, now))
	_, err := two.Choose(Pick{Model: chatModel}, now)
	var resting *Resting
	require.ErrorAs(t, err, &resting)
	require.Equal(t, CauseLimited, resting.Cause)
	require.InDelta(t, 20.5, resting.Wait.Seconds(), 1.5)
	require.Equal(t, "b", chosen(t, two, Pick{Model: chatModel, Only: "b"}, now), "what only it knows is asked of it")
	for range downAfter {
		one.keys[0].unanswered(chatModel, false, now, 0)
	}
	_, err = one.Choose(Pick{Model: chatModel}, now)
	require.ErrorAs(t, err, &resting)
	require.Equal(t, CauseDown, resting.Cause)
}

// After a rest because of failures one request is the probe, and the others wait for how it fares.
func TestProbe(t *testing.T) {
	t.Parallel()
	now := time.Now()
	u := keyed(1)
	k := u.keys[0]
	for range downAfter {
		k.unanswered(chatModel, false, now, 0)
	}
	until, _ := k.resting(chatModel, now, false)
	for _, outcome := range []func(){
		func() { k.unanswered(chatModel, true, until, 0) },  // its caller left
		func() { k.unanswered(chatModel, false, until, 0) }, // down still
	} {
		require.Equal(t, "a", chosen(t, u, Pick{Model: chatModel}, until))
		k.begin(chatModel, until)
		_, err := u.Choose(Pick{Model: chatModel}, until)
		require.Error(t, err)
		outcome()
	}
	longer, _ := k.resting(chatModel, until, false)
	require.Greater(t, longer.Sub(until), 900*time.Millisecond, "twice as long")
	k.begin(chatModel, longer)
	k.answered("another", 200, nil, longer, longer, 0)
	require.Equal(t, "a", chosen(t, u, Pick{Model: chatModel}, longer))
}

// Whatever becomes of a probe, of all models or of one, the key is asked again when its rest is over: a rest that stayed as if it
// were being found out about would keep it out for ever.
func TestProbeIsNeverTheLast(t *testing.T) {
	t.Parallel()
	down := map[string]func(k *Key, now time.Time){
		"all models": func(k *Key, now time.Time) { k.unanswered(chatModel, false, now, 0) },
		"one model":  func(k *Key, now time.Time) { k.answered(chatModel, 503, nil, now, now, 0) },
	}
	for rests, fail := range down {
		for _, status := range []int{0, 200, 400, 401, 403, 429, 500, 503} { // 0: no answer
			now := time.Now()
			u := keyed(1, 1)
			k := u.keys[0]
			for range downAfter {
				fail(k, now)
			}
			until, cause := k.resting(chatModel, now, false)
			require.Equal(t, CauseDown, cause)
			k.begin(chatModel, until)
			if status == 0 {
				k.unanswered(chatModel, false, until, 0)
			} else {
				k.answered(chatModel, status, nil, until, until, 0)
			}
			now = until.Add(longestTold)
			until, _ = k.resting(chatModel, now, false)
			require.Zero(t, until, "%s, %d", rests, status)
		}
	}
}

// What is known of keys outlives a policy, unless it is another key.
func TestAdopt(t *testing.T) {
	t.Parallel()
	now := time.Now()
	before, after := keyed(1, 1), keyed(1, 1, 1)
	before.keys[0].answered(chatModel, 401, nil, now, now, 0)
	before.keys[1].answered(chatModel, 401, nil, now, now, 0)
	before.keys[1].secret = "of before"
	after.Adopt(before)
	for i, rests := range []int{1, 0, 0} {
		require.Len(t, after.keys[i].Rests(now), rests, after.keys[i].Name)
	}
}

// Failures that come all at once, as when a connection breaks with every request on it, shut nothing; those that go on do.
func TestFailuresMustGoOn(t *testing.T) {
	t.Parallel()
	now := time.Now()
	u := keyed(1)
	k := u.keys[0]
	for range 100 {
		k.unanswered(chatModel, false, now, 10*time.Second)
	}
	require.Equal(t, "a", chosen(t, u, Pick{Model: chatModel}, now))
	now = now.Add(10 * time.Second)
	for range 100 {
		k.unanswered(chatModel, false, now, 10*time.Second)
	}
	until, cause := k.resting(chatModel, now, true)
	require.Equal(t, CauseDown, cause)
	require.LessOrEqual(t, until.Sub(now), time.Second, "those under way make it no longer")
}
