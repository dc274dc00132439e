package command

import (
	"time"

	"github.com/spf13/cobra"

	"tollgate/internal/bench"
)

func newBenchMemory() *cobra.Command {
	var o bench.MemoryOptions
	c := &cobra.Command{
		Use:   "memory",
		Short: "Measure the gateway's memory under many large bodies and many slow streams",
		Long: "Starts the whole system on loopback, with a provider that keeps nothing of what it is sent. First streams run side by side, then\n" +
			"bodies come in: all of them but for their last kilobyte before the first is whole. Told is the resident memory of the gateway's\n" +
			"process at its peak. Large bodies lie in the folder for temporary files: --uploads times --size must fit there.",
		Args: cobra.NoArgs,
	}
	f, jsonFile := c.Flags(), jsonFlag(c)
	f.IntVar(&o.Uploads, "uploads", 200, "large bodies at the same time")
	f.Int64Var(&o.Size, "size", 20<<20, "of each, in bytes")
	f.IntVar(&o.Streams, "streams", 1000, "streams at the same time")
	f.DurationVar(&o.Duration, "duration", 20*time.Second, "of each stream")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := o.Validate(); err != nil {
			return err
		}
		found, err := bench.RunMemory(c.Context(), o, c.ErrOrStderr())
		if found == nil {
			return err
		}
		return tell(c, found, *jsonFile, err)
	}
	return c
}
