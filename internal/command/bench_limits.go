package command

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"tollgate/internal/bench"
)

// report is what a bench has found.
type report interface {
	Print(out io.Writer) error
}

// tell prints what was found, also of a run that failed, and writes it to a file where one is named.
func tell(c *cobra.Command, found report, jsonFile string, err error) error {
	err = errors.Join(err, found.Print(c.OutOrStdout()))
	if jsonFile == "" {
		return err
	}
	text, encodeErr := json.MarshalIndent(found, "", "  ")
	if encodeErr == nil {
		encodeErr = os.WriteFile(jsonFile, append(text, '\n'), 0o644)
	}
	return errors.Join(err, encodeErr)
}

func jsonFlag(c *cobra.Command) *string { return c.Flags().String("json", "", "file for the figures") }

func newBenchAdmission() *cobra.Command {
	var o bench.AdmissionOptions
	c := &cobra.Command{
		Use:   "admission",
		Short: "Measure what a decision takes, beside a script that does nothing and beside no Redis at all",
		Long: "Starts the whole system on loopback, and in this process a gateway's admission: identify, read, estimate, judge. Four kinds\n" +
			"of call are measured in turn from 1, 16 and 64 callers: a script that does nothing, admitted requests, requests that the last\n" +
			"limit refuses, and requests judged without Redis. At the end whole requests go through gateways with and without Redis.",
		Args: cobra.NoArgs,
	}
	f, jsonFile := c.Flags(), jsonFlag(c)
	f.IntSliceVar(&o.Callers, "callers", []int{1, 16, 64}, "callers at once")
	f.DurationVar(&o.Slice, "slice", time.Second, "of each kind of call, in turn with the others")
	f.IntVar(&o.Rounds, "rounds", 5, "of all kinds")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := o.Validate(); err != nil {
			return err
		}
		found, err := bench.Admission(c.Context(), o, c.ErrOrStderr())
		if found == nil {
			return err
		}
		return tell(c, found, *jsonFile, err)
	}
	return c
}

func newBenchLimits() *cobra.Command {
	c := &cobra.Command{
		Use:   "limits",
		Short: "Hold limits on a minute's tokens to real minutes, and a bucket to its arithmetic",
		Long: "Starts the whole system on loopback. 200 clients send 300 requests a second, of 800 tokens each, against limits of 50,000\n" +
			"tokens a minute by three algorithms; told is how many passed within any minute. Beside them a bucket gets two bursts.",
		Args: cobra.NoArgs,
	}
	length, jsonFile := c.Flags().Duration("duration", 130*time.Second, "of the sending"), jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		found, err := bench.RunLimits(c.Context(), *length, c.ErrOrStderr())
		if found == nil {
			return err
		}
		return tell(c, found, *jsonFile, err)
	}
	return c
}

func newBenchIsolation() *cobra.Command {
	c := &cobra.Command{
		Use:   "isolation",
		Short: "Measure what nine apps within their limit notice of a tenth at 50 times its own",
		Long: "Starts the whole system on loopback. Nine apps send at fixed rates, 80 % of what they may; in every second round a tenth app\n" +
			"sends 50 times what it may.",
		Args: cobra.NoArgs,
	}
	f, jsonFile := c.Flags(), jsonFlag(c)
	round := f.Duration("round", 5*time.Second, "of either case, in turn")
	rounds := f.Int("rounds", 6, "of both cases")
	c.RunE = func(c *cobra.Command, _ []string) error {
		found, err := bench.RunIsolation(c.Context(), *round, *rounds, c.ErrOrStderr())
		if found == nil {
			return err
		}
		return tell(c, found, *jsonFile, err)
	}
	return c
}

func newBenchUsers() *cobra.Command {
	c := &cobra.Command{
		Use:   "users",
		Short: "Have a million end users come once each, and look what they leave behind",
		Long: "Starts the whole system on loopback, and in this process a gateway's admission through which all users come. Told is the\n" +
			"memory of Redis and of the admission before, at the end, and when the users' windows are over.",
		Args: cobra.NoArgs,
	}
	users, jsonFile := c.Flags().Int("users", 1_000_000, "that come"), jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		found, err := bench.RunUsers(c.Context(), *users, c.ErrOrStderr())
		if found == nil {
			return err
		}
		return tell(c, found, *jsonFile, err)
	}
	return c
}
