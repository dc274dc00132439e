package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/e2e/system"
)

// restoreCommands are those that the README tells for a backup, for a restore, and for after it.
func restoreCommands(t *testing.T) (backup, restore, after string) {
	t.Helper()
	text, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## Backup and restore\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(section, -1)
	require.Len(t, blocks, 3)
	return blocks[0][1], blocks[1][1], blocks[2][1]
}

// shell runs commands of the README in a folder, with the programs of the system's Postgres and our own in the path.
func shell(t *testing.T, s *system.System, dir, commands string) string {
	t.Helper()
	rows := s.Rows(`SELECT setting FROM pg_config WHERE name = 'BINDIR'`)
	own := filepath.Join(dir, "tollgate")
	if err := os.Symlink(stack.Binary(t), own); err != nil {
		require.ErrorIs(t, err, os.ErrExist)
	}
	c := exec.CommandContext(t.Context(), "sh", "-ec", commands)
	c.Dir = dir
	c.Env = append(os.Environ(), "PATH="+rows[0][0].(string)+":"+dir+":"+os.Getenv("PATH"), "DATABASE_URL="+s.DatabaseURL)
	out, err := c.CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// TestPostgresRestoredFromADump does what the README says: Postgres is lost under load and comes back as it was some hundred
// requests before. Redis, NATS and the gateways go on, with what they know of the time between. Nothing is lost, nothing counts
// twice, and the budget is spent to the last request and not beyond.
func TestPostgresRestoredFromADump(t *testing.T) {
	t.Parallel()
	const budget = 3000
	s := system.New(t, system.Options{
		Limits: `
  - {name: app-total, tier: app, budget: {requests: 3000, per: total}}
  - {name: user-day, tier: user, budget: {usd: 50, per: day}}
  - {name: platform, tier: platform, budget: {tokens: 50000000, per: month}}
`, Gateways: 2, Settlers: 2, TTL: 10 * time.Second, OwnPostgres: true,
		Env: []string{"TOLLGATE_OUTBOX_SEGMENT_BYTES=65536"}, // so that outboxes forget what Postgres had before it was lost
	})
	key := s.KnownKey(system.App)
	backup, restore, after := restoreCommands(t)
	dir := t.TempDir()

	call := spread(t, s, key, mixed)
	var passed atomic.Int64
	var isLost atomic.Bool
	stop := system.Traffic(8, func(i int) system.Answer {
		// Some of the budget must be left when Postgres is lost, however quick the machine, and however long that takes.
		time.Sleep(40 * time.Millisecond)
		if passed.Load() > budget/2 && !isLost.Load() {
			time.Sleep(400 * time.Millisecond)
		}
		a := call(i)
		if a.Passed() {
			passed.Add(1)
		}
		return a
	})
	const seals, events = `SELECT count(*) FROM seals`, `SELECT count(*) FROM events`
	more := func(query string, than int64) {
		s.Eventually(system.Patience, "the ledger grows", func() error {
			if n := s.Int(query); n <= than {
				return fmt.Errorf("%s: %d, want more than %d", query, n, than)
			}
			return nil
		})
	}
	more(seals, 1)
	shell(t, s, dir, backup)
	before := s.Int(events)
	more(seals, s.Int(seals))
	more(events, before+100)
	lost := s.Int(events) - before
	late := shell(t, s, dir, "tollgate ledger verify | sed -n 's/.*; head //p'")
	s.LosePostgres()
	isLost.Store(true)
	pause(time.Second)
	t.Logf("Postgres lost with %d events since the backup:\n%s", lost, shell(t, s, dir, restore))
	t.Logf("restored: first decision after %s", firstDecision(t, s, key).Round(time.Millisecond))
	pause(2 * time.Second)
	answers := stop()
	t.Logf("%v", requireReasons(t, answers, "APP_QUOTA", "REBUILDING", "DEGRADED"))
	s.Check(s.CheckClients(answers))
	require.GreaterOrEqual(t, s.Int(events), before+lost)
	t.Log(shell(t, s, dir, after))
	allJudge(t, s, key)

	rest := system.Load(budget+100, 16, pacing(spread(t, s, key, steady)))
	requireReasons(t, rest, "APP_QUOTA", "REBUILDING")
	s.Check(s.CheckClients(append(answers, rest...)))
	require.EqualValues(t, budget, billed(t, s), "exactly the budget reaches the provider")
	var restored float64
	for _, p := range s.Settlers {
		n, err := s.Metric(t.Context(), p, "tollgate_ledger_restored_total")
		require.NoError(t, err)
		restored += n
	}
	require.Positive(t, restored)
	_, err := s.TryCLI("ledger", "verify", "--head", strings.TrimSpace(late))
	require.Error(t, err, "a head from after the backup is not in the chain of the copy")
}
