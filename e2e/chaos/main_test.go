// Package chaos runs the whole of Tollgate under load through a schedule of faults that a seed alone decides, and then compares
// five books: the clients' answers, the simulator's, the stream, the ledger and Redis.
//
// A seed always means the same schedule; how its faults meet the requests is up to the machine. A seed that fails prints the
// command that runs it again and the folder in which the logs of all parts are kept.
package chaos

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"tollgate/e2e/stack"
	"tollgate/e2e/system"
	"tollgate/migrations"
)

var (
	seeds = flag.Int("chaos.seeds", 0, "how many `seeds` to run besides the calm run")
	first = flag.Uint64("chaos.first", 1, "the first `seed`")
	long  = flag.Bool("chaos.long", false, "faults of up to ten seconds")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if err := system.UseZones(); err != nil {
		fmt.Fprintln(os.Stderr, "zones:", err)
		os.Exit(1)
	}
	stack.Main(m, stack.Options{Migrate: migrations.Up})
}
