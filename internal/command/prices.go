package command

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"tollgate/ledger/policy"
	"tollgate/ledger/price"
)

// importAsk is what the flags of prices import say.
type importAsk struct {
	from, name, date string
	yes              bool
	accept           []string
}

func newPrices() *cobra.Command {
	var ask importAsk
	imports := &cobra.Command{
		Use:   "import FILE",
		Short: "Propose a later price file: show what it changes and, once approved, publish it to every gateway",
		Args:  cobra.ExactArgs(1),
		RunE:  func(c *cobra.Command, args []string) error { return importPrices(c, args[0], ask) },
	}
	f := imports.Flags()
	f.StringVar(&ask.from, "from", "", "from when its prices hold, where the file gives no date: a date or an RFC 3339 time; else now")
	f.StringVar(&ask.name, "source", "genai-prices", "what the file is, for a file that does not say")
	f.StringVar(&ask.date, "source-date", "", "the day of the file's state, for a file that does not say; else today")
	f.BoolVar(&ask.yes, "yes", false, "approve what is proposed without being asked")
	f.StringArrayVar(&ask.accept, "accept", nil, "approve a doubtful change by its name, provider/model; may be given again")
	show := &cobra.Command{
		Use: "show", Short: "Print the prices that were published over the built-in book", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return withBucket(c.Context(), func(ctx context.Context, bucket jetstream.KeyValue) error {
				entry, err := bucket.Get(ctx, policy.PricesKey)
				if err != nil {
					return fmt.Errorf("no prices have been published: %w", err)
				}
				_, err = c.OutOrStdout().Write(entry.Value())
				return err
			})
		},
	}
	return group("prices", "Propose, publish and read changes of the price book", imports, show, newRerate())
}

// readPriceFile reads a sheet of ours, or a file of genai-prices.
func readPriceFile(path string, ask importAsk, now time.Time) (*price.Sheet, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("prices: %w", err)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, fmt.Errorf("prices %s: the file is empty", path)
	}
	sheet, err := parsePrices(data, ask, now)
	var wrong *json.SyntaxError
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("prices %s: the file is cut: it ends at byte %d, in the middle: %w", path, len(data), err)
	case errors.As(err, &wrong):
		return nil, fmt.Errorf("prices %s: at byte %d: %w", path, wrong.Offset, err)
	case err != nil:
		return nil, fmt.Errorf("prices %s: %w", path, err)
	}
	return sheet, nil
}

func parsePrices(data []byte, ask importAsk, now time.Time) (*price.Sheet, error) {
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) {
		return price.ParseSheet(data)
	}
	source := price.Source{Name: ask.name, Date: ask.date}
	if source.Date == "" {
		source.Date = now.UTC().Format(time.DateOnly)
	}
	return price.Import(data, source)
}

// published is what was published over the built-in book so far, and the revision that it stands at.
func published(ctx context.Context, bucket jetstream.KeyValue) (*price.Sheet, uint64, error) {
	entry, err := bucket.Get(ctx, policy.PricesKey)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return &price.Sheet{}, 0, nil
	case err != nil:
		return nil, 0, fmt.Errorf("read published prices: %w", err)
	}
	sheet, err := price.ParseSheet(entry.Value())
	if err != nil {
		return nil, 0, fmt.Errorf("published prices: %w", err)
	}
	return sheet, entry.Revision(), nil
}

func importPrices(c *cobra.Command, path string, ask importAsk) error {
	now := time.Now().UTC().Truncate(time.Second)
	from, err := instant(ask.from, now)
	if err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	sheet, err := readPriceFile(path, ask, now)
	if err != nil {
		return err
	}
	var plan pricePlan
	err = withBucket(c.Context(), func(ctx context.Context, bucket jetstream.KeyValue) error {
		plan.before, plan.revision, err = published(ctx, bucket)
		return err
	})
	if err != nil {
		return err
	}
	if plan.book, err = price.Default().Amend(plan.before.Rows); err != nil {
		return fmt.Errorf("published prices: %w", err)
	}
	plan.proposal = plan.book.Propose(sheet, from.UTC())
	plan.show(c.OutOrStdout())
	if len(plan.proposal.Changes) == 0 {
		return nil
	}
	if err := plan.approve(c, ask); err != nil {
		return err
	}
	return plan.publish(c, sheet.Source)
}

// pricePlan is a proposal and what it would change.
type pricePlan struct {
	before   *price.Sheet
	revision uint64
	book     *price.Book
	proposal price.Proposal
}

func (p *pricePlan) show(out io.Writer) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	count := map[price.ChangeKind]int{}
	for _, change := range p.proposal.Changes {
		count[change.Kind]++
		for _, row := range change.Rows {
			until := ""
			if !row.Until.IsZero() {
				until = " until " + row.Until.Format(time.RFC3339)
			}
			fmt.Fprintf(table, "%s\t%s\tfrom %s%s\t%s\n", change.Kind, change.Name(), row.From.Format(time.RFC3339), until, row.ID)
		}
		for _, f := range change.Figures {
			percent, doubt := "", ""
			if f.PercentRounded != 0 {
				percent = fmt.Sprintf("%+d %%", f.PercentRounded)
			}
			if f.Doubt != "" {
				doubt = "! " + f.Doubt
			}
			fmt.Fprintf(table, "\t%s\t%s -> %s\t%s\t%s\n", f.What, figure(f.Before, f.Was), figure(f.After, f.Is), percent, doubt)
		}
	}
	_ = table.Flush() // a broken pipe shows at the next write
	fmt.Fprintf(out, "%d added, %d changed, %d ended; %d models are not in the file and keep their prices\n",
		count[price.ChangeAdded], count[price.ChangeChanged], count[price.ChangeEnded], len(p.proposal.Gone))
}

// figure is dollars per million, or that there is no such price.
func figure[T fmt.Stringer](amount T, known bool) string {
	if !known {
		return "none"
	}
	return strings.TrimSuffix(strings.TrimRight(amount.String(), "0"), ".")
}

// approve asks a person at a terminal, or takes the flags. A doubtful change is approved by its own name only.
func (p *pricePlan) approve(c *cobra.Command, ask importAsk) error {
	terminal := isTerminal(c.InOrStdin())
	answers := bufio.NewScanner(c.InOrStdin())
	confirmed := func(question string) bool {
		fmt.Fprintf(c.OutOrStdout(), "%s Type yes: ", question)
		return answers.Scan() && strings.TrimSpace(answers.Text()) == "yes"
	}
	var open []string
	for _, change := range p.proposal.Changes {
		if !change.Doubtful() || slices.Contains(ask.accept, change.Name()) {
			continue
		}
		if terminal && confirmed("The change of "+change.Name()+" is doubtful. Accept it?") {
			continue
		}
		open = append(open, "--accept "+change.Name())
	}
	switch {
	case len(open) > 0:
		return fmt.Errorf("nothing is published: doubtful changes must be accepted by name: %s", strings.Join(open, " "))
	case ask.yes || terminal && confirmed("Publish to every gateway?"):
		return nil
	default:
		return errors.New("nothing is published: approve what is proposed with --yes")
	}
}

// isTerminal reports whether somebody can answer there: the null device is a character device too, and no terminal.
func isTerminal(in io.Reader) bool {
	file, ok := in.(*os.File)
	return ok && isatty.IsTerminal(file.Fd())
}

// publish adds the rows to what was published before. Of two who publish at the same moment, one is told.
func (p *pricePlan) publish(c *cobra.Command, source price.Source) error {
	rows := p.proposal.Rows()
	if _, err := p.book.Amend(rows); err != nil {
		return fmt.Errorf("nothing is published: %w", err)
	}
	sheet := &price.Sheet{Source: source, Rows: append(slices.Clone(p.before.Rows), rows...)}
	data, err := sheet.Encode()
	if err != nil {
		return err
	}
	return withBucket(c.Context(), func(ctx context.Context, bucket jetstream.KeyValue) error {
		revision, err := bucket.Update(ctx, policy.PricesKey, data, p.revision)
		if errors.Is(err, jetstream.ErrKeyExists) {
			return errors.New("nothing is published: other prices were published at the same moment: import again")
		}
		if err != nil {
			return fmt.Errorf("publish prices: %w", err)
		}
		fmt.Fprintf(c.OutOrStdout(), "published %d rows as revision %d\n", len(rows), revision)
		return nil
	})
}
