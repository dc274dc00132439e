package command

import (
	"os"

	"github.com/spf13/cobra"

	"tollgate/internal/sim"
	"tollgate/internal/telemetry"
)

func newProviderSim() *cobra.Command {
	var address string
	c := &cobra.Command{
		Use:   "provider-sim",
		Short: "Serve a simulated provider with books of its own, for development and tests",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var config struct {
				Telemetry telemetry.Config
				Sim       sim.Config
			}
			if err := readEnv(&config); err != nil {
				return err
			}
			if address != "" {
				config.Sim.Listen = address
			}
			if err := config.Sim.Validate(); err != nil {
				return err
			}
			log, err := telemetry.NewLogger(os.Stderr, config.Telemetry)
			if err != nil {
				return err
			}
			config.Sim.Log = log
			listener, err := listen(config.Sim.Listen, "--listen")
			if err != nil {
				return err
			}
			return sim.New(config.Sim).Run(c.Context(), listener)
		},
	}
	c.Flags().StringVar(&address, "listen", "", "address to serve on (TOLLGATE_SIM_LISTEN)")
	return c
}
