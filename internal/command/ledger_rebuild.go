package command

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tollgate/ledger/pg"
)

func newLedgerRebuild() *cobra.Command {
	var options pg.RebuildOptions
	c := &cobra.Command{
		Use:   "rebuild",
		Short: "Derive every projection from the events anew and compare: a line each, exit code 1 if one differs",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return rebuildLedger(c, options) },
	}
	c.Flags().BoolVar(&options.Keep, "keep", false, "leave the rebuilt tables in a schema of their own")
	c.Flags().IntVar(&options.Examples, "rows", 10, "how many differing rows of each table are named")
	return c
}

func rebuildLedger(c *cobra.Command, options pg.RebuildOptions) error {
	store, _, err := openStore(c.Context())
	if err != nil {
		return err
	}
	defer store.Close()
	began, said := time.Now(), time.Now()
	options.Schema = pg.RebuildSchema(began)
	options.Progress = func(events, total int64) {
		if time.Since(said) >= 5*time.Second {
			said = time.Now()
			fmt.Fprintf(c.ErrOrStderr(), "%d of %d events, %.0f/s\n", events, total, float64(events)/time.Since(began).Seconds())
		}
	}
	differences, events, err := store.Rebuild(c.Context(), options)
	if err != nil {
		return err
	}
	broken := 0
	table := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	for _, d := range differences {
		verdict := "ok"
		if d.Differ > 0 {
			verdict = "DIFFERS"
			broken++
		}
		fmt.Fprintf(table, "%s\t%s\t%d rows\t%d differ\n", verdict, d.Table, d.Rows, d.Differ)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, d := range differences {
		for _, example := range d.Examples {
			fmt.Fprintf(c.ErrOrStderr(), "%s %s\n", d.Table, example)
		}
	}
	fmt.Fprintf(c.OutOrStdout(), "%d events in %s\n", events, time.Since(began).Round(time.Millisecond))
	if options.Keep {
		fmt.Fprintf(c.OutOrStdout(), "kept in schema %s\n", options.Schema)
	}
	if broken > 0 {
		fmt.Fprintf(c.ErrOrStderr(), "%d of %d tables differ\n", broken, len(differences))
		return ErrFailed
	}
	return nil
}
