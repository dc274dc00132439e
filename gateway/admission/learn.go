package admission

import (
	"hash/maphash"
	"slices"
	"sync"

	"tollgate/gateway/provider"
	"tollgate/ledger"
)

// Learner corrects estimates by what earlier requests of the same app to the same model really used.
//
// The input is corrected by a high quantile of reported / estimated, at least 1: no request is ever admitted below what its
// text alone comes to. Short requests have a quantile of their own, because what a provider adds unseen weighs more there.
// The output of a request that gives no bound is a high quantile of what such requests got, with a margin; a bound that a
// request gives is held as it is, and teaches nothing, because it cuts what would have come.
//
// It remembers a fixed number of pairs, each in a few histograms of fixed size in which older requests fade. A pair that is
// forgotten, or has too few samples, has the defaults: provider.Estimate's own. Safe for concurrent use.
type Learner struct {
	seed   maphash.Seed
	shards [learnerShards]learnerShard
}

const (
	learnerShards = 16

	minSamples = 20 // below it nothing is known
	// A sample counts sampleWeight, so that it can fade by halves. At fullWeight, 512 samples, everything fades.
	sampleWeight = 16
	fullWeight   = 512 * sampleWeight

	inputQuantile  = 950 // in thousandths
	outputQuantile = 990
	outputMargin   = 125 // in percent

	minOutput ledger.Tokens = 256
)

// Requests are of one size when their estimated input is below the same of these.
var sizes = [...]ledger.Tokens{256, 4096}

// The upper ends of the histograms' classes: of reported / estimated input in thousandths, from 1 to 3 by 3 percent, and of
// output tokens, from what gives the least bound to what gives the most, by 10 percent.
var (
	ratioEnds  = classEnds(1000, 3000, 103)
	outputEnds = classEnds(int64(minOutput)*100/outputMargin, (int64(provider.DefaultOutput)*100+outputMargin-1)/outputMargin, 110)
)

// classEnds lists first, what follows by percent, and last.
func classEnds(first, last, percent int64) []int64 {
	list := []int64{first}
	for next := first; next < last; {
		next = min(last, (next*percent+99)/100)
		list = append(list, next)
	}
	return list
}

// learnerShard is a part of the pairs. A pair is found by its key; when all places are taken, the first that was not asked
// for since the hand last passed gives way.
type learnerShard struct {
	mu     sync.Mutex
	places map[learnerKey]int32
	pairs  []learnedPair
	most   int
	hand   int
}

type learnerKey struct{ app, model string }

type learnedPair struct {
	key    learnerKey
	asked  bool
	inputs [len(sizes) + 1]histogram
	output histogram
}

// NewLearner makes a learner that remembers at least maxPairs pairs of app and model, about 500 bytes each.
func NewLearner(maxPairs int) *Learner {
	l := &Learner{seed: maphash.MakeSeed()}
	for i := range l.shards {
		l.shards[i].places = map[learnerKey]int32{}
		l.shards[i].most = max(1, (maxPairs+learnerShards-1)/learnerShards)
	}
	return l
}

// Estimate is what to hold for a request: its input, never below raw's, and its output.
func (l *Learner) Estimate(app, model string, raw provider.Estimate) (input, output ledger.Tokens) {
	input, output = raw.Corrected(), raw.Output
	s := l.shard(app, model)
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.places[learnerKey{app, model}]
	if !ok {
		return input, output
	}
	p := &s.pairs[at]
	p.asked = true
	if class, ok := p.inputs[sizeOf(raw.Input)].quantile(inputQuantile); ok {
		input = ledger.Tokens((int64(raw.Input)*ratioEnds[class] + 999) / 1000)
	}
	if class, ok := p.output.quantile(outputQuantile); ok && !raw.Bounded {
		each := ledger.Tokens((outputEnds[class]*outputMargin + 99) / 100)
		output = ledger.Tokens(raw.Choices) * min(max(each, minOutput), provider.DefaultOutput)
	}
	return max(input, raw.Input), output
}

// Learn takes in what an answer with reported usage used. raw is the estimate of its request for the model that served it.
// A request whose input the provider read nothing of, or that is no estimate, teaches nothing.
func (l *Learner) Learn(app, model string, raw provider.Estimate, actual ledger.Usage) {
	in, out := actual.InputTotal(), actual.OutputTotal()
	if raw.Input <= 0 || in <= 0 || out < 0 {
		return
	}
	s := l.shard(app, model)
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pairLocked(learnerKey{app, model})
	ratio := (int64(min(in, 4*raw.Input))*1000 + int64(raw.Input) - 1) / int64(raw.Input)
	p.inputs[sizeOf(raw.Input)].add(classOf(ratioEnds, ratio))
	if !raw.Bounded && raw.Choices > 0 {
		p.output.add(classOf(outputEnds, (int64(out)+raw.Choices-1)/raw.Choices))
	}
}

func (l *Learner) shard(app, model string) *learnerShard {
	var h maphash.Hash
	h.SetSeed(l.seed)
	h.WriteString(app)
	h.WriteByte(0)
	h.WriteString(model)
	return &l.shards[h.Sum64()%learnerShards]
}

// pairLocked finds a pair or gives it a place, emptied.
func (s *learnerShard) pairLocked(key learnerKey) *learnedPair {
	if at, ok := s.places[key]; ok {
		return &s.pairs[at]
	}
	at := len(s.pairs)
	if at < s.most {
		s.pairs = append(s.pairs, learnedPair{})
	} else {
		for s.pairs[s.hand].asked {
			s.pairs[s.hand].asked = false
			s.hand = (s.hand + 1) % s.most
		}
		at = s.hand
		s.hand = (s.hand + 1) % s.most
		delete(s.places, s.pairs[at].key)
	}
	s.pairs[at] = learnedPair{key: key}
	s.places[key] = int32(at)
	return &s.pairs[at]
}

func sizeOf(input ledger.Tokens) int {
	for i, end := range sizes {
		if input < end {
			return i
		}
	}
	return len(sizes)
}

// classOf is the class of n: the first whose end is not below it, or the last.
func classOf(ends []int64, n int64) int {
	at, _ := slices.BinarySearch(ends, n)
	return min(at, len(ends)-1)
}

// histogram counts samples by class.
type histogram struct {
	total  uint16
	counts [40]uint16
}

func (h *histogram) add(class int) {
	if h.total >= fullWeight {
		h.total = 0
		for i := range h.counts {
			h.counts[i] /= 2
			h.total += h.counts[i]
		}
	}
	h.counts[class] += sampleWeight
	h.total += sampleWeight
}

// quantile is the class that a part of the samples, in thousandths, does not pass. ok is false for too few samples.
func (h *histogram) quantile(thousandths int) (class int, ok bool) {
	if h.total < minSamples*sampleWeight {
		return 0, false
	}
	sum := 0
	for class = range h.counts {
		if sum += int(h.counts[class]); sum*1000 >= int(h.total)*thousandths {
			break
		}
	}
	return class, true
}
