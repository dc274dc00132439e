package price

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// genaiFixture has every rule, constraint and kind of price that the source knows, in the source's shape.
const genaiFixture = `[
 {"id":"acme","name":"Acme","provider_match":{"or":[{"equals":"acme-ai"},{"contains":"acme"}]},
  "fallback_model_providers":["openai"],
  "models":[
   {"id":"flat","match":{"equals":"flat"},"context_window":1000,"prices":{"input_mtok":0.15,"output_mtok":3}},
   {"id":"stepped","match":{"starts_with":"stepped-"},"prices":{
     "input_mtok":{"base":3,"tiers":[{"start":200000,"price":6},{"start":900000,"price":7.5}]},
     "cache_read_mtok":0.3,"cache_write_mtok":3.75,"cache_write_1h_mtok":6,"output_mtok":15}},
   {"id":"dated","match":{"ends_with":"-dated"},"prices":[
     {"prices":{"input_mtok":3}},
     {"constraint":{"start_date":"2026-01-01"},"prices":{"input_mtok":2}},
     {"constraint":{"start_date":"2026-09-01"},"prices":{"input_mtok":1}}]},
   {"id":"daily","match":{"contains":"daily"},"prices":[
     {"prices":{"input_mtok":1}},
     {"constraint":{"start_time":"08:00:00Z","end_time":"18:30:00Z"},"prices":{"input_mtok":2}},
     {"constraint":{"start_time":"09:00:00Z","end_time":"10:00:00Z"},"prices":{"input_mtok":4}}]},
   {"id":"regex","match":{"regex":"^r\\d+$"},"prices":{"input_mtok":1,"requests_kcount":12,"web_searches_kcount":5}},
   {"id":"both","match":{"and":[{"starts_with":"x"},{"or":[{"contains":"y"},{"contains":"z"}]}]},"prices":{"input_mtok":1}},
   {"id":"media","match":{"equals":"media"},"prices":{"input_mtok":1,"input_audio_mtok":2,"input_image_mtok":3,
     "input_video_mtok":4,"cache_audio_read_mtok":5,"cache_image_read_mtok":6,"output_mtok":7,"output_reasoning_mtok":8,
     "output_audio_mtok":9,"output_image_mtok":10,"output_video_mtok":11,"output_citation_mtok":12}},
   {"id":"noisy","match":{"equals":"noisy"},"prices":{"input_mtok":0.18000000000000002,"cache_read_mtok":1e-9}},
   {"id":"inexact","match":{"equals":"inexact"},"prices":{"input_mtok":1,"cache_write_mtok":0.08333333333333334}},
   {"id":"unknown","match":{"equals":"unknown"},"prices":{}},
   {"id":"some:free","match":{"equals":"some:free"},"prices":{}}]},
 {"id":"openrouter","models":[{"id":"some:free","match":{"equals":"some:free"},"prices":{}}]},
 {"id":"google","models":[{"id":"gemini-0","match":{"equals":"gemini-0"},"prices":{"input_mtok":2,"output_mtok":3}}]},
 {"id":"openai","models":[
   {"id":"gpt-0","match":{"equals":"gpt-0"},"prices":{"input_mtok":2}},
   {"id":"gpt-image-0","match":{"equals":"gpt-image-0"},"prices":{"input_mtok":2,"output_mtok":30}},
   {"id":"gpt-0-tts","match":{"equals":"gpt-0-tts"},"prices":{"input_mtok":2,"output_mtok":12}},
   {"id":"moderation","match":{"contains":"moderation"},"prices":{}}]}
]`

func importFixture(t *testing.T) *Book {
	t.Helper()
	sheet, err := Import([]byte(genaiFixture), Source{Name: "fixture", Date: "2026-01-01"})
	require.NoError(t, err)
	require.Equal(t, []string{
		"acme/inexact: cache_write_5m refused: 0.08333333333333334: finer than a nano-dollar",
	}, sheet.Notes)
	require.Len(t, sheet.Source.SHA256, 64)
	book, err := sheet.Book()
	require.NoError(t, err)
	return book
}

func TestImportPrices(t *testing.T) {
	t.Parallel()
	book := importFixture(t)
	day := func(h, m int) time.Time { return time.Date(2026, 2, 1, h, m, 0, 0, time.UTC) }
	const dollar = ledger.Dollar
	for _, c := range []struct {
		provider, model string
		class           ledger.Class
		input           ledger.Tokens
		at              time.Time
		want            ledger.NanoUSD // -1: missing
	}{
		{"acme", "flat", ledger.ClassInput, 0, noon, 150_000_000},
		{"acme-ai", "flat", ledger.ClassOutput, 0, noon, 3 * dollar},
		{"acme", "stepped-1", ledger.ClassInput, 200_000, noon, 3 * dollar},
		{"acme", "stepped-1", ledger.ClassInput, 200_001, noon, 6 * dollar},
		{"acme", "stepped-1", ledger.ClassInput, 900_001, noon, 7_500_000_000},
		{"acme", "stepped-1", ledger.ClassCachedInput, 900_001, noon, 300_000_000},
		{"acme", "stepped-1", ledger.ClassCacheWrite5m, 0, noon, 3_750_000_000},
		{"acme", "stepped-1", ledger.ClassCacheWrite1h, 0, noon, 6 * dollar},
		{"acme", "a-dated", ledger.ClassInput, 0, date(2026, 1, 1).Add(-1), 3 * dollar},
		{"acme", "a-dated", ledger.ClassInput, 0, date(2026, 1, 1), 2 * dollar},
		{"acme", "a-dated", ledger.ClassInput, 0, date(2026, 9, 1), 1 * dollar},
		{"acme", "my-daily", ledger.ClassInput, 0, day(7, 59), 1 * dollar},
		{"acme", "my-daily", ledger.ClassInput, 0, day(8, 0), 2 * dollar},
		{"acme", "my-daily", ledger.ClassInput, 0, day(9, 30), 4 * dollar}, // the later of two wins
		{"acme", "my-daily", ledger.ClassInput, 0, day(18, 30), 1 * dollar},
		{"acme", "r17", ledger.ClassInput, 0, noon, 1 * dollar},
		{"acme", "x-z", ledger.ClassInput, 0, noon, 1 * dollar},
		{"acme", "media", ledger.ClassInputAudio, 0, noon, 2 * dollar},
		{"acme", "media", ledger.ClassInputImage, 0, noon, 3 * dollar},
		{"acme", "media", ledger.ClassInputVideo, 0, noon, 4 * dollar},
		{"acme", "media", ledger.ClassCachedInputAudio, 0, noon, 5 * dollar},
		{"acme", "media", ledger.ClassCachedInputImage, 0, noon, 6 * dollar},
		{"acme", "media", ledger.ClassReasoning, 0, noon, 8 * dollar},
		{"acme", "media", ledger.ClassOutputAudio, 0, noon, 9 * dollar},
		{"acme", "media", ledger.ClassOutputImage, 0, noon, 10 * dollar},
		{"acme", "media", ledger.ClassOutputVideo, 0, noon, 11 * dollar},
		{"acme", "media", ClassOutputCitation, 0, noon, 12 * dollar},
		{"acme", "noisy", ledger.ClassInput, 0, noon, 180_000_000},
		{"acme", "noisy", ledger.ClassCachedInput, 0, noon, 1},
		{"acme", "inexact", ledger.ClassCacheWrite5m, 0, noon, -1},
		{"acme", "gpt-0", ledger.ClassInput, 0, noon, 2 * dollar}, // borrowed
		{"openrouter", "some:free", ledger.ClassOutput, 0, noon, 0},
		{"openrouter", "some:free", ledger.ClassOutputImage, 0, noon, -1},
		{"openai", "omni-moderation-latest", ledger.ClassInput, 0, noon, 0},
		{"google", "gemini-0", ledger.ClassInputAudio, 0, noon, 2 * dollar},
		{"google", "gemini-0", ledger.ClassOutputAudio, 0, noon, -1},
		{"openai", "gpt-0", ledger.ClassInputAudio, 0, noon, -1},
		{"openai", "gpt-image-0", ledger.ClassOutputImage, 0, noon, 30 * dollar},
		{"openai", "gpt-0-tts", ledger.ClassOutputAudio, 0, noon, 12 * dollar},
	} {
		name := fmt.Sprintf("%s/%s %s at %d, %s", c.provider, c.model, c.class, c.input, c.at)
		row, ok := book.Find(c.provider, c.model, c.at)
		require.True(t, ok, name)
		got, ok := row.Price(c.class, c.input, c.at)
		require.Equal(t, c.want >= 0, ok, name)
		if ok {
			require.Equal(t, c.want, got, name)
		}
	}
	row, ok := book.Find("acme", "r17", noon)
	require.True(t, ok)
	require.Equal(t, map[Call]ledger.NanoUSD{CallRequest: 12_000 * dollar, CallWebSearch: 5_000 * dollar}, row.PerCall)
	for _, model := range []string{"unknown", "some:free", "y-x", "rx", "stepped"} {
		_, ok := book.Find("acme", model, noon)
		require.False(t, ok, model)
	}
}

func TestImportRefuses(t *testing.T) {
	t.Parallel()
	for prices, want := range map[string]string{
		`{"input_gtok":1}`:                       `acme/m: unknown price "input_gtok"`,
		`{"input_mtok":"cheap"}`:                 `is no number`,
		`{"input_mtok":-1}`:                      `is negative`,
		`{"input_mtok":1e12}`:                    `more than can be counted`,
		`{"requests_kcount":1e9}`:                `more than can be counted`,
		`{"requests_kcount":0.00000000001}`:      `finer than a nano-dollar`,
		`{"input_mtok":{"base":1,"marginal":2}}`: `unknown field "marginal"`,
		`{"input_mtok":{"base":1,"tiers":[{"start":5,"price":1},{"start":5,"price":1}]}}`: `does not ascend`,
		`[]`: `it has no prices`,
		`[{"constraint":{"start_date":"2026-01-01"},"prices":{}}]`:                                     `unknown kind of constraint`,
		`[{"prices":{}},{"prices":{}}]`:                                                                `unknown kind of constraint`,
		`[{"prices":{}},{"constraint":{"weekday":"1"},"prices":{}}]`:                                   `unknown field "weekday"`,
		`[{"prices":{}},{"constraint":{"start_date":"soon"},"prices":{}}]`:                             `cannot parse`,
		`[{"prices":{}},{"when":{"tier":"batch"},"prices":{}}]`:                                        `unknown field "when"`,
		`[{"prices":{}},{"constraint":{"start_time":"1:00","end_time":"2:00:00Z"},"prices":{}}]`:       `is not in UTC`,
		`[{"prices":{}},{"constraint":{"start_time":"25:00:00Z","end_time":"2:00:00Z"},"prices":{}}]`:  `time of day`,
		`[{"prices":{}},{"constraint":{"start_time":"02:00:00Z","end_time":"01:00:00Z"},"prices":{}}]`: `must end after they begin`,
		`[{"prices":{}},{"constraint":{"start_date":"2026-02-01"},"prices":{}},
		  {"constraint":{"start_date":"2026-01-01"},"prices":{}}]`: `is not after from`,
	} {
		data := fmt.Sprintf(`[{"id":"acme","models":[{"id":"m","match":{"equals":"m"},"prices":%s}]}]`, prices)
		sheet, err := Import([]byte(data), Source{})
		require.ErrorContains(t, err, want, prices)
		require.Nil(t, sheet)
	}
	_, err := Import([]byte(`{"models":[]}`), Source{})
	require.ErrorContains(t, err, "import prices")
	_, err = Import([]byte(`[{"id":"acme","models":[{"id":"m","match":{"like":"m"},"prices":{"input_mtok":1}}]}]`), Source{})
	require.ErrorContains(t, err, "no rule that we know")
}
