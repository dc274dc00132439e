package system

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/stretchr/testify/require"

	"tollgate/internal/dev/services"
)

// LosePostgres kills the system's own Postgres for good and starts an empty one in its place, at the same address, with the same
// password and an empty database of the same name.
func (s *System) LosePostgres() {
	s.t.Helper()
	require.NoError(s.t, s.Postgres.Kill())
	<-s.Postgres.Done()
	at, err := url.Parse(s.DatabaseURL)
	require.NoError(s.t, err)
	port, err := strconv.Atoi(at.Port())
	require.NoError(s.t, err)
	dir := s.t.TempDir()
	password, _ := at.User.Password()
	require.NoError(s.t, os.WriteFile(filepath.Join(dir, "password"), []byte(password+"\n"), 0o600))
	s.Postgres, err = services.StartPostgres(s.t.Context(), services.PostgresConfig{DataDir: dir, Port: port})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, s.Postgres.Stop(context.Background())) })
	require.NoError(s.t, s.Postgres.CreateDatabase(s.t.Context(), filepath.Base(at.Path)))
}
