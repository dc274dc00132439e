package command

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tollgate/ledger/pg"
)

func newLedger() *cobra.Command {
	var head string
	verify := &cobra.Command{
		Use:   "verify",
		Short: "Check every invariant and the hash chain in the database: a line each, exit code 1 if one is broken",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return verifyLedger(c, head) },
	}
	verify.Flags().StringVar(&head, "head", "", "a head that verify printed earlier; the chain must still contain it")
	return group("ledger", "Look at the ledger", verify, newLedgerRebuild(), newLedgerStatement(), newLedgerExport())
}

func verifyLedger(c *cobra.Command, head string) error {
	known, err := hex.DecodeString(head)
	if err != nil || len(known) != 0 && len(known) != sha256.Size {
		return fmt.Errorf("--head: want the 64 hexadecimal digits that verify prints, not %q", head)
	}
	store, _, err := openStore(c.Context())
	if err != nil {
		return err
	}
	defer store.Close()
	checks, err := store.Verify(c.Context())
	if err != nil {
		return err
	}
	chain, err := store.VerifyChain(c.Context(), known)
	if err != nil {
		return err
	}
	broken := 0
	table := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	checks = append(checks, chainChecks(chain, known)...)
	for _, check := range checks {
		verdict := "ok"
		switch {
		case !check.OK:
			verdict = "BROKEN"
			broken++
		case check.Elsewhere:
			verdict = "-"
		}
		line := check.Meaning
		if check.Example != "" {
			line += "; first: " + check.Example
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\n", verdict, check.Name, check.Figure, line)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, wrong := range chain.Wrong {
		fmt.Fprintln(c.ErrOrStderr(), wrong)
	}
	fmt.Fprintf(c.OutOrStdout(), "%d rows in %d blocks, %d not sealed yet; head %s\n", chain.Rows, chain.Blocks, chain.Unsealed,
		cmp.Or(hex.EncodeToString(chain.Head), "none"))
	if broken > 0 {
		fmt.Fprintf(c.ErrOrStderr(), "%d of %d checks are broken\n", broken, len(checks))
		return ErrFailed
	}
	return nil
}

// chainChecks are the lines about the hash chain.
func chainChecks(chain pg.Chain, known []byte) []pg.Check {
	rows := pg.Check{Name: "chain rows-as-sealed", Meaning: "rows or blocks changed, added or removed since they were sealed", OK: true}
	if rows.Figure = int64(len(chain.Wrong)); rows.Figure > 0 {
		rows.OK, rows.Example = false, chain.Wrong[0]
	}
	if len(known) == 0 {
		return []pg.Check{rows}
	}
	head := pg.Check{Name: "chain head-known", Meaning: "earlier heads that the chain lacks: sealed anew, cut off or restored from before", OK: chain.Contains}
	if !head.OK {
		head.Figure, head.Example = 1, hex.EncodeToString(known)
	}
	return []pg.Check{rows, head}
}
