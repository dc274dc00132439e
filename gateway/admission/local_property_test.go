package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// use is what was admitted at one instant.
type use struct {
	at     time.Duration
	tokens int64
}

// plainLocal is one app's allowance that keeps everything it admitted.
type plainLocal struct{ uses []use }

// used sums what each gives over the uses that count at now, where a window of that length is cut into so many parts.
func (p *plainLocal) used(now, window time.Duration, parts int, each func(use) int64) (sum int64) {
	part := window / time.Duration(parts)
	for _, u := range p.uses {
		if now/part-u.at/part <= time.Duration(parts) {
			sum += each(u)
		}
	}
	return sum
}

func (p *plainLocal) fits(now time.Duration, limits policy.Local, tokens int64) bool {
	requests := p.used(now, time.Second, secondParts, func(use) int64 { return 1 })
	spent := p.used(now, time.Minute, minuteParts, func(u use) int64 { return u.tokens })
	return requests+1 <= limits.RequestsPerSecond && spent+tokens <= limits.TokensPerMinute
}

// wait tries every instant at which something may leave.
func (p *plainLocal) wait(now time.Duration, limits policy.Local, tokens int64) time.Duration {
	const step = time.Second / secondParts // divides the other
	for at := (now/step + 1) * step; ; at += step {
		if p.fits(at, limits, tokens) {
			return at - now
		}
	}
}

var instants = rapid.Custom(func(t *rapid.T) time.Duration {
	// Edges of parts, and just beside them.
	edge := time.Duration(rapid.SampledFrom([]int64{int64(time.Second / secondParts), int64(time.Minute / minuteParts), 1}).Draw(t, "edge"))
	return max(0, edge*time.Duration(rapid.IntRange(0, 12).Draw(t, "edges"))+time.Duration(rapid.IntRange(-1, 1).Draw(t, "beside")))
})

// Over random histories each app's allowance decides as one does that keeps all it admitted, and tells the exact wait.
func TestLocalAgainstReference(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		clock := newHand()
		l := NewLocal(clock.now)
		plain := map[string]*plainLocal{"a": {}, "b": {}}
		limits := limits(3, 100)
		t.Repeat(map[string]func(*rapid.T){
			"time passes": func(t *rapid.T) { clock.passed += instants.Draw(t, "pause") },
			"policy changes": func(t *rapid.T) {
				limits = policy.Local{
					RequestsPerSecond: rapid.Int64Range(1, 6).Draw(t, "requests"), TokensPerMinute: rapid.Int64Range(50, 200).Draw(t, "tokens"),
				}
			},
			"request": func(t *rapid.T) {
				app, tokens := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "app"), rapid.Int64Range(0, 50).Draw(t, "need")
				p := plain[app]
				want := p.fits(clock.passed, limits, tokens)
				ok, wait := l.Allow(limits, app, ledger.Tokens(tokens))
				if ok != want {
					t.Fatalf("allowed %v, want %v", ok, want)
				}
				if ok {
					p.uses = append(p.uses, use{clock.passed, tokens})
				} else if want := p.wait(clock.passed, limits, tokens); wait != want {
					t.Fatalf("wait %s, want %s", wait, want)
				}
			},
		})
	})
}

// With fewer records than apps: whatever is evicted and shared, in no second and in no minute does any app get more than its
// allowance, and no more at once than there are records, and one to share, for.
func TestLocalNeverAllowsMore(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const records = 2
		clock := newHand()
		l := newLocal(clock.now, records)
		limits := limits(rapid.Int64Range(1, 4).Draw(t, "requests"), rapid.Int64Range(20, 40).Draw(t, "tokens"))
		admitted, all := map[string][]use{}, []use{}
		t.Repeat(map[string]func(*rapid.T){
			"time passes":      func(t *rapid.T) { clock.passed += instants.Draw(t, "pause") },
			"much time passes": func(t *rapid.T) { clock.passed += time.Duration(rapid.IntRange(0, 70).Draw(t, "s")) * time.Second },
			"request": func(t *rapid.T) {
				app, tokens := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "app"), rapid.Int64Range(0, 20).Draw(t, "need")
				if ok, _ := l.Allow(limits, app, ledger.Tokens(tokens)); ok {
					admitted[app] = append(admitted[app], use{clock.passed, tokens})
					all = append(all, use{clock.passed, tokens})
				}
				if len(l.apps) > records {
					t.Fatalf("%d records", len(l.apps))
				}
			},
		})
		for _, uses := range admitted {
			requireWithin(t, uses, limits, 1)
		}
		requireWithin(t, all, limits, records+1)
	})
}

// requireWithin looks at every window that ends with a use, its first instant included.
func requireWithin(t require.TestingT, uses []use, limits policy.Local, times int64) {
	for i, last := range uses {
		var requests, tokens int64
		for _, u := range uses[:i+1] {
			if last.at-u.at <= time.Second {
				requests++
			}
			if last.at-u.at <= time.Minute {
				tokens += u.tokens
			}
		}
		require.LessOrEqual(t, requests, times*limits.RequestsPerSecond, "requests in a second up to %s", last.at)
		require.LessOrEqual(t, tokens, times*limits.TokensPerMinute, "tokens in a minute up to %s", last.at)
	}
}
