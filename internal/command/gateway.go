package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"tollgate/gateway"
	"tollgate/gateway/outbox"
	"tollgate/internal/admin"
	"tollgate/internal/telemetry"
	"tollgate/ledger/policy"
	"tollgate/lua"
)

// gatewayConfig is everything `tollgate gateway` reads from its environment.
type gatewayConfig struct {
	Connections
	Listeners
	Telemetry telemetry.Config
	Gateway   gateway.Config
	Outbox    outbox.Config
	Policy    string `env:"TOLLGATE_POLICY"` // file; empty: the policy that was pushed
}

func newGateway() *cobra.Command {
	var config gatewayConfig
	c := &cobra.Command{
		Use:   "gateway",
		Short: "Serve the data plane: admit, forward, measure and record requests",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			flags := config
			if err := readEnv(&config); err != nil {
				return err
			}
			overrideAddresses(&config.Listeners, flags.Listeners)
			if flags.Policy != "" {
				config.Policy = flags.Policy
			}
			if flags.Outbox.Dir != "" {
				config.Outbox.Dir = flags.Outbox.Dir
			}
			if err := errors.Join(config.Gateway.Validate(), config.Outbox.Validate()); err != nil {
				return err
			}
			return runGateway(c.Context(), config)
		},
	}
	addressFlags(c, &config.Listeners)
	c.Flags().StringVar(&config.Policy, "policy", "", "policy file (TOLLGATE_POLICY); without it the policy that was pushed")
	c.Flags().StringVar(&config.Outbox.Dir, "data", "", "this gateway's own folder (TOLLGATE_DATA_DIR)")
	return c
}

// addressFlags are the flags that every service has.
func addressFlags(c *cobra.Command, l *Listeners) {
	c.Flags().StringVar(&l.Listen, "listen", "", "address of the data plane (TOLLGATE_LISTEN)")
	c.Flags().StringVar(&l.Admin, "admin", "", "address of the admin plane (TOLLGATE_ADMIN)")
}

// overrideAddresses lets a flag that was given win over the environment.
func overrideAddresses(l *Listeners, flags Listeners) {
	if flags.Listen != "" {
		l.Listen = flags.Listen
	}
	if flags.Admin != "" {
		l.Admin = flags.Admin
	}
}

func runGateway(ctx context.Context, config gatewayConfig) (err error) {
	signal.Ignore(syscall.SIGXFSZ) // a file that may not grow is a full disk, for the outbox to refuse by, not a crash
	lines := telemetry.NewBuffer(os.Stderr)
	defer func() { err = errors.Join(err, lines.Close()) }()
	log, err := telemetry.NewLogger(lines, config.Telemetry)
	if err != nil {
		return err
	}
	telemetry.TakeStandard(log)
	stopPprof, err := servePprof(log)
	if err != nil {
		return err
	}
	defer stopPprof()
	data, err := listen(config.Listen, "--listen")
	if err != nil {
		return err
	}
	defer data.Close()
	adminListener, err := listen(config.Admin, "--admin")
	if err != nil {
		return err
	}
	defer adminListener.Close()
	nc, err := connectNATS(config.NATS.Reveal(), "tollgate-gateway", log)
	if err != nil {
		return err
	}
	defer nc.Close()
	p, err := startPolicy(ctx, config.Policy, nc, log)
	if err != nil {
		return err
	}
	return serveGateway(ctx, config, p, nc, data, adminListener, log)
}

// startPolicy is the policy to start with: the file's, or the one that was pushed.
func startPolicy(ctx context.Context, file string, nc *nats.Conn, log *slog.Logger) (*policy.Policy, error) {
	if file != "" {
		p, _, err := readPolicy(file)
		return p, err
	}
	log.Info("no policy file is given, taking the policy that was pushed")
	return pushedPolicy(ctx, nc)
}

// serveGateway runs a gateway with its admin plane on connections that are there.
func serveGateway(ctx context.Context, config gatewayConfig, p *policy.Policy, nc *nats.Conn, data, adminListener net.Listener, log *slog.Logger) (err error) {
	registry := telemetry.NewRegistry()
	client, err := lua.Connect(config.Redis.Reveal(), lua.Options{Timeout: config.Gateway.LimiterTimeout, PoolSize: 64})
	if err != nil {
		return err
	}
	defer client.Close()
	box, err := outbox.Open(config.Outbox, nc, log, registry)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, box.Close()) }()
	g, err := gateway.New(config.Gateway, gateway.Deps{
		Scripts: lua.New(client), NATS: nc, Outbox: box, Policy: p, Dir: config.Outbox.Dir, FollowPolicy: config.Policy == "", Log: log, Registry: registry,
	})
	if err != nil {
		return err
	}
	return runWithAdmin(ctx, registry, log, adminListener, func(context.Context) error { return g.Ready() },
		func(ctx context.Context) error { return g.Run(ctx, data) })
}

// runWithAdmin runs a part beside its admin plane. The admin plane outlives the part, so that a stop can be watched; the
// first error ends both.
func runWithAdmin(ctx context.Context, registry *prometheus.Registry, log *slog.Logger, listener net.Listener,
	ready func(context.Context) error, run func(context.Context) error,
) error {
	adminCtx, stopAdmin := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAdmin()
	partCtx, stopPart := context.WithCancel(ctx)
	defer stopPart()
	var group errgroup.Group
	group.Go(func() error {
		defer stopAdmin()
		return run(partCtx)
	})
	group.Go(func() error {
		defer stopPart()
		server := &admin.Server{Metrics: registry, Ready: ready, Log: log}
		if err := server.Run(adminCtx, listener); err != nil {
			return fmt.Errorf("admin plane: %w", err)
		}
		return nil
	})
	return group.Wait()
}
