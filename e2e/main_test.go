// Package e2e holds the black-box, chaos and load tests: a whole system of separate processes, traffic, faults, and the books
// compared at the end.
package e2e

import (
	"fmt"
	"os"
	"testing"

	"tollgate/e2e/stack"
	"tollgate/e2e/system"
	"tollgate/migrations"
)

func TestMain(m *testing.M) {
	if err := system.UseZones(); err != nil {
		fmt.Fprintln(os.Stderr, "zones:", err)
		os.Exit(1)
	}
	stack.Main(m, stack.Options{Migrate: migrations.Up})
}
