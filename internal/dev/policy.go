package dev

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"tollgate/gateway"
	"tollgate/ledger/policy"
)

//go:embed policy.yaml
var builtinPolicy []byte

// chosen is the policy that a run starts with.
type chosen struct {
	text   []byte
	source string                  // for people
	bucket jetstream.KeyValue      // of pushed policies
	newest jetstream.KeyValueEntry // in the bucket, nil when it is empty
	parsed *policy.Policy
}

// choosePolicy takes the file of --policy, else what somebody pushed last, else the built-in one. A run publishes what it
// takes, so that gateways that join judge by it too; its own publication does not count as a push at the next start.
func (s *system) choosePolicy(ctx context.Context) error {
	js, err := jetstream.New(s.nc)
	if err != nil {
		return err
	}
	c := &s.policy
	if c.bucket, err = gateway.PolicyBucket(ctx, js); err != nil {
		return err
	}
	switch entry, err := c.bucket.Get(ctx, policy.BucketKey); {
	case err == nil:
		c.newest = entry
	case !errors.Is(err, jetstream.ErrKeyNotFound):
		return fmt.Errorf("read pushed policy: %w", err)
	}
	own, err := s.ownRevision()
	if err != nil {
		return err
	}
	switch {
	case s.config.Policy != "":
		c.source = s.config.Policy
		c.text, err = os.ReadFile(s.config.Policy)
	case c.newest != nil && c.newest.Revision() != own:
		c.source = fmt.Sprintf("pushed, revision %d in 'tollgate policy history'", c.newest.Revision())
		c.text = c.newest.Value()
	default:
		c.source, c.text = "built-in", builtin(os.Getenv("OPENAI_API_KEY") != "")
	}
	return err
}

// builtin is the built-in policy, with the simulator as its providers or with OpenAI alone.
func builtin(openAI bool) []byte {
	if !openAI {
		return builtinPolicy
	}
	var kept [][]byte
	for line := range bytes.Lines(builtinPolicy) {
		if !bytes.Contains(line, []byte("anthropic")) {
			kept = append(kept, line)
		}
	}
	text := bytes.Join(kept, nil)
	text = bytes.Replace(text, []byte("${TOLLGATE_SIM_URL}"), []byte("https://api.openai.com"), 1)
	return bytes.Replace(text, []byte("TOLLGATE_SIM_KEY"), []byte("OPENAI_API_KEY"), 1)
}

// wantsSim reports whether the simulator is needed: no provider's key is at hand, or the policy names it.
func (s *system) wantsSim() bool {
	return os.Getenv("OPENAI_API_KEY") == "" || bytes.Contains(s.policy.text, []byte("TOLLGATE_SIM_"))
}

// readPolicy checks the chosen policy before anything slow is started.
func (s *system) readPolicy(context.Context) error {
	p, err := policy.Parse(s.policy.text, os.LookupEnv)
	if err != nil {
		hint := ""
		if s.config.Policy == "" && s.policy.newest != nil {
			hint = "\nstart with --policy FILE to replace it"
		}
		return fmt.Errorf("%s:\n%w%s", s.policy.source, err, hint)
	}
	s.policy.parsed = p
	return nil
}

// publishPolicy makes the policy that the gateway has taken the one that is pushed, and remembers that nobody asked for it.
func (s *system) publishPolicy(ctx context.Context) error {
	c := &s.policy
	if c.newest != nil && bytes.Equal(c.newest.Value(), c.text) {
		return nil
	}
	revision, err := c.bucket.Put(ctx, policy.BucketKey, c.text)
	if err != nil {
		return fmt.Errorf("publish policy: %w", err)
	}
	return os.WriteFile(s.ownRevisionPath(), []byte(strconv.FormatUint(revision, 10)+"\n"), 0o600)
}

func (s *system) ownRevisionPath() string { return filepath.Join(s.dir, "policy-revision") }

// ownRevision is the revision of the last publication that a run made by itself, 0 for none.
func (s *system) ownRevision() (uint64, error) {
	text, err := os.ReadFile(s.ownRevisionPath())
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	revision, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", s.ownRevisionPath(), err)
	}
	return revision, nil
}
