// Package command is the command line: each command reads its configuration, makes logger and registry, starts the part it
// is named after and turns its error into an exit code.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"
)

// ErrFailed is returned by a command that has already said what is wrong; only the exit code is left to set.
var ErrFailed = errors.New("failed")

// Main runs the command that args name and returns the exit code: 0, 1 for an error, 2 for words that make no command.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logging.Disable() // go-redis returns what it would write to standard error between our JSON lines
	return Run(ctx, args, os.Stdout, os.Stderr)
}

// Run is Main with its surroundings handed in.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return runRoot(ctx, newRoot(), args, stdout, stderr)
}

func runRoot(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	ran := false
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		err := c.ValidateRequiredFlags() // cobra asks afterwards only
		ran = err == nil
		return err
	}
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case !ran:
		fmt.Fprintf(stderr, "tollgate: %v\nRun 'tollgate --help' for what there is.\n", err)
		return 2
	case !errors.Is(err, ErrFailed):
		fmt.Fprintf(stderr, "tollgate: %v\n", err)
	}
	return 1
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "tollgate",
		Short:         "An LLM gateway with an event-sourced quota ledger",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(
		newDev(), newGateway(), newSettler(), newMigrate(), newPolicy(), newApp(), newKey(), newGrant(), newLedger(), newRebuild(),
		newPrice(), newPrices(), newProviderSim(), newBench(), newHealth(), newDoctor(),
	)
	return root
}

// group is a command that only has commands below it.
func group(use, short string, below ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(below...)
	return c
}

// checkApp refuses --app "": an unset variable of a shell must not mean all apps.
func checkApp(c *cobra.Command) error {
	if f := c.Flags().Lookup("app"); f.Changed && f.Value.String() == "" {
		return errors.New("--app: is empty; name an app, or leave it out for all")
	}
	return nil
}
