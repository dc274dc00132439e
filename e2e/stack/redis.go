package stack

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Redis is stopped and continued by its own Pause and Resume, and made slow by a Link before it. What only its own commands
// can do stands here.

func redisContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Patience)
	t.Cleanup(cancel)
	return ctx
}

// SetMaxMemory bounds what the server may hold; above it, it refuses every write with OOM. 0 is no bound.
func SetMaxMemory(t testing.TB, client redis.UniversalClient, bytes int64) {
	t.Helper()
	if err := client.ConfigSet(redisContext(t), "maxmemory", strconv.FormatInt(bytes, 10)).Err(); err != nil {
		t.Fatalf("set maxmemory: %v", err)
	}
}

// ScriptCalls counts calls of scripts since the server started.
type ScriptCalls struct {
	EvalSHA, Eval int64 // that were executed, whether they ended well or not
	Unknown       int64 // EVALSHA of a script that the server did not have: nothing ran
}

// Ran is how many scripts were executed.
func (c ScriptCalls) Ran() int64 { return c.EvalSHA + c.Eval }

// String is for messages of tests.
func (c ScriptCalls) String() string {
	return fmt.Sprintf("%d EVALSHA, %d EVAL, %d unknown", c.EvalSHA, c.Eval, c.Unknown)
}

// CountScripts reads the server's own statistics of commands.
func CountScripts(t testing.TB, client redis.UniversalClient) (calls ScriptCalls) {
	t.Helper()
	info, err := client.Info(redisContext(t), "commandstats", "errorstats").Result()
	if err != nil {
		t.Fatalf("statistics of commands: %v", err)
	}
	for line := range strings.Lines(info) {
		name, figures, _ := strings.Cut(line, ":")
		_, figures, _ = strings.Cut(figures, "=") // of calls or errors, which comes first
		figure, _, _ := strings.Cut(strings.TrimSpace(figures), ",")
		count := map[string]*int64{"cmdstat_evalsha": &calls.EvalSHA, "cmdstat_eval": &calls.Eval, "errorstat_NOSCRIPT": &calls.Unknown}[name]
		if count == nil {
			continue
		}
		if *count, err = strconv.ParseInt(figure, 10, 64); err != nil {
			t.Fatalf("statistics of commands: %q: %v", line, err)
		}
	}
	calls.EvalSHA -= calls.Unknown
	return calls
}

// loggedCommands is how many commands LogCommands keeps.
const loggedCommands = 1_000_000

// LogCommands has the server keep every command from now on, for LoggedScripts. A restart ends that.
func LogCommands(t testing.TB, client redis.UniversalClient) {
	t.Helper()
	ctx := redisContext(t)
	err := errors.Join(
		client.ConfigSet(ctx, "slowlog-max-len", strconv.Itoa(loggedCommands)).Err(),
		client.ConfigSet(ctx, "slowlog-log-slower-than", "0").Err(),
	)
	if err != nil {
		t.Fatalf("log commands: %v", err)
	}
}

// LoggedScripts are the EVALSHA and EVAL commands since LogCommands, in no order, with their first arguments, each cut where it
// is longer than 128 bytes.
func LoggedScripts(t testing.TB, client redis.UniversalClient) (commands [][]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute) // a log of megabytes, on a machine that is busy
	defer cancel()
	entries, err := client.SlowLogGet(ctx, loggedCommands).Result()
	if err != nil {
		t.Fatalf("read the log of commands: %v", err)
	}
	if len(entries) >= loggedCommands {
		t.Fatal("read the log of commands: it is full")
	}
	for _, entry := range entries {
		if len(entry.Args) > 0 && (entry.Args[0] == "evalsha" || entry.Args[0] == "eval") {
			commands = append(commands, entry.Args)
		}
	}
	return commands
}
