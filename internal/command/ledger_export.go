package command

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tollgate/ledger/pg"
)

func newLedgerStatement() *cobra.Command {
	var app, month string
	var asJSON, asCSV bool
	c := &cobra.Command{
		Use:   "statement",
		Short: "One app's month: opening, grants, spend, adjustments, closing",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			at, err := time.Parse("2006-01", month)
			if err != nil {
				return fmt.Errorf("--month: want YYYY-MM, not %q", month)
			}
			return printStatement(c, app, at, asJSON, asCSV)
		},
	}
	c.Flags().StringVar(&app, "app", "", "app")
	c.Flags().StringVar(&month, "month", "", "month as YYYY-MM, by UTC days")
	c.Flags().BoolVar(&asJSON, "json", false, "as a JSON object")
	c.Flags().BoolVar(&asCSV, "csv", false, "as CSV with a header")
	c.MarkFlagsMutuallyExclusive("json", "csv")
	needFlags(c, "app", "month")
	return c
}

// needFlags makes flags that the command has mandatory.
func needFlags(c *cobra.Command, flags ...string) {
	for _, name := range flags {
		if err := c.MarkFlagRequired(name); err != nil {
			panic(err) // the command has no such flag
		}
	}
}

func printStatement(c *cobra.Command, app string, month time.Time, asJSON, asCSV bool) error {
	store, _, err := openStore(c.Context())
	if err != nil {
		return err
	}
	defer store.Close()
	x, err := store.Statement(c.Context(), app, month)
	if err != nil {
		return err
	}
	switch {
	case asJSON:
		return json.NewEncoder(c.OutOrStdout()).Encode(x)
	case asCSV:
		w := csv.NewWriter(c.OutOrStdout())
		w.UseCRLF = true
		return w.WriteAll([][]string{
			{"app", "month", "opening_usd", "grants_usd", "spend_usd", "adjustments_usd", "closing_usd"},
			{x.App, x.Month, x.Opening, x.Grants, x.Spend, x.Adjustments, x.Closing},
		})
	}
	table := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(c.OutOrStdout(), "%s, %s, dollars\n", x.App, x.Month)
	for _, line := range [][2]string{
		{"opening", x.Opening}, {"grants", x.Grants}, {"spend", x.Spend}, {"adjustments", x.Adjustments}, {"closing", x.Closing},
	} {
		fmt.Fprintf(table, "%s\t%s\t\n", line[0], line[1])
	}
	return table.Flush()
}

func newLedgerExport() *cobra.Command {
	var from, to, app, format, what string
	c := &cobra.Command{
		Use:   "export",
		Short: "Requests, transfers or FOCUS charges of some days as CSV on standard output",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			first, err := time.Parse(time.DateOnly, from)
			if err != nil {
				return fmt.Errorf("--from: want YYYY-MM-DD, not %q", from)
			}
			end, err := time.Parse(time.DateOnly, to)
			if err != nil || !end.After(first) {
				return fmt.Errorf("--to: want YYYY-MM-DD after %s, not %q", from, to)
			}
			kind := pg.ExportKind(cmp.Or(what, string(pg.ExportRequests)))
			switch {
			case format == "focus" && what == "":
				kind = pg.ExportFOCUS
			case format != "csv" || kind != pg.ExportRequests && kind != pg.ExportTransfers:
				return fmt.Errorf("--format: want csv or focus, with csv --what requests or transfers, not %q and %q", format, what)
			}
			return exportLedger(c, kind, first, end, app)
		},
	}
	c.Flags().StringVar(&from, "from", "", "first day, YYYY-MM-DD, UTC")
	c.Flags().StringVar(&to, "to", "", "day after the last one")
	c.Flags().StringVar(&app, "app", "", "only this app")
	c.Flags().StringVar(&format, "format", "csv", "csv, or focus for the columns of FOCUS 1.2")
	c.Flags().StringVar(&what, "what", "", "with csv: requests (the default) or transfers")
	needFlags(c, "from", "to")
	return c
}

func exportLedger(c *cobra.Command, kind pg.ExportKind, from, to time.Time, app string) error {
	if err := checkApp(c); err != nil {
		return err
	}
	store, _, err := openStore(c.Context())
	if err != nil {
		return err
	}
	defer store.Close()
	w := csv.NewWriter(c.OutOrStdout())
	w.UseCRLF = true // RFC 4180
	if err := store.Export(c.Context(), kind, from, to, app, w.Write); err != nil {
		return err
	}
	w.Flush()
	return w.Error()
}
