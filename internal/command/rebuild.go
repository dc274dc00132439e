package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"tollgate/ledger/event"
)

func newRebuild() *cobra.Command {
	var app string
	var limit time.Duration
	c := &cobra.Command{
		Use:   "rebuild [--app A]",
		Short: "Have a settler write Redis anew from Postgres: everything, or one app and what hangs together with it",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return rebuildRedis(c, app, limit) },
	}
	c.Flags().StringVar(&app, "app", "", "the app whose counters are in doubt")
	c.Flags().DurationVar(&limit, "timeout", time.Minute, "how long to wait for the settler")
	return c
}

func rebuildRedis(c *cobra.Command, app string, limit time.Duration) error {
	var config struct{ Connections }
	if err := errors.Join(checkApp(c), readEnv(&config)); err != nil {
		return err
	}
	nc, err := nats.Connect(config.NATS.Reveal(), nats.Name("tollgate-rebuild"))
	if err != nil {
		return fmt.Errorf("NATS_URL: settlers cannot be asked: %w", err)
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeoutCause(c.Context(), limit, fmt.Errorf("no answer within %s", limit))
	defer cancel()
	began := time.Now()
	reply, err := nc.RequestWithContext(ctx, event.HandRebuildSubject, []byte(app))
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return errors.New("no settler is running: only a settler can rebuild")
	case ctx.Err() != nil:
		return fmt.Errorf("rebuild: %w; the settler may still be at it, its log says", context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("rebuild: %w", err)
	}
	var written event.Rebuilt
	if err := json.Unmarshal(reply.Data, &written); err != nil {
		return fmt.Errorf("rebuild: answer %q: %w", reply.Data, err)
	}
	took := time.Since(began).Round(time.Millisecond)
	switch {
	case written.Error != "":
		return fmt.Errorf("the settler could not rebuild: %s", written.Error)
	case written.Apps == 0:
		fmt.Fprintf(c.OutOrStdout(), "another settler was rebuilding already, %s\n", took)
	default:
		fmt.Fprintf(c.OutOrStdout(), "rebuilt %d apps, %d counters and %d open reservations in %s\n", written.Apps, written.Counters, written.Open, took)
	}
	return nil
}
