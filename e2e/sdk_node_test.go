package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
)

// nodeDir holds the script that calls the SDKs for JavaScript, and the versions of these.
const nodeDir = "node"

// installNode puts the SDKs into node_modules beside the script, as the lock file says, unless they are there already.
func installNode(t *testing.T) {
	t.Helper()
	path := filepath.Join(nodeDir, "package-lock.json")
	lock, err := os.Open(path)
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX), "another test process installs the same")
	wanted, err := io.ReadAll(lock)
	require.NoError(t, err)
	mark := filepath.Join(nodeDir, "node_modules", ".installed")
	if installed, err := os.ReadFile(mark); err == nil && bytes.Equal(installed, wanted) {
		return
	}
	install := exec.CommandContext(t.Context(), "npm", "ci", "--prefer-offline")
	install.Dir = nodeDir
	out, err := install.CombinedOutput()
	require.NoError(t, err, "npm ci: %s", out)
	require.NoError(t, os.WriteFile(mark, wanted, 0o600))
}

// nodeSDKs is a Node process that makes calls. It is safe for concurrent use.
type nodeSDKs struct {
	done chan struct{} // closed when the process says no more

	mu      sync.Mutex // guards what follows
	input   *json.Encoder
	last    int
	waiting map[int]chan json.RawMessage
}

// startNode starts a script. It ends with the test, and with it the calls that still wait.
func startNode(t *testing.T, script string) *nodeSDKs {
	t.Helper()
	installNode(t)
	cmd := exec.Command("node", script)
	cmd.Dir = nodeDir
	var problems bytes.Buffer
	cmd.Stderr = &problems
	input, err := cmd.StdinPipe()
	require.NoError(t, err)
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	n := &nodeSDKs{done: make(chan struct{}), input: json.NewEncoder(input), waiting: map[int]chan json.RawMessage{}}
	loaded := make(chan json.RawMessage, 1)
	n.waiting[0] = loaded
	read := make(chan error, 1)
	go func() { read <- n.read(output) }()
	t.Cleanup(func() {
		require.NoError(t, input.Close())
		kill := time.AfterFunc(system.Patience, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		require.NoError(t, errors.Join(<-read, cmd.Wait()), "node: %s", problems.String())
	})
	select {
	case <-loaded:
	case <-n.done:
	}
	return n
}

// read hands outcomes to those who wait for them, until the process ends.
func (n *nodeSDKs) read(output io.Reader) error {
	defer close(n.done)
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct{ ID int }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return fmt.Errorf("%w: %s", err, lines.Text())
		}
		n.mu.Lock()
		if waiting := n.waiting[line.ID]; waiting != nil {
			waiting <- bytes.Clone(lines.Bytes())
		}
		n.mu.Unlock()
	}
	return lines.Err()
}

// call makes one call. The SDK goes on with it when ctx ends first: in JavaScript nothing interrupts its waits.
func (n *nodeSDKs) call(ctx context.Context, sdk string, c *sdkCall) (outcome sdkOutcome) {
	err := n.ask(ctx, map[string]any{
		"sdk": sdk, "url": c.URL, "key": c.Key, "model": c.Model, "user": c.User, "maxTokens": c.MaxTokens, "headers": c.Header, "stream": c.Stream,
	}, &outcome)
	if err != nil && ctx.Err() == nil {
		return sdkOutcome{Error: &sdkError{Message: err.Error()}}
	}
	return outcome
}

// ask hands a line to the script, with an id of its own, and reads the outcome.
func (n *nodeSDKs) ask(ctx context.Context, line map[string]any, outcome any) error {
	said := make(chan json.RawMessage, 1)
	id, err := n.send(line, said)
	if err != nil {
		return err
	}
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.waiting, id)
	}()
	select {
	case text := <-said:
		return json.Unmarshal(text, outcome)
	case <-ctx.Done():
		return ctx.Err()
	case <-n.done:
		return errors.New("the Node process has ended")
	}
}

func (n *nodeSDKs) send(line map[string]any, said chan json.RawMessage) (id int, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	n.waiting[n.last] = said
	line["id"] = n.last
	return n.last, n.input.Encode(line)
}
