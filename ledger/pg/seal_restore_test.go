package pg_test

import (
	"bytes"
	"net/url"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger/event"
)

// TestChainSurvivesDumpAndRestore restores a dump under other settings and expects the same head, nothing wrong, and a chain
// that goes on.
func TestChainSurvivesDumpAndRestore(t *testing.T) {
	t.Parallel()
	store, conn := sealedLedger(t)
	before, err := store.VerifyChain(t.Context(), nil)
	require.NoError(t, err)

	var bin string
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT setting FROM pg_config WHERE name = 'BINDIR'`).Scan(&bin))
	from := conn.Config().ConnString()
	to, err := url.Parse(from)
	require.NoError(t, err)
	name := conn.Config().Database + "_restored"
	_, err = conn.Exec(t.Context(), `CREATE DATABASE `+name+` TEMPLATE template0`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `ALTER DATABASE `+name+` SET datestyle = 'German'; ALTER DATABASE `+name+` SET bytea_output = 'escape'`)
	require.NoError(t, err)
	to.Path = "/" + name

	var complaints bytes.Buffer
	dump := exec.CommandContext(t.Context(), filepath.Join(bin, "pg_dump"), from)
	dump.Stderr = &complaints
	text, err := dump.Output()
	require.NoError(t, err, complaints.String())
	restore := exec.CommandContext(t.Context(), filepath.Join(bin, "psql"), "-qX", "-v", "ON_ERROR_STOP=1", to.String())
	restore.Stdin = bytes.NewReader(text)
	out, err := restore.CombinedOutput()
	require.NoError(t, err, string(out))

	restored := openAt(t, to.String())
	after, err := restored.VerifyChain(t.Context(), before.Head)
	require.NoError(t, err)
	require.True(t, after.Contains)
	after.Contains = false
	require.Equal(t, before, after)

	mustPost(t, restored, newEvent(event.KindReserved, "checkout", reservation("checkout", 9, start), 9))
	sealed, err := restored.Seal(t.Context(), 1, 100)
	require.NoError(t, err)
	require.EqualValues(t, 1, sealed.Rows)
	after, err = restored.VerifyChain(t.Context(), before.Head)
	require.NoError(t, err)
	require.Empty(t, after.Wrong)
	require.True(t, after.Contains)
}
