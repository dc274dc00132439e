package provider

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"hash/maphash"
	"math"
	"math/bits"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/pkoukk/tiktoken-go-loader/assets"
)

// vocabulary is one byte-pair encoding of OpenAI's: a text is cut into pieces, and in each piece the pair of neighbours that
// makes the token of the lowest rank is merged, again and again. It is only read, from any number of goroutines. It has no
// pointers into its 300,000 tokens, so that the garbage collector has nothing to follow.
type vocabulary struct {
	cut    func(s string) int // the length of the first piece of s, which is not empty
	tokens string             // all tokens in the order of their ranks
	ends   []uint32           // where each token ends in tokens
	slots  []slot             // an open hash table over tokens, of a size that is a power of two
	pairs  []uint32           // the rank of two bytes, the most frequent question
}

// slot is a token in the table, or noRank; check is the half of its hash that did not choose the slot.
type slot struct{ check, rank uint32 }

// noRank is above every rank: not a token.
const noRank = math.MaxUint32

// The vocabularies, nil until they are loaded.
var cl100k, o200k atomic.Pointer[vocabulary]

// LoadVocabularies unpacks the vocabularies that the binary holds: a tenth of a second, once, at start-up. Without them every estimate is
// the heuristic's. An error names a vocabulary that is damaged. Safe for concurrent use.
func LoadVocabularies() error { return loadVocabularies() }

var loadVocabularies = sync.OnceValue(func() error {
	for _, v := range []struct {
		file string
		cut  func(string) int
		into *atomic.Pointer[vocabulary]
	}{{"cl100k_base", cutCL100K, &cl100k}, {"o200k_base", cutO200K, &o200k}} {
		loaded, err := readVocabulary(v.file)
		if err != nil {
			return fmt.Errorf("vocabulary %s: %w", v.file, err)
		}
		loaded.cut = v.cut
		v.into.Store(loaded)
	}
	return nil
})

// readVocabulary reads lines of a token in base64, a blank and its rank, which is its line's number from 0.
func readVocabulary(name string) (*vocabulary, error) {
	data, err := assets.Assets.ReadFile(name + ".tiktoken")
	if err != nil {
		return nil, err
	}
	var tokens []byte
	var ends []uint32
	for line := range bytes.Lines(data) {
		encoded, rank, _ := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
		tokens, err = base64.StdEncoding.AppendDecode(tokens, encoded)
		if err != nil || string(rank) != strconv.Itoa(len(ends)) {
			return nil, fmt.Errorf("line %d is no token: %q", len(ends)+1, line)
		}
		ends = append(ends, uint32(len(tokens)))
	}
	return newVocabulary(string(tokens), ends), nil
}

func newVocabulary(tokens string, ends []uint32) *vocabulary {
	v := &vocabulary{tokens: tokens, ends: ends, pairs: make([]uint32, 1<<16)}
	v.slots = make([]slot, 1<<bits.Len(uint(2*len(ends))))
	for i := range v.slots {
		v.slots[i].rank = noRank
	}
	for i := range v.pairs {
		v.pairs[i] = noRank
	}
	for rank := range ends {
		token := v.token(uint32(rank))
		if len(token) == 2 {
			v.pairs[pair(token)] = uint32(rank)
		}
		at, check := v.slot(token)
		for v.slots[at].rank != noRank {
			at = (at + 1) % len(v.slots)
		}
		v.slots[at] = slot{check, uint32(rank)}
	}
	return v
}

func pair(token string) uint { return uint(token[0])<<8 | uint(token[1]) }

func (v *vocabulary) token(rank uint32) string {
	from := uint32(0)
	if rank > 0 {
		from = v.ends[rank-1]
	}
	return v.tokens[from:v.ends[rank]]
}

var hashSeed = maphash.MakeSeed()

// slot is where a token is looked for first, and what else its hash says.
func (v *vocabulary) slot(token string) (at int, check uint32) {
	h := maphash.String(hashSeed, token)
	return int(uint32(h)) & (len(v.slots) - 1), uint32(h >> 32)
}

// rank is the rank of a token, noRank for bytes that are none.
func (v *vocabulary) rank(token string) uint32 {
	if len(token) == 2 {
		return v.pairs[pair(token)]
	}
	at, check := v.slot(token)
	for {
		s := v.slots[at]
		if s.rank == noRank || s.check == check && v.token(s.rank) == token {
			return s.rank
		}
		at = (at + 1) & (len(v.slots) - 1)
	}
}

// mergeWork is how much dearer a byte is that has to be merged than one of a word that is a token.
const mergeWork = 8

// count counts the tokens of a text until it has done its work, in bytes, which it takes from *work, and says how many bytes
// it has done. The text of a special token counts as the text that it is.
func (v *vocabulary) count(s string, work *int) (tokens, done int) {
	for done < len(s) && *work > 0 {
		size := v.cut(s[done:])
		piece := s[done : done+size]
		*work -= size
		if size == 1 || v.rank(piece) != noRank {
			tokens++
			done += size
			continue
		}
		n, merged := v.merge(piece, work)
		tokens += n
		done += merged
	}
	return tokens, done
}
