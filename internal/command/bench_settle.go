package command

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"tollgate/internal/bench"
)

func newBenchSettle() *cobra.Command {
	var o bench.SettleOptions
	c := &cobra.Command{
		Use:   "settle",
		Short: "Measure how fast settlers empty a full stream, beside a bare consume and a bare COPY; or their lag",
		Long: "Starts Postgres, Redis and NATS on loopback, fills the stream, and has 1, 2 and 4 settlers empty it, each time into an empty\n" +
			"ledger. Beside that the same stream is only consumed, and the same rows are only copied into tables of the same columns.\n" +
			"With --lag, events come at a fixed rate instead, and told is how long after that one settler has settled them.",
		Args: cobra.NoArgs,
	}
	f, jsonFile := c.Flags(), jsonFlag(c)
	f.IntVar(&o.Events, "events", 100_000, "on the stream, two a request")
	f.IntSliceVar(&o.Settlers, "settlers", []int{1, 2, 4}, "settlers side by side")
	f.StringArrayVar(&o.Env, "env", nil, "NAME=VALUE for the environment of the settlers, to compare settings")
	f.StringVar(&o.Profile, "profile", "", "folder for processor profiles of the first settler")
	lag := f.Bool("lag", false, "measure the lag")
	rate := f.Int("rate", 1000, "requests a second, with --lag")
	warmup := f.Duration("warmup", 10*time.Second, "before the requests that are measured, with --lag")
	length := f.Duration("duration", 10*time.Second, "of the requests, with --lag")
	raw := f.String("raw", "", "file for every single lag (gzipped CSV), with --lag")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *lag {
			found, err := bench.RunLag(c.Context(), *rate, *warmup, *length, *raw, c.ErrOrStderr())
			if found == nil {
				return err
			}
			return tell(c, found, *jsonFile, err)
		}
		if err := o.Validate(); err != nil {
			return err
		}
		if o.Profile != "" {
			if err := os.MkdirAll(o.Profile, 0o755); err != nil {
				return err
			}
		}
		found, err := bench.RunSettle(c.Context(), o, c.ErrOrStderr())
		if found == nil {
			return err
		}
		return tell(c, found, *jsonFile, err)
	}
	return c
}
