package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"tollgate/gateway/provider"
	"tollgate/ledger"
	"tollgate/ledger/price"
)

// priceAsk is what the flags of price say.
type priceAsk struct{ provider, protocol, model, at string }

func newPrice() *cobra.Command {
	var ask priceAsk
	c := &cobra.Command{
		Use:   "price --provider P --protocol chat|completions|responses|messages|embeddings|gemini < BODY",
		Short: "Say what a provider's answer, or its usage object, cost: token classes and price by class, as JSON",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			body, err := io.ReadAll(c.InOrStdin())
			if err != nil {
				return fmt.Errorf("price: read standard input: %w", err)
			}
			report, err := ask.report(body, time.Now())
			if err != nil {
				return fmt.Errorf("price: %w", err)
			}
			out := json.NewEncoder(c.OutOrStdout())
			out.SetIndent("", "  ")
			out.SetEscapeHTML(false)
			return out.Encode(report)
		},
	}
	f := c.Flags()
	f.StringVar(&ask.provider, "provider", "", "provider, as the price book names it: openai, anthropic, google, …")
	f.StringVar(&ask.protocol, "protocol", "", "how the answer is to be read: chat, completions, responses, messages, embeddings or gemini")
	f.StringVar(&ask.model, "model", "", "model that is priced; else the one that the answer names")
	f.StringVar(&ask.at, "at", "", "when it was served: a date or an RFC 3339 time; else now")
	for _, name := range []string{"provider", "protocol"} {
		if err := c.MarkFlagRequired(name); err != nil {
			panic(err) // the flag stands above
		}
	}
	return c
}

// priceReport is the answer of price. Dollars are exact decimals in text; CostUSD alone is rounded, as the ledger books it.
type priceReport struct {
	Provider    string             `json:"provider"`
	Protocol    string             `json:"protocol"`
	Model       string             `json:"model"`
	At          time.Time          `json:"at"`
	UsageState  ledger.UsageState  `json:"usage_state"`
	ServiceTier ledger.ServiceTier `json:"service_tier,omitempty"`
	Usage       ledger.Usage       `json:"usage"`
	Input       ledger.Tokens      `json:"input_tokens"`
	Output      ledger.Tokens      `json:"output_tokens"`
	Total       ledger.Tokens      `json:"total_tokens"`
	Components  []pricedClass      `json:"components"`
	InputUSD    string             `json:"input_usd"`
	OutputUSD   string             `json:"output_usd"`
	CallsUSD    string             `json:"calls_usd"`
	Others      []pricedOther      `json:"others,omitempty"`
	TotalUSD    string             `json:"total_usd,omitempty"` // "" where another model has no price
	CostUSD     string             `json:"cost_usd,omitempty"`
	ToldUSD     string             `json:"provider_cost_usd,omitempty"` // by the provider itself
	Rows        []pricedBy         `json:"price_rows"`
}

// pricedClass is one component; of a class of calls, Tokens counts calls.
type pricedClass struct {
	Class      ledger.Class  `json:"class"`
	Tokens     ledger.Tokens `json:"tokens"`
	PerMillion string        `json:"usd_per_million"`
	USD        string        `json:"usd"`
}

// pricedOther is what another model used for the answer, at its own price. It is in the total, and in neither side.
type pricedOther struct {
	ledger.ModelUsage
	Components []pricedClass `json:"components"`
	USD        string        `json:"usd,omitempty"` // "" where it has no price
}

type pricedBy struct {
	ID     string    `json:"id"`
	Model  string    `json:"model"`
	From   time.Time `json:"from,omitzero"`
	Until  time.Time `json:"until,omitzero"`
	Source string    `json:"source"`
}

// report reads and prices a body. A model without a price is an error, never free.
func (a priceAsk) report(body []byte, now time.Time) (priceReport, error) {
	at, err := instant(a.at, now)
	if err != nil {
		return priceReport{}, fmt.Errorf("--at: %w", err)
	}
	endpoint, ok := provider.EndpointOf(a.protocol)
	if !ok {
		return priceReport{}, fmt.Errorf("--protocol: there is no protocol %q: use chat, completions, responses, messages, embeddings or gemini", a.protocol)
	}
	answer, err := endpoint.ReadUsage(body)
	if err != nil {
		return priceReport{}, fmt.Errorf("the answer cannot be read as %s: %w", a.protocol, err)
	}
	r := priceReport{
		Provider: a.provider, Protocol: a.protocol, Model: a.model, At: at.UTC(), UsageState: answer.State, ServiceTier: answer.Tier,
		Usage: answer.Usage, Input: answer.Usage.InputTotal(), Output: answer.Usage.OutputTotal(), Total: answer.Usage.Total(),
	}
	if r.Model == "" {
		r.Model = answer.Model
	}
	if r.Model == "" {
		return priceReport{}, errors.New("the answer names no model: give --model")
	}
	row, ok := price.Default().Find(a.provider, r.Model, at)
	if !ok {
		return priceReport{}, fmt.Errorf("model %q of provider %q has no price at %s", r.Model, a.provider, at.UTC().Format(time.RFC3339))
	}
	cost, err := row.Cost(answer.Usage, answer.Tier, at)
	if err != nil {
		return priceReport{}, err
	}
	r.Rows = []pricedBy{{row.ID, row.Model, row.From, row.Until, row.Source}}
	if answer.Cost != nil {
		r.ToldUSD = answer.Cost.String()
	}
	all, missing := cost.Components, false
	for _, other := range answer.Others {
		theirs, known := price.Default().Find(a.provider, other.Model, at)
		var more price.Cost
		if known {
			more, err = theirs.Cost(other.Usage, answer.Tier, at)
		}
		if !known || err != nil {
			r.Others, missing = append(r.Others, pricedOther{ModelUsage: other, Components: []pricedClass{}}), true
			continue
		}
		r.Rows = append(r.Rows, pricedBy{theirs.ID, theirs.Model, theirs.From, theirs.Until, theirs.Source})
		r.Others = append(r.Others, pricedOther{other, spelled(more.Components), price.ExactUSD(more.Components...)})
		all, cost.Total = append(all, more.Components...), cost.Total+more.Total
	}
	r.spell(cost)
	if !missing {
		r.TotalUSD, r.CostUSD = price.ExactUSD(all...), cost.Total.String()
	}
	return r, nil
}

func spelled(components []price.Component) []pricedClass {
	out := []pricedClass{}
	for _, c := range components {
		perMillion := price.Component{Class: c.Class, Tokens: 1_000_000, Price: c.Price}
		out = append(out, pricedClass{c.Class, c.Tokens, price.ExactUSD(perMillion), price.ExactUSD(c)})
	}
	return out
}

func (r *priceReport) spell(cost price.Cost) {
	var in, out, calls []price.Component
	tokens := map[ledger.Class]bool{}
	for _, c := range r.Usage.Classes() {
		tokens[c.Class] = true
	}
	r.Components = spelled(cost.Components)
	for _, c := range cost.Components {
		switch {
		case !tokens[c.Class]:
			calls = append(calls, c)
		case c.Class.IsOutput():
			out = append(out, c)
		default:
			in = append(in, c)
		}
	}
	r.InputUSD, r.OutputUSD, r.CallsUSD = price.ExactUSD(in...), price.ExactUSD(out...), price.ExactUSD(calls...)
}

// instant reads a date or a time; "" is now.
func instant(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return now, nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is neither a date (2006-01-02) nor an RFC 3339 time", text)
}
