package command

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func newLedger() *cobra.Command {
	verify := &cobra.Command{
		Use:   "verify",
		Short: "Check every invariant in the database: a line each, exit code 1 if one is broken",
		Args:  cobra.NoArgs,
		RunE:  verifyLedger,
	}
	return group("ledger", "Look at the ledger", verify)
}

func verifyLedger(c *cobra.Command, _ []string) error {
	store, _, err := openStore(c.Context())
	if err != nil {
		return err
	}
	defer store.Close()
	checks, err := store.Verify(c.Context())
	if err != nil {
		return err
	}
	broken := 0
	table := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	for _, check := range checks {
		verdict := "ok"
		if !check.OK {
			verdict = "BROKEN"
			broken++
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\n", verdict, check.Name, check.Figure, check.Meaning)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if broken > 0 {
		fmt.Fprintf(c.ErrOrStderr(), "%d of %d invariants are broken\n", broken, len(checks))
		return ErrFailed
	}
	return nil
}
