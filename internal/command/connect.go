package command

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"tollgate/ledger/pg"
)

// connectNATS connects for good: it keeps trying while the server is away, and a publication fails at once meanwhile,
// because keeping events is the outbox's work.
func connectNATS(url, name string, log *slog.Logger) (*nats.Conn, error) {
	nc, err := nats.Connect(url,
		nats.Name(name),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250*time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(5*time.Second),
		nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { log.Warn("nats is away", "error", err) }),
		nats.ReconnectHandler(func(*nats.Conn) { log.Info("nats is back") }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { log.Warn("nats reports an error", "error", err) }),
	)
	if err != nil {
		return nil, fmt.Errorf("NATS_URL: %w", err)
	}
	return nc, nil
}

// openStore connects to Postgres for a command that reads or writes once.
func openStore(ctx context.Context) (*pg.Store, Connections, error) {
	var config struct{ Connections }
	if err := readEnv(&config); err != nil {
		return nil, config.Connections, err
	}
	if err := config.needDatabase(); err != nil {
		return nil, config.Connections, err
	}
	store, err := pg.Open(ctx, config.Database.Reveal(), 4)
	return store, config.Connections, err
}
