package command

import (
	"context"
	"errors"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"tollgate/internal/telemetry"
	"tollgate/ledger/pg"
	"tollgate/lua"
	"tollgate/settler"
)

// settlerConfig is everything `tollgate settler` reads from its environment.
type settlerConfig struct {
	Connections
	Admin     string `env:"TOLLGATE_ADMIN" envDefault:":8081"`
	Telemetry telemetry.Config
	Settler   settler.Config
}

func newSettler() *cobra.Command {
	var address string
	c := &cobra.Command{
		Use:   "settler",
		Short: "Settle events: post them to Postgres and write back to Redis",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var config settlerConfig
			if err := readEnv(&config); err != nil {
				return err
			}
			if address != "" {
				config.Admin = address
			}
			if err := errors.Join(config.needDatabase(), config.Settler.Validate()); err != nil {
				return err
			}
			return runSettler(c.Context(), config)
		},
	}
	c.Flags().StringVar(&address, "admin", "", "address of the admin plane (TOLLGATE_ADMIN)")
	return c
}

func runSettler(ctx context.Context, config settlerConfig) error {
	// A settler's heap is small and its garbage is whole batches: collecting it a quarter as often saves a quarter of its
	// processor time for some tens of megabytes.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	log, err := telemetry.NewLogger(os.Stderr, config.Telemetry)
	if err != nil {
		return err
	}
	telemetry.TakeStandard(log)
	stopPprof, err := servePprof(log)
	if err != nil {
		return err
	}
	defer stopPprof()
	listener, err := listen(config.Admin, "--admin")
	if err != nil {
		return err
	}
	defer listener.Close()
	nc, err := connectNATS(config.NATS.Reveal(), "tollgate-settler", log)
	if err != nil {
		return err
	}
	defer nc.Close()
	store, err := pg.Open(ctx, config.Database.Reveal(), int32(config.Settler.Workers)+8)
	if err != nil {
		return err
	}
	defer store.Close()
	client, err := lua.Connect(config.Redis.Reveal(), lua.Options{Timeout: writeBackTimeout, PoolSize: 8})
	if err != nil {
		return err
	}
	defer client.Close()
	registry := telemetry.NewRegistry()
	s, err := settler.New(config.Settler, settler.Deps{
		Store: store, Scripts: lua.New(client), NATS: nc, Log: log, Registry: registry,
	})
	if err != nil {
		return err
	}
	return runWithAdmin(ctx, registry, log, listener, func(context.Context) error { return s.Ready() }, s.Run)
}

// writeBackTimeout bounds one Redis call of the settler: no request waits for it, but the next batch does.
const writeBackTimeout = time.Second
