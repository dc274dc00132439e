package admission

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/gateway/provider"
	"tollgate/ledger"
)

// learnTimes teaches that a request of 1,000 tokens used so many thousandths of them, and so many tokens of output.
func learnTimes(l *Learner, times int, raw provider.Estimate, thousandths, output ledger.Tokens) {
	for range times {
		l.Learn("app", "model", raw, ledger.Usage{Input: raw.Input * thousandths / 1000, Output: output})
	}
}

func guess(input ledger.Tokens) provider.Estimate {
	return provider.Estimate{Input: input, Output: provider.DefaultOutput, Choices: 1}
}

func TestLearnerBeginsWithDefaults(t *testing.T) {
	t.Parallel()
	l := NewLearner(100)
	for _, raw := range []provider.Estimate{
		guess(1000),
		{Input: 1000, Exact: true, Output: provider.DefaultOutput, Choices: 1},
		{Input: 1000, Output: 70, Bounded: true, Choices: 1},
		{Input: 5, Exact: true},
	} {
		for range minSamples {
			input, output := l.Estimate("app", "model", raw)
			require.Equal(t, raw.Corrected(), input)
			require.Equal(t, raw.Output, output)
			l.Learn("app", "other", raw, ledger.Usage{Input: 9000, Output: 1})
			l.Learn("other", "model", raw, ledger.Usage{Input: 9000, Output: 1})
		}
	}
	learnTimes(l, minSamples-1, guess(1000), 2000, 10)
	input, output := l.Estimate("app", "model", guess(1000))
	require.Equal(t, ledger.Tokens(1100), input, "one sample too few")
	require.Equal(t, provider.DefaultOutput, output)
	learnTimes(l, 1, guess(1000), 2000, 10)
	input, output = l.Estimate("app", "model", guess(1000))
	require.InDelta(t, 2030, int64(input), 31)
	require.Equal(t, minOutput, output)
}

func TestLearnerLearnsTheInput(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		thousandths ledger.Tokens
		least, most int64
	}{
		"much less": {10, 1000, 1000},
		"the same":  {1000, 1000, 1000},
		"more":      {1200, 1200, 1240},
		"three":     {3000, 3000, 3000},
		"ten times": {10_000, 3000, 3000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := NewLearner(1)
			learnTimes(l, 100, guess(1000), c.thousandths, 10)
			for _, raw := range []provider.Estimate{guess(1000), {Input: 1000, Exact: true, Output: 5, Bounded: true, Choices: 1}} {
				input, _ := l.Estimate("app", "model", raw)
				require.GreaterOrEqual(t, int64(input), c.least)
				require.LessOrEqual(t, int64(input), c.most)
			}
		})
	}
}

func TestLearnerTellsSizesApart(t *testing.T) {
	t.Parallel()
	l := NewLearner(1)
	learnTimes(l, 50, guess(20), 40_000, 10) // a prompt that the provider adds to each
	learnTimes(l, 50, guess(20_000), 1040, 10)
	short, _ := l.Estimate("app", "model", guess(100))
	require.Equal(t, ledger.Tokens(300), short)
	long, _ := l.Estimate("app", "model", guess(10_000))
	require.InDelta(t, 10_500, int64(long), 150)
	between, _ := l.Estimate("app", "model", guess(1000))
	require.Equal(t, ledger.Tokens(1100), between, "of which nothing is known")
}

func TestLearnerLearnsTheOutput(t *testing.T) {
	t.Parallel()
	l := NewLearner(1)
	bounded := provider.Estimate{Input: 1000, Output: 20, Bounded: true, Choices: 1}
	learnTimes(l, 100, bounded, 1000, 20)
	_, output := l.Estimate("app", "model", guess(1000))
	require.Equal(t, provider.DefaultOutput, output, "what a bound cut says nothing")
	learnTimes(l, 100, guess(1000), 1000, 800)
	_, output = l.Estimate("app", "model", guess(1000))
	require.InDelta(t, 1050, int64(output), 60)
	_, output = l.Estimate("app", "model", provider.Estimate{Input: 9, Output: 3 * provider.DefaultOutput, Choices: 3})
	require.InDelta(t, 3*1050, int64(output), 180, "for each answer")
	_, output = l.Estimate("app", "model", bounded)
	require.Equal(t, ledger.Tokens(20), output, "a bound is held")
	_, output = l.Estimate("app", "model", provider.Estimate{Input: 9})
	require.Zero(t, output, "of embeddings")
	learnTimes(l, 100, guess(1000), 1000, 50_000)
	_, output = l.Estimate("app", "model", guess(1000))
	require.Equal(t, provider.DefaultOutput, output)

	l = NewLearner(1)
	learnTimes(l, 100, provider.Estimate{Input: 1000, Choices: 4}, 1000, 4*800)
	_, output = l.Estimate("app", "model", guess(1000))
	require.InDelta(t, 1050, int64(output), 60, "learned for each answer")
}

func TestLearnerIgnoresWhatSaysNothing(t *testing.T) {
	t.Parallel()
	l := NewLearner(1)
	for range 100 {
		l.Learn("app", "model", guess(1000), ledger.Usage{})
		l.Learn("app", "model", guess(1000), ledger.Usage{Input: -5})
		l.Learn("app", "model", guess(1000), ledger.Usage{Input: 5, Output: -5})
		l.Learn("app", "model", guess(0), ledger.Usage{Input: 5})
	}
	input, output := l.Estimate("app", "model", guess(1000))
	require.Equal(t, ledger.Tokens(1100), input)
	require.Equal(t, provider.DefaultOutput, output)
}

func TestLearnerFollowsChange(t *testing.T) {
	t.Parallel()
	l := NewLearner(1)
	learnTimes(l, 5000, guess(1000), 2000, 3000)
	learnTimes(l, 2500, guess(1000), 1000, 100)
	input, output := l.Estimate("app", "model", guess(1000))
	require.Less(t, input, ledger.Tokens(1060), "the old has faded")
	require.Equal(t, minOutput, output)
	// More is believed sooner: a twentieth of what is remembered is enough.
	learnTimes(l, 40, guess(1000), 2000, 3000)
	input, output = l.Estimate("app", "model", guess(1000))
	require.Greater(t, input, ledger.Tokens(1990))
	require.Greater(t, output, ledger.Tokens(3700))
}

func TestLearnerForgets(t *testing.T) {
	t.Parallel()
	const most = 64
	l := NewLearner(most)
	teach := func(app string) {
		for range 2 * minSamples {
			l.Learn(app, "model", guess(1000), ledger.Usage{Input: 2000, Output: 100})
		}
	}
	known := func(app string) bool {
		input, output := l.Estimate(app, "model", guess(1000))
		require.Equal(t, input == 1100, output == provider.DefaultOutput, "both or none")
		return input != 1100
	}
	teach("favourite")
	for i := range 100 * most {
		require.True(t, known("favourite"), "what is asked for stays")
		teach(fmt.Sprint("app-", i))
	}
	kept := 0
	for i := range 100 * most {
		if known(fmt.Sprint("app-", i)) {
			kept++
		}
	}
	require.LessOrEqual(t, kept, most)
	require.GreaterOrEqual(t, kept, most/2)
	for i := range l.shards {
		require.LessOrEqual(t, len(l.shards[i].pairs), most/learnerShards)
		require.Len(t, l.shards[i].places, len(l.shards[i].pairs))
	}
}

// Against the quantiles of all samples, sorted, while nothing has faded.
func TestLearnerIsTheQuantile(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		l := NewLearner(1)
		raw := guess(ledger.Tokens(rapid.Int64Range(1, 100_000).Draw(rt, "raw")))
		used := rapid.SliceOfN(rapid.Int64Range(1, 5*int64(raw.Input)), minSamples, 400).Draw(rt, "used")
		outputs := rapid.SliceOfN(rapid.Int64Range(0, 6000), len(used), len(used)).Draw(rt, "outputs")
		for i := range used {
			l.Learn("app", "model", raw, ledger.Usage{CachedInput: ledger.Tokens(used[i]), Reasoning: ledger.Tokens(outputs[i])})
		}
		input, output := l.Estimate("app", "model", raw)
		slices.Sort(used)
		slices.Sort(outputs)
		at := func(sorted []int64, thousandths int) int64 { return sorted[(len(sorted)*thousandths+999)/1000-1] }
		want := min(max(at(used, inputQuantile), int64(raw.Input)), 3*int64(raw.Input))
		require.GreaterOrEqual(rt, int64(input), want)
		require.LessOrEqual(rt, int64(input), want*103/100+want/500+2)
		want = min(max(at(outputs, outputQuantile)*outputMargin/100, int64(minOutput)), int64(provider.DefaultOutput))
		require.GreaterOrEqual(rt, int64(output), want)
		require.LessOrEqual(rt, int64(output), want*111/100+2)
	})
}

func TestLearnerClasses(t *testing.T) {
	t.Parallel()
	var h histogram
	for _, ends := range [][]int64{ratioEnds, outputEnds} {
		require.LessOrEqual(t, len(ends), len(h.counts))
		require.True(t, slices.IsSorted(ends))
		require.Equal(t, len(ends)-1, classOf(ends, 1<<60))
		require.Zero(t, classOf(ends, 0))
	}
	require.Equal(t, []int64{1000, 3000}, []int64{ratioEnds[0], ratioEnds[len(ratioEnds)-1]})
	for range 10 * fullWeight {
		h.add(rand.IntN(len(h.counts)))
		sum := 0
		for _, n := range h.counts {
			sum += int(n)
		}
		require.Equal(t, sum, int(h.total))
		require.LessOrEqual(t, sum, fullWeight+sampleWeight)
	}
}

func TestLearnerFromManyGoroutines(t *testing.T) {
	t.Parallel()
	l := NewLearner(32)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 5000 {
				app := fmt.Sprint((g + i) % 50)
				l.Learn(app, "model", guess(1000), ledger.Usage{Input: 1500, Output: 10})
				if input, _ := l.Estimate(app, "model", guess(1000)); input != 1100 && (input < 1500 || input > 1550) {
					t.Errorf("%d", input)
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkLearner(b *testing.B) {
	l := NewLearner(10_000)
	apps := make([]string, 20_000)
	for i := range apps {
		apps[i] = fmt.Sprint("app-", i)
	}
	for _, known := range []int{1, 20_000} {
		b.Run(fmt.Sprint("pairs=", known), func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := rand.IntN(known); pb.Next(); i++ {
					raw := guess(ledger.Tokens(1 + i%10_000))
					l.Estimate(apps[i%known], "gpt-4o-mini", raw)
					l.Learn(apps[i%known], "gpt-4o-mini", raw, ledger.Usage{Input: raw.Input, Output: 100})
				}
			})
		})
	}
}
