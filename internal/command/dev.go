package command

import (
	"github.com/spf13/cobra"

	"tollgate/internal/dev"
	"tollgate/internal/telemetry"
)

func newDev() *cobra.Command {
	var config dev.Config
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run the whole system on this machine, with nothing to set up",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var log telemetry.Config
			if err := readEnv(&log); err != nil {
				return err
			}
			config.LogLevel = log.Level
			return dev.Run(c.Context(), config, c.OutOrStdout())
		},
	}
	f := c.Flags()
	f.StringVar(&config.Data, "data", ".tollgate", "folder of everything that is kept")
	f.StringVar(&config.Listen, "listen", "127.0.0.1:8080", "address of the data plane")
	f.StringVar(&config.Admin, "admin", "127.0.0.1:8081", "address of the admin plane")
	f.StringVar(&config.Policy, "policy", "", "policy file; without it a built-in one")
	f.BoolVar(&config.Ephemeral, "ephemeral", false, "keep nothing")
	return c
}
