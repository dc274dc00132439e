package price

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"tollgate/ledger"
)

// Format is the version of the text that Sheet.Encode writes and ParseSheet reads.
const Format = "tollgate-prices/1"

// Sheet is a price book as a file: JSON with one line for each row, so that a change of a price is a change of a line. Money
// is decimal text in dollars per million, exact to the nano-dollar.
type Sheet struct {
	Source    Source
	Providers []Provider
	Notes     []string // what the source says and the format or the figures do not carry
	Rows      []Row
}

// Source says where the facts of a sheet come from.
type Source struct {
	Name    string `json:"name"`
	URL     string `json:"url,omitempty"`
	License string `json:"license,omitempty"`
	Date    string `json:"date,omitempty"`   // the day of the source's state, 2006-01-02
	SHA256  string `json:"sha256,omitempty"` // of the source file that was imported
}

func (s Source) String() string { return strings.TrimSpace(s.Name + " " + s.Date) }

//go:embed book.json
var builtin []byte

var parseBuiltin = sync.OnceValue(func() *Book {
	sheet, err := ParseSheet(builtin)
	if err != nil {
		panic("embedded price book: " + err.Error())
	}
	book, err := sheet.Book()
	if err != nil {
		panic("embedded price book: " + err.Error())
	}
	return book
})

// Default is the built-in book, parsed when it is first asked for. It panics if the embedded file is bad, which is a bug.
func Default() *Book { return parseBuiltin() }

// Book makes a book of the sheet's rows.
func (s *Sheet) Book() (*Book, error) { return newBook(s.Providers, s.Rows) }

type sheetFile struct {
	Format    string     `json:"format"`
	Source    Source     `json:"source"`
	Providers []Provider `json:"providers"`
	Notes     []string   `json:"notes,omitempty"`
	Rows      []rowFile  `json:"rows"`
}

type rowFile struct {
	ID       string         `json:"id,omitempty"`
	Provider string         `json:"provider"`
	Model    string         `json:"model"`
	Source   string         `json:"source,omitempty"` // where it is not the sheet's
	Match    Match          `json:"match,omitzero"`
	From     time.Time      `json:"from,omitzero"`
	Until    time.Time      `json:"until,omitzero"`
	Prices   Prices         `json:"usd_per_million,omitempty"`
	Unpriced []ledger.Class `json:"unpriced,omitempty"`
	Daily    []Daily        `json:"daily,omitempty"`

	Service map[ledger.ServiceTier]Prices `json:"usd_per_million_by_service_tier,omitempty"`
	PerCall map[Call]dollar               `json:"usd_per_million_calls,omitempty"`
}

// ParseSheet reads a sheet strictly: an unknown field, a number that is no exact amount of nano-dollars or text after the
// end is an error. Rows without an ID keep none; whether the rows make a book is judged by Sheet.Book.
func ParseSheet(data []byte) (*Sheet, error) {
	var f sheetFile
	if err := decodeStrict(data, &f); err != nil {
		return nil, fmt.Errorf("price sheet: %w", err)
	}
	if f.Format != Format {
		return nil, fmt.Errorf("price sheet: format %q is not %q", f.Format, Format)
	}
	s := &Sheet{Source: f.Source, Providers: f.Providers, Notes: f.Notes, Rows: make([]Row, 0, len(f.Rows))}
	for _, r := range f.Rows {
		row := Row{
			ID: r.ID, Provider: r.Provider, Model: r.Model, Match: r.Match, From: r.From, Until: r.Until,
			Prices: r.Prices, Unpriced: r.Unpriced, Daily: r.Daily, Service: r.Service,
			Source: f.Source.String(),
		}
		if r.Source != "" {
			row.Source = r.Source
		}
		for call, price := range r.PerCall {
			if row.PerCall == nil {
				row.PerCall = map[Call]ledger.NanoUSD{}
			}
			row.PerCall[call] = ledger.NanoUSD(price)
		}
		s.Rows = append(s.Rows, row)
	}
	return s, nil
}

func decodeStrict(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("text after the end")
	}
	return nil
}

// Encode writes the sheet so that the same sheet always gives the same bytes.
func (s *Sheet) Encode() ([]byte, error) {
	var b bytes.Buffer
	head, err := marshal(sheetFile{Format: Format, Source: s.Source, Providers: s.Providers, Notes: s.Notes, Rows: []rowFile{}})
	if err != nil {
		return nil, err
	}
	b.Write(bytes.TrimSuffix(head, []byte("]}")))
	for i, r := range s.Rows {
		f := rowFile{
			ID: r.ID, Provider: r.Provider, Model: r.Model, Match: r.Match, From: r.From, Until: r.Until,
			Prices: r.Prices, Unpriced: r.Unpriced, Daily: r.Daily, Service: r.Service,
		}
		if r.Source != s.Source.String() {
			f.Source = r.Source
		}
		for call, price := range r.PerCall {
			if f.PerCall == nil {
				f.PerCall = map[Call]dollar{}
			}
			f.PerCall[call] = dollar(price)
		}
		line, err := marshal(f)
		if err != nil {
			return nil, fmt.Errorf("price row %s: %w", r.ID, err)
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
		b.Write(line)
	}
	b.WriteString("\n]}\n")
	return b.Bytes(), nil
}

func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // names of models hold no markup, and people read the file
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// dollar is an amount as a JSON string in dollars, "0.15".
type dollar ledger.NanoUSD

func (d dollar) MarshalText() ([]byte, error) {
	text := ledger.NanoUSD(d).String()
	return []byte(strings.TrimSuffix(strings.TrimRight(text, "0"), ".")), nil
}

func (d *dollar) UnmarshalText(text []byte) error {
	n, err := ledger.ParseUSD(string(text))
	*d = dollar(n)
	return err
}

type priceFile struct {
	Base  dollar     `json:"base"`
	Steps []stepFile `json:"steps"`
	Mode  string     `json:"mode,omitempty"` // "" re-prices the whole request
}

const modeMarginal = "marginal"

type stepFile struct {
	Above ledger.Tokens `json:"above"`
	Price dollar        `json:"price"`
}

// MarshalJSON gives "0.15", or {"base":"3","steps":[{"above":200000,"price":"6"}]}.
func (p Price) MarshalJSON() ([]byte, error) {
	if len(p.Steps) == 0 && !p.Marginal {
		return json.Marshal(dollar(p.Base))
	}
	f := priceFile{Base: dollar(p.Base)}
	if p.Marginal {
		f.Mode = modeMarginal
	}
	for _, s := range p.Steps {
		f.Steps = append(f.Steps, stepFile{s.Above, dollar(s.Price)})
	}
	return json.Marshal(f)
}

// UnmarshalJSON reads what MarshalJSON gives.
func (p *Price) UnmarshalJSON(data []byte) error {
	if !bytes.HasPrefix(data, []byte("{")) {
		var base dollar
		if err := json.Unmarshal(data, &base); err != nil {
			return err
		}
		*p = Flat(ledger.NanoUSD(base))
		return nil
	}
	var f priceFile
	if err := decodeStrict(data, &f); err != nil {
		return err
	}
	if f.Mode != "" && f.Mode != modeMarginal {
		return fmt.Errorf("unknown mode of steps %q", f.Mode)
	}
	*p = Price{Base: ledger.NanoUSD(f.Base), Marginal: f.Mode == modeMarginal}
	for _, s := range f.Steps {
		p.Steps = append(p.Steps, Step{s.Above, ledger.NanoUSD(s.Price)})
	}
	return nil
}

// classes lists the classes of the prices in order of their names.
func (p Prices) classes() []ledger.Class { return slices.Sorted(maps.Keys(p)) }
