package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"tollgate/gateway/admission"
	"tollgate/ledger"
	"tollgate/ledger/pg"
	"tollgate/ledger/price"
	"tollgate/settler/rerate"
)

// rerateAsk is what the flags of prices rerate say.
type rerateAsk struct {
	provider, model, from, to, policy string
	post                              bool
	rows                              int
	limit                             time.Duration
}

func newRerate() *cobra.Command {
	var ask rerateAsk
	c := &cobra.Command{
		Use:   "rerate",
		Short: "Price past usage anew by the book in force, and say what was charged wrongly; --post corrects it by adjusting transfers",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return reratePast(c, ask) },
	}
	f := c.Flags()
	f.StringVar(&ask.provider, "provider", "", "only requests to one provider of the policy")
	f.StringVar(&ask.model, "model", "", "only requests for one model, as the provider was asked")
	f.StringVar(&ask.from, "from", "", "only requests admitted at or after a date or an RFC 3339 time")
	f.StringVar(&ask.to, "to", "", "only requests admitted before a date or an RFC 3339 time")
	f.StringVar(&ask.policy, "policy", "", "policy file whose prices apply; the pushed policy if none is given")
	f.BoolVar(&ask.post, "post", false, "post the adjustments; without it nothing is written")
	f.IntVar(&ask.rows, "rows", 10, "how many of the largest differences are shown")
	f.DurationVar(&ask.limit, "timeout", time.Minute, "how long to wait for the settlers, before and after posting")
	return c
}

func (a *rerateAsk) filter() (pg.PricedFilter, error) {
	filter := pg.PricedFilter{Provider: a.provider, Model: a.model}
	var errFrom, errTo error
	if filter.From, errFrom = instant(a.from, time.Time{}); errFrom != nil {
		errFrom = fmt.Errorf("--from: %w", errFrom)
	}
	if filter.Until, errTo = instant(a.to, time.Time{}); errTo != nil {
		errTo = fmt.Errorf("--to: %w", errTo)
	}
	err := errors.Join(errFrom, errTo)
	if err == nil && a.from != "" && a.to != "" && !filter.From.Before(filter.Until) {
		err = errors.New("--to must be after --from")
	}
	return filter, err
}

// narrowing is the flags that choose requests, as they were given.
func (a *rerateAsk) narrowing() string {
	var given []string
	for _, flag := range [][2]string{{"--provider", a.provider}, {"--model", a.model}, {"--from", a.from}, {"--to", a.to}} {
		if flag[1] != "" {
			given = append(given, flag[0]+" "+flag[1])
		}
	}
	return strings.Join(given, " ")
}

func reratePast(c *cobra.Command, ask rerateAsk) error {
	ctx := c.Context()
	filter, err := ask.filter()
	if err != nil {
		return err
	}
	store, connections, err := openStore(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	nc, err := nats.Connect(connections.NATS.Reveal(), nats.Name("tollgate-rerate"))
	if err != nil {
		return fmt.Errorf("NATS_URL: %w", err)
	}
	defer nc.Close()
	book, err := bookInForce(ctx, nc, ask.policy)
	if err != nil {
		return err
	}
	r := &rerate.Rerater{Store: store, Book: book, Filter: filter, Examples: max(ask.rows, 0)}
	if ask.post {
		if r.Stream, err = jetstream.New(nc); err != nil {
			return err
		}
		r.Certain = rerate.Settled(nc, ask.limit)
	}
	report, err := r.Run(ctx)
	if report != nil {
		showRerated(c.OutOrStdout(), report, ask.post)
		if flags := ask.narrowing(); err == nil && report.Looked == 0 && flags != "" {
			fmt.Fprintf(c.OutOrStdout(), "0 settled requests match %s\n", flags)
		}
	}
	if err != nil && report != nil && report.Posted > 0 {
		return fmt.Errorf("%w; %d adjustments are on the stream and count when they are settled: run it again for the rest", err, report.Posted)
	}
	return err
}

// bookInForce is the book that gateways price by: the built-in one, what was published over it, and the policy's prices.
func bookInForce(ctx context.Context, nc *nats.Conn, file string) (*price.Book, error) {
	p, err := policyFor(ctx, nc, file)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("prices: NATS did not answer in time"))
	defer cancel()
	bucket, err := policyBucket(ctx, nc)
	if err != nil {
		return nil, err
	}
	sheet, _, err := published(ctx, bucket)
	if err != nil {
		return nil, err
	}
	return admission.BookOf(sheet.Rows, p)
}

func showRerated(out io.Writer, r *rerate.Report, posted bool) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	requests, before, after := r.Total()
	if requests > 0 {
		fmt.Fprintln(table, "PROVIDER\tMODEL\tREQUESTS\tCHARGED\tANEW\tDIFFERENCE")
		for _, m := range r.Models {
			if m.Requests > 0 {
				fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\n", m.Provider, m.Model, m.Requests, m.Before, m.After, signed(m.After-m.Before))
			}
		}
		fmt.Fprintf(table, "all\t\t%d\t%s\t%s\t%s\n", requests, before, after, signed(after-before))
	}
	if len(r.Largest) > 0 {
		fmt.Fprintln(table, "\nLARGEST\tAPP\tMODEL\tADMITTED\tCHARGED\tANEW\tPRICE ROW")
		for _, d := range r.Largest {
			q := d.Request
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", q.ReservationID, q.App, q.Model, q.ReservedAt.UTC().Format(time.RFC3339), q.Charged, d.After, d.PriceRow)
		}
	}
	_ = table.Flush() // a broken pipe shows at the next write
	for _, m := range r.Models {
		if m.Unpriced > 0 {
			fmt.Fprintf(out, "%s %s: %d requests cannot be priced and keep the %s usd that they were charged: %s\n", m.Provider, m.Model, m.Unpriced, m.Kept, m.Why)
		}
	}
	if r.Unconfirmed > 0 {
		fmt.Fprintf(out, "%d requests expired without telling what they used and keep the %s usd that was held for them\n", r.Unconfirmed, r.UnconfirmedCharge)
	}
	done := "nothing is written; --post corrects them"
	if posted {
		done = fmt.Sprintf("%d adjustments posted", r.Posted)
	}
	fmt.Fprintf(out, "%d settled requests priced anew, %d were charged another cost: %s\n", r.Looked, requests, done)
}

func signed(amount ledger.NanoUSD) string {
	if amount > 0 {
		return "+" + amount.String()
	}
	return amount.String()
}
