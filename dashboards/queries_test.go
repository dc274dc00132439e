package dashboards

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/migrations"
)

func TestMain(m *testing.M) { stack.Main(m, stack.Options{Migrate: migrations.Up}) }

// Every query of a board runs in Postgres with the rights that Grafana has there.
func TestBoardQueriesRun(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), stack.Postgres(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })
	_, err = conn.Exec(t.Context(), "SET ROLE grafana")
	require.NoError(t, err)
	now := time.Now().UTC()
	macros := strings.NewReplacer("$__timeFrom()", "'"+now.Add(-6*time.Hour).Format(time.RFC3339)+"'", "$__timeTo()", "'"+now.Format(time.RFC3339)+"'")
	paths, err := filepath.Glob("grafana/boards/*.json")
	require.NoError(t, err)
	ran := 0
	for _, path := range paths {
		for _, p := range readBoard(t, path).Panels {
			for _, target := range p.Targets {
				if target.SQL == "" {
					continue
				}
				query := macros.Replace(target.SQL)
				require.NotContains(t, query, "$", "%s: what Grafana fills in there, this test does not know", p.Title)
				_, err := conn.Exec(t.Context(), query)
				require.NoError(t, err, "%s: %s", p.Title, query)
				ran++
			}
		}
	}
	require.Positive(t, ran)
}
