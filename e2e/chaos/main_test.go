// Package chaos runs the whole of Tollgate under load through a schedule of faults that a seed alone decides, and then compares
// five books: the clients' answers, the simulator's, the stream, the ledger and Redis.
//
// A seed always means the same schedule; how its faults meet the requests is up to the machine. A seed that fails prints the
// command that runs it again and the folder in which the logs of all parts are kept.
package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"tollgate/e2e/stack"
	"tollgate/e2e/system"
	"tollgate/ledger/keys"
	"tollgate/ledger/pg"
	"tollgate/migrations"
)

var (
	seeds = flag.Int("chaos.seeds", 0, "how many `seeds` to run besides the calm run")
	first = flag.Uint64("chaos.first", 1, "the first `seed`")
	long  = flag.Bool("chaos.long", false, "faults of up to ten seconds")
)

// secrets are the callers' keys by app; every database comes with them.
var secrets = map[string][]string{
	system.App: {keys.NewSecret(), keys.NewSecret()}, depot: {keys.NewSecret()}, outlet: {keys.NewSecret()}, spent: {keys.NewSecret()},
}

func TestMain(m *testing.M) {
	flag.Parse()
	if err := system.UseZones(); err != nil {
		fmt.Fprintln(os.Stderr, "zones:", err)
		os.Exit(1)
	}
	stack.Main(m, stack.Options{Migrate: migrate})
}

func migrate(ctx context.Context, url string) error {
	if err := migrations.Up(ctx, url); err != nil {
		return err
	}
	store, err := pg.Open(ctx, url, 1)
	if err != nil {
		return err
	}
	defer store.Close()
	for app, secrets := range secrets {
		err = errors.Join(err, store.CreateApp(ctx, app, ""))
		for i, secret := range secrets {
			err = errors.Join(err, store.CreateKey(ctx, pg.Key{ID: fmt.Sprintf("k_%s%d", app, i), App: app, Hash: keys.Hash(secret)}))
		}
	}
	return err
}
