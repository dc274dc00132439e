package price

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"time"

	"tollgate/ledger"
)

// Import reads the price data of github.com/pydantic/genai-prices (prices/new_data/v2/data.json) into a sheet. Source says
// what it is; Import adds the hash. It never guesses: an unknown price key, constraint or rule is an error. A figure that is
// no exact number of nano-dollars per million is refused: its class becomes unpriced, and a note says so.
func Import(genaiJSON []byte, source Source) (*Sheet, error) {
	var providers []genaiProvider
	d := json.NewDecoder(bytes.NewReader(genaiJSON))
	d.UseNumber()
	if err := d.Decode(&providers); err != nil {
		return nil, fmt.Errorf("import prices: %w", err)
	}
	hash := sha256.Sum256(genaiJSON)
	source.SHA256 = hex.EncodeToString(hash[:])
	im := importer{sheet: &Sheet{Source: source}}
	for _, p := range providers {
		im.sheet.Providers = append(im.sheet.Providers, Provider{
			ID: p.ID, Aliases: p.ProviderMatch.names(), Borrow: p.ModelProviders,
		})
		for _, m := range p.Models {
			if err := im.model(p.ID, m); err != nil {
				return nil, fmt.Errorf("import prices: %s/%s: %w", p.ID, m.ID, err)
			}
		}
	}
	if _, err := im.sheet.Book(); err != nil {
		return nil, fmt.Errorf("import prices: %w", err)
	}
	return im.sheet, nil
}

type genaiProvider struct {
	ID             string       `json:"id"`
	ModelProviders []string     `json:"fallback_model_providers"`
	ProviderMatch  *genaiMatch  `json:"provider_match"`
	Models         []genaiModel `json:"models"`
}

type genaiModel struct {
	ID     string          `json:"id"`
	Match  genaiMatch      `json:"match"`
	Prices json.RawMessage `json:"prices"` // prices, or a list of them with constraints
}

type genaiMatch struct {
	Equals     string       `json:"equals"`
	StartsWith string       `json:"starts_with"`
	EndsWith   string       `json:"ends_with"`
	Contains   string       `json:"contains"`
	Regex      string       `json:"regex"`
	Or         []genaiMatch `json:"or"`
	And        []genaiMatch `json:"and"`
}

type genaiConditional struct {
	Constraint *genaiConstraint           `json:"constraint"`
	Prices     map[string]json.RawMessage `json:"prices"`
}

type genaiConstraint struct {
	StartDate string `json:"start_date"`
	StartTime string `json:"start_time"`
	EndTime   string `json:"end_time"`
}

type genaiSteps struct {
	Base  json.Number `json:"base"`
	Tiers []struct {
		Start ledger.Tokens `json:"start"`
		Price json.Number   `json:"price"`
	} `json:"tiers"`
}

func (m genaiMatch) rule() Match {
	out := Match{Equals: m.Equals, Prefix: m.StartsWith, Suffix: m.EndsWith, Contains: m.Contains, Regex: m.Regex}
	for _, part := range m.Or {
		out.Any = append(out.Any, part.rule())
	}
	for _, part := range m.And {
		out.All = append(out.All, part.rule())
	}
	return out
}

// names lists what a provider rule accepts by equality. Its looser parts ("contains openai") are left out on purpose: a
// provider of the policy called my-openai-proxy must not quietly be billed as OpenAI.
func (m *genaiMatch) names() []string {
	if m == nil {
		return nil
	}
	var names []string
	if m.Equals != "" {
		names = append(names, m.Equals)
	}
	for _, part := range m.Or {
		names = append(names, part.names()...)
	}
	return names
}

type importer struct{ sheet *Sheet }

// model adds the rows of one model. The source tries a list of prices from its last to its first; what it holds today is one
// unconstrained entry followed by dated ones, or by daily ones, and nothing else is accepted.
func (im *importer) model(provider string, m genaiModel) error {
	conditional, err := m.conditional()
	if err != nil {
		return err
	}
	match := m.Match.rule()
	if len(conditional) == 0 || match.IsZero() {
		return errors.New("it has no prices, or no rule that we know matches it")
	}
	var rows []Row
	for i, c := range conditional {
		row := Row{Provider: provider, Model: m.ID, Match: match, Source: im.sheet.Source.String()}
		if err := im.fill(&row, c.Prices); err != nil {
			return err
		}
		switch {
		case i == 0 && c.Constraint == nil:
			rows = append(rows, row)
		case i > 0 && c.Constraint != nil && c.Constraint.StartDate != "" && c.Constraint.StartTime == "":
			if row.From, err = time.Parse(time.DateOnly, c.Constraint.StartDate); err != nil {
				return err
			}
			rows[len(rows)-1].Until = row.From
			rows = append(rows, row)
		case i > 0 && c.Constraint != nil && c.Constraint.StartDate == "" && len(rows) == 1:
			if err := rows[0].addDaily(*c.Constraint, row); err != nil {
				return err
			}
		default:
			return errors.New("unknown kind of constraint")
		}
	}
	for i := range rows {
		rows[i].ID = rows[i].identify()
	}
	im.sheet.Rows = append(im.sheet.Rows, rows...)
	return nil
}

func (m genaiModel) conditional() ([]genaiConditional, error) {
	if bytes.HasPrefix(m.Prices, []byte("[")) {
		var list []genaiConditional
		return list, decodeStrict(m.Prices, &list)
	}
	flat := make([]genaiConditional, 1)
	return flat, decodeStrict(m.Prices, &flat[0].Prices)
}

// addDaily lays the prices of another row over this one for a part of each day. Where several overlap, the source prefers
// the later one, so it is put first.
func (r *Row) addDaily(c genaiConstraint, other Row) error {
	if len(other.PerCall) > 0 || len(other.Unpriced) > 0 {
		return errors.New("a daily price holds more than prices of tokens")
	}
	d := Daily{Prices: other.Prices}
	for _, bound := range []struct {
		text string
		into *TimeOfDay
	}{{c.StartTime, &d.From}, {c.EndTime, &d.Until}} {
		text, utc := strings.CutSuffix(bound.text, "Z")
		if !utc {
			return fmt.Errorf("time of day %q is not in UTC", bound.text)
		}
		if err := bound.into.UnmarshalText([]byte(text)); err != nil {
			return err
		}
	}
	r.Daily = slices.Insert(r.Daily, 0, d)
	return nil
}

// genaiClasses translates the source's keys of token prices, all in dollars per million.
var genaiClasses = map[string]ledger.Class{
	"input_mtok":            ledger.ClassInput,
	"cache_read_mtok":       ledger.ClassCachedInput,
	"cache_write_mtok":      ledger.ClassCacheWrite5m,
	"cache_write_1h_mtok":   ledger.ClassCacheWrite1h,
	"input_audio_mtok":      ledger.ClassInputAudio,
	"input_image_mtok":      ledger.ClassInputImage,
	"output_mtok":           ledger.ClassOutput,
	"output_reasoning_mtok": ledger.ClassReasoning,
	"output_audio_mtok":     ledger.ClassOutputAudio,
	"output_image_mtok":     ledger.ClassOutputImage,
	"cache_audio_read_mtok": ledger.ClassCachedInputAudio,
	"cache_image_read_mtok": ledger.ClassCachedInputImage,
	"input_video_mtok":      ledger.ClassInputVideo,
	"output_video_mtok":     ledger.ClassOutputVideo,
	"output_citation_mtok":  ClassOutputCitation,
}

// genaiCalls translates the source's keys of prices by the call, in dollars per thousand.
var genaiCalls = map[string]Call{
	"requests_kcount":     CallRequest,
	"web_searches_kcount": CallWebSearch,
}

func (im *importer) fill(row *Row, prices map[string]json.RawMessage) error {
	for key, raw := range prices {
		if call, ok := genaiCalls[key]; ok {
			price, err := parseNano(json.Number(raw))
			if err == nil && price > math.MaxInt64/1000 {
				err = ErrOverflow
			}
			if err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			if row.PerCall == nil {
				row.PerCall = map[Call]ledger.NanoUSD{}
			}
			row.PerCall[call] = price * 1000
			continue
		}
		class, ok := genaiClasses[key]
		if !ok {
			return fmt.Errorf("unknown price %q", key)
		}
		price, err := parseGenaiPrice(raw)
		if errors.Is(err, errInexact) {
			row.Unpriced = append(row.Unpriced, class)
			im.sheet.Notes = append(im.sheet.Notes, fmt.Sprintf("%s/%s: %s refused: %v", row.Provider, row.Model, class, err))
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		if row.Prices == nil {
			row.Prices = Prices{}
		}
		row.Prices[class] = price
	}
	slices.Sort(row.Unpriced)
	slices.Sort(im.sheet.Notes)
	state(row)
	return nil
}

func parseGenaiPrice(raw json.RawMessage) (Price, error) {
	if !bytes.HasPrefix(raw, []byte("{")) {
		base, err := parseNano(json.Number(raw))
		return Flat(base), err
	}
	var steps genaiSteps
	if err := decodeStrict(raw, &steps); err != nil {
		return Price{}, err
	}
	base, err := parseNano(steps.Base)
	if err != nil {
		return Price{}, err
	}
	p := Flat(base)
	for _, t := range steps.Tiers {
		price, err := parseNano(t.Price)
		if err != nil {
			return Price{}, err
		}
		p.Steps = append(p.Steps, Step{t.Start, price})
	}
	return p, nil
}

var errInexact = errors.New("finer than a nano-dollar")

// parseNano reads dollars as nano-dollars from the decimal text, never through a float. The source computes some figures in
// binary floating point (0.18000000000000002): a difference below a few units of a double's last place is its noise, not a
// price. Anything else past nine decimals is errInexact.
func parseNano(text json.Number) (ledger.NanoUSD, error) {
	exact, ok := new(big.Rat).SetString(string(text))
	if !ok {
		return 0, fmt.Errorf("%q is no number", text)
	}
	nano := new(big.Rat).Mul(exact, new(big.Rat).SetInt64(int64(ledger.Dollar)))
	whole, err := ledger.ParseUSD(exact.FloatString(9))
	if err != nil {
		return 0, err
	}
	off := new(big.Rat).Sub(nano, new(big.Rat).SetInt64(int64(whole)))
	noise := new(big.Rat).Mul(nano, big.NewRat(1, 1_000_000_000_000_000))
	if off.Abs(off).Cmp(noise.Abs(noise)) > 0 {
		return 0, fmt.Errorf("%s: %w", text, errInexact)
	}
	return whole, nil
}
