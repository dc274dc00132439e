package provider

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/pkoukk/tiktoken-go-loader/assets"
	"github.com/stretchr/testify/require"
)

// countAll counts a text whole.
func countAll(v *vocabulary, s string) int {
	work := math.MaxInt
	n, _ := v.count(s, &work)
	return n
}

func TestVocabulariesAreOpenAIs(t *testing.T) {
	t.Parallel()
	// The sums stand in OpenAI's own tokenizer, tiktoken_ext/openai_public.py.
	for file, sum := range map[string]string{
		"cl100k_base.tiktoken": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
		"o200k_base.tiktoken":  "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
	} {
		data, err := assets.Assets.ReadFile(file)
		require.NoError(t, err)
		got := sha256.Sum256(data)
		require.Equal(t, sum, hex.EncodeToString(got[:]), file)
	}
	require.Len(t, cl100k.Load().ends, 100_256)
	require.Len(t, o200k.Load().ends, 199_998)
}

// The counts are another implementation's.
func TestCountKnownTexts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text          string
		cl100k, o200k int
	}{
		{"", 0, 0},
		{"a", 1, 1},
		{"tiktoken is great!", 6, 6},
		{"Hello, world", 3, 3},
		{"antidisestablishmentarianism", 6, 6},
		{"2 + 2 = 4", 7, 7},
		{"1234567", 3, 3},
		{"お誕生日おめでとう", 9, 8},
		{"The committee's plan: they'll vote, we've heard; it DIDN'T pass.", 19, 17},
		{"HTTPServer parseURLFromString iPhone XMLHttpRequest", 7, 10},
		{"func main() {\n\tfmt.Println(\"hi\")\n}\n", 10, 10},
		{"   indented\n\n\n  more  \n", 7, 7},
		{"end of text   ", 4, 4},
		{"\r\n\r\n", 1, 1},
		{"x /// y //\n/z", 5, 6},
		{"état, naïve, Ünïcode, ÀÉ", 13, 12},
		{"Привет, мир! Как дела?", 12, 8},
		{"مرحبا بالعالم", 10, 4},
		{"สวัสดีชาวโลก", 13, 7},
		{"नमस्ते दुनिया", 13, 5},
		{"안녕하세요 세계", 9, 3},
		{"🙂👍🏽👨\u200d👩\u200d👧", 21, 12},
		{"<|endoftext|>", 7, 7},
		{"\u00a0\u3000x\u2028y", 6, 5},
		{"e\u0301 a\u0308b", 6, 5},
		{"ǅungla ʰa", 8, 8},
		{"½ Ⅷ ٣٤٥٦ 一二三", 17, 12},
		{strings.Repeat("a", 100), 13, 13},
		{strings.Repeat(" ", 100) + "x", 3, 3},
		{strings.Repeat("-", 200), 4, 3},
		{strings.Repeat("漢", 50), 100, 50},
		{"4e1f0c2d-9b7a-4c3e-8f6d-1a2b3c4d5e6f", 36, 36},
		{"iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4", 32, 31},
	} {
		require.Equal(t, c.cl100k, countAll(cl100k.Load(), c.text), c.text)
		require.Equal(t, c.o200k, countAll(o200k.Load(), c.text), c.text)
	}
}

// The vocabularies' patterns as OpenAI writes them, without what Go's expressions cannot say: blanks that nothing follows.
var (
	blankClass    = `\s\v\x{85}\p{Z}`
	referenceCL   = regexp.MustCompile(`^(?:(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^` + blankClass + `\p{L}\p{N}]+[\r\n]*|[` + blankClass + `]*[\r\n]+)`)
	referenceO    = regexp.MustCompile(`^(?:[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^` + blankClass + `\p{L}\p{N}]+[\r\n/]*|[` + blankClass + `]*[\r\n]+)`)
	referenceRun  = regexp.MustCompile(`^[` + blankClass + `]+`)
	referenceRule = map[string]*regexp.Regexp{"cl100k": referenceCL, "o200k": referenceO}
)

// referenceCut is the length of the first piece by the pattern itself.
func referenceCut(rule *regexp.Regexp, s string) int {
	if n := len(rule.FindString(s)); n > 0 {
		return n
	}
	blanks := referenceRun.FindString(s)
	if _, last := utf8.DecodeLastRuneInString(blanks); len(blanks) < len(s) && len(blanks) > last {
		return len(blanks) - last
	}
	return len(blanks)
}

// referenceMerge merges the leftmost pair of the lowest rank, again and again.
func referenceMerge(ranks map[string]uint32, piece string) int {
	parts := strings.Split(strings.Repeat(" ", max(0, len(piece)-1)), " ")
	for i := range parts {
		parts[i] = piece[i : i+1]
	}
	for {
		lowest, at := uint32(noRank), -1
		for i := 0; i+1 < len(parts); i++ {
			if rank, ok := ranks[parts[i]+parts[i+1]]; ok && rank < lowest {
				lowest, at = rank, i
			}
		}
		if at < 0 {
			return len(parts)
		}
		parts[at] += parts[at+1]
		parts = append(parts[:at+1], parts[at+2:]...)
	}
}

// tokenRanks is a vocabulary as a map.
func tokenRanks(v *vocabulary) map[string]uint32 {
	ranks := make(map[string]uint32, len(v.ends))
	for rank := range v.ends {
		ranks[v.token(uint32(rank))] = uint32(rank)
	}
	return ranks
}

// fragments are the pieces that the patterns tell apart.
var fragments = []string{
	"a", "B", "é", "É", "ß", "漢", "字", "の", "ー", "ǅ", "ʰ", "\u0301", "ि", "न", "ส", "วั", " ", "  ", "\t", "\n", "\r\n", "\r",
	"\u00a0", "\u3000", "\u2028", "\v", "\f", "\u0085", "1", "12", "１", "½", "Ⅷ", "'s", "'S", "'ll", "'LL", "'re", "'vE", "'ſ", "'d",
	"'", "’s", "/", "//", "!", "...", "_", "-", "🙂", "👨‍👩‍👧", "𝒳", "𠀀", "الع", "ш", "Ш", "hello", "World", "HTML", "iPhone", "~",
	"€", "\u200b", "\ufeff", "\x7f", "\x00", "<|endoftext|>", "{\"a\":1}", "  if x:\n\t", "http://", "\xff", "\xc3",
}

func TestCountIsThePatterns(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for name, v := range map[string]*vocabulary{"cl100k": cl100k.Load(), "o200k": o200k.Load()} {
		ranks := tokenRanks(v)
		for range 2_500 {
			var b strings.Builder
			for range 1 + r.IntN(10) {
				b.WriteString(fragments[r.IntN(len(fragments))])
			}
			requireReference(t, v, ranks, referenceRule[name], b.String())
		}
		// Pieces without end, short and long ones.
		for range 100 {
			letters := 1 + r.IntN(26)
			s := make([]byte, r.IntN(600))
			for i := range s {
				s[i] = byte('a' + r.IntN(letters))
			}
			requireReference(t, v, ranks, referenceRule[name], string(s))
		}
	}
}

// requireReference requires that a text is cut as the pattern says, and counted as naive merging does. Text that is no UTF-8
// is counted, but not as any pattern says.
func requireReference(t *testing.T, v *vocabulary, ranks map[string]uint32, rule *regexp.Regexp, s string) {
	t.Helper()
	want := 0
	for rest := s; len(rest) > 0; {
		size := v.cut(rest)
		require.Positive(t, size, "%q", rest)
		require.LessOrEqual(t, size, len(rest))
		if utf8.ValidString(rest) {
			require.Equal(t, rest[:referenceCut(rule, rest)], rest[:size], "first piece of %q", rest)
		}
		if _, ok := ranks[rest[:size]]; ok {
			want++
		} else {
			want += referenceMerge(ranks, rest[:size])
		}
		rest = rest[size:]
	}
	require.Equal(t, want, countAll(v, s), "%q", s)
}

func FuzzCount(f *testing.F) {
	ranks := map[string]map[string]uint32{"cl100k": tokenRanks(cl100k.Load()), "o200k": tokenRanks(o200k.Load())}
	for _, fragment := range fragments {
		f.Add(fragment + "x" + fragment)
	}
	f.Fuzz(func(t *testing.T, s string) {
		s = s[:min(len(s), 600)]
		requireReference(t, cl100k.Load(), ranks["cl100k"], referenceCL, s)
		requireReference(t, o200k.Load(), ranks["o200k"], referenceO, s)
	})
}

// worstTexts make the most work: a piece without end, pieces that are no token, characters outside every table.
func worstTexts(size int) map[string]string {
	r := rand.New(rand.NewPCG(3, 4))
	from := func(alphabet string) string {
		b := make([]byte, size)
		for i := range b {
			b[i] = alphabet[r.IntN(len(alphabet))]
		}
		return string(b)
	}
	again := func(s string) string { return strings.Repeat(s, size/len(s)+1)[:size] }
	bytes := make([]byte, size)
	for i := range bytes {
		bytes[i] = byte(r.IntN(256))
	}
	const lower, upper, digits = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"
	return map[string]string{
		"one letter": again("a"), "letters": from(lower), "capitals": from(upper), "Han then capitals": again("漢AAAAAAAAAAAAA"),
		"blanks": again(" "), "newlines": again("\n"), "blanks and newlines": again(" \n "), "signs": again("_"), "marks": again("\u0301"),
		"base64": from(lower + upper + digits + "+/"), "digits": from(digits), "bytes": string(bytes), "apostrophes": again("'"),
		"emoji": again("🙂👍🏽"), "rare Han": again("𠀀𠀁"), "Thai": again("สวัสดีชาวโลก"),
	}
}

func TestCountIsNoDenialOfService(t *testing.T) {
	t.Parallel()
	const size = 128 << 10 // for hours, were it the square of the length
	start := time.Now()
	for name, s := range worstTexts(size) {
		require.Positive(t, countAll(o200k.Load(), s), name)
		require.Positive(t, countAll(cl100k.Load(), s), name)
	}
	require.Less(t, time.Since(start), 3*time.Minute)
}

func TestCountStopsWhereItsWorkIsDone(t *testing.T) {
	t.Parallel()
	for name, s := range worstTexts(128 << 10) {
		work := 16 << 10
		n, done := o200k.Load().count(s, &work)
		require.Positive(t, done, name)
		require.LessOrEqual(t, n, done, name)
		require.LessOrEqual(t, work, 0, name)
		require.Less(t, done, len(s), name)
		require.GreaterOrEqual(t, work, -(mergeWork+1)*len(s), name)
		// What was left is counted by the next call.
		rest := math.MaxInt
		_, more := o200k.Load().count(s[done:], &rest)
		require.Equal(t, len(s), done+more, name)
	}
	work := 0
	n, done := o200k.Load().count("text", &work)
	require.Zero(t, n+done)
}

func TestCountFromManyGoroutines(t *testing.T) {
	t.Parallel()
	texts := worstTexts(20_000)
	want := map[string]int{}
	for name, s := range texts {
		want[name] = countAll(o200k.Load(), s)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for name, s := range texts {
				if got := countAll(o200k.Load(), s); got != want[name] {
					t.Errorf("%s: %d, want %d", name, got, want[name])
				}
			}
		})
	}
	wg.Wait()
}

func TestRulesOf(t *testing.T) {
	t.Parallel()
	for model, want := range map[string]*vocabulary{
		"gpt-4o": o200k.Load(), "gpt-4o-mini-2024-07-18": o200k.Load(), "chatgpt-4o-latest": o200k.Load(), "gpt-4.1-nano": o200k.Load(), "gpt-5": o200k.Load(),
		"gpt-5.4-mini": o200k.Load(), "o1": o200k.Load(), "o3-mini": o200k.Load(), "o4-mini": o200k.Load(), "openai/gpt-oss-120b": o200k.Load(),
		"OpenAI/GPT-4o": o200k.Load(), "ft:gpt-4o-mini:acme::abc": o200k.Load(),
		"gpt-4": cl100k.Load(), "gpt-4-turbo": cl100k.Load(), "gpt-4-32k": cl100k.Load(), "gpt-3.5-turbo": cl100k.Load(), "gpt-35-turbo": cl100k.Load(),
		"text-embedding-3-small": cl100k.Load(), "text-embedding-ada-002": cl100k.Load(), "babbage-002": cl100k.Load(),
		"claude-sonnet-4-5": nil, "gemini-2.5-flash": nil, "llama-3.3-70b": nil, "mistral-large-latest": nil, "in-house": nil, "": nil, "/": nil,
	} {
		require.Same(t, want, newEstimator(model).vocabulary, model)
	}
}

func TestRulesOfPrefixedNames(t *testing.T) {
	t.Parallel()
	for name, same := range map[string]string{
		"eu.anthropic.claude-sonnet-4-5-20250929-v1:0": "claude-sonnet-4-5", "anthropic/claude-opus-4.8": "claude-opus-4.8",
		"meta-llama/llama-4-scout": "llama-4-scout", "gpt-4o-2024-08-06": "gpt-4o", "ft:gpt-4.1-mini:x": "gpt-4.1-mini", "mine": "other",
	} {
		require.Same(t, rulesOf(same), rulesOf(name), name)
	}
	require.NotSame(t, rulesOf("claude-sonnet-4-5"), rulesOf("claude-opus-4-8"))
}

func BenchmarkCount(b *testing.B) {
	texts := worstTexts(100_000)
	prose := "The committee decided yesterday that every request must be measured before it is sent, because nobody wants to pay for something that was never used.\n"
	texts["prose"] = strings.Repeat(prose, 100_000/len(prose))
	for name, s := range texts {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(s)))
			b.ReportAllocs()
			tokens, work := 0, 0
			for b.Loop() {
				work = math.MaxInt
				tokens, _ = o200k.Load().count(s, &work)
			}
			b.ReportMetric(float64(len(s))/float64(tokens), "B/token")
			b.ReportMetric(float64(math.MaxInt-work)/float64(len(s)), "work/B")
		})
	}
}

func BenchmarkReadVocabulary(b *testing.B) {
	for b.Loop() {
		if _, err := readVocabulary("o200k_base"); err != nil {
			b.Fatal(err)
		}
	}
}
