package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"tollgate/gateway"
	"tollgate/gateway/admission"
	"tollgate/internal/telemetry"
	"tollgate/ledger"
	"tollgate/ledger/policy"
)

func newPolicy() *cobra.Command {
	check := &cobra.Command{
		Use:   "check FILE",
		Short: "Validate a policy file; every problem with line and field",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			_, err := checkPolicy(c.OutOrStdout(), args[0])
			return err
		},
	}
	var expect uint64
	push := &cobra.Command{
		Use:   "push FILE",
		Short: "Publish a policy to every gateway that has no file of its own",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			data, err := checkPolicy(c.OutOrStdout(), args[0])
			if err != nil {
				return err
			}
			var expected *uint64
			if c.Flags().Changed("expect") {
				expected = &expect
			}
			return publishPolicy(c, data, expected)
		},
	}
	push.Flags().Uint64Var(&expect, "expect", 0, "push only over this revision (the first column of history); 0: only if none was pushed")
	show := &cobra.Command{
		Use:   "show",
		Short: "Print the policy that was pushed last",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return withBucket(c.Context(), func(ctx context.Context, bucket jetstream.KeyValue) error {
				entry, err := bucket.Get(ctx, policy.BucketKey)
				if err != nil {
					return fmt.Errorf("no policy has been pushed: %w", err)
				}
				_, err = c.OutOrStdout().Write(entry.Value())
				return err
			})
		},
	}
	history := &cobra.Command{
		Use:   "history",
		Short: "List the policies that were pushed, newest last",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return withBucket(c.Context(), func(ctx context.Context, bucket jetstream.KeyValue) error {
				entries, err := bucket.History(ctx, policy.BucketKey)
				if err != nil {
					return fmt.Errorf("no policy has been pushed: %w", err)
				}
				for _, e := range entries {
					fmt.Fprintf(c.OutOrStdout(), "%d\t%s\t%s\n", e.Revision(), e.Created().UTC().Format(time.RFC3339), policy.RevisionOf(e.Value()))
				}
				return nil
			})
		},
	}
	rollback := &cobra.Command{
		Use:   "rollback REV",
		Short: "Publish again the policy of an earlier revision (the first column of history)",
		Args:  cobra.ExactArgs(1),
		RunE:  func(c *cobra.Command, args []string) error { return rollbackPolicy(c, args[0]) },
	}
	return group("policy", "Validate, publish and read the policy", check, push, show, history, rollback)
}

// readPolicy reads and checks a file.
func readPolicy(path string) (*policy.Policy, []byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("policy: %w", err)
	}
	p, err := policy.Parse(data, os.LookupEnv)
	if err != nil {
		return nil, nil, fmt.Errorf("policy %s:\n%w", path, err)
	}
	return p, data, nil
}

// checkPolicy prints every problem and warning, or that there is none, and returns what it has checked.
func checkPolicy(out io.Writer, path string) ([]byte, error) {
	p, data, err := readPolicy(path)
	if err != nil {
		return nil, err
	}
	for _, w := range p.Warnings() {
		fmt.Fprintf(out, "%s: %s (warning)\n", path, w)
	}
	unpriced, err := unpricedModels(p, time.Now())
	if err != nil {
		return nil, err
	}
	for _, w := range unpriced {
		fmt.Fprintf(out, "%s: %s (warning)\n", path, w)
	}
	fmt.Fprintf(out, "%s: ok, revision %s, %d limits\n", path, p.Revision, len(p.Limits))
	return data, nil
}

// unpricedModels warns, by line, of models that a money budget over all of them refuses, because neither the built-in book nor the
// policy has a price. What was published over the book is not asked: a file is checked without a connection.
func unpricedModels(p *policy.Policy, now time.Time) (policy.Problems, error) {
	i := slices.IndexFunc(p.Limits, func(l *policy.Limit) bool { return l.Unit() == ledger.UnitUSD && !l.Shadow && len(l.Match) == 0 })
	if i < 0 {
		return nil, nil
	}
	book, err := admission.BookOf(nil, p)
	if err != nil {
		return nil, err
	}
	var found policy.Problems
	for _, m := range p.Models {
		if _, priced := book.Find(m.Provider, m.Upstream, now); !priced {
			found = append(found, policy.Problem{
				Line: m.Line, Field: "models." + m.Name,
				Message: fmt.Sprintf("neither the built-in book nor the policy has a price of it, and the budget %s counts money: unless one was imported it is refused; add it under prices", p.Limits[i].Name),
			})
		}
	}
	slices.SortFunc(found, func(a, b policy.Problem) int { return cmp.Or(a.Line-b.Line, strings.Compare(a.Field, b.Field)) })
	return found, nil
}

func withBucket(ctx context.Context, work func(context.Context, jetstream.KeyValue) error) error {
	var config struct {
		Connections
		Telemetry telemetry.Config
	}
	if err := readEnv(&config); err != nil {
		return err
	}
	nc, err := nats.Connect(config.NATS.Reveal(), nats.Name("tollgate-policy"))
	if err != nil {
		return fmt.Errorf("NATS_URL: %w", err)
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("policy: NATS did not answer in time"))
	defer cancel()
	bucket, err := policyBucket(ctx, nc)
	if err != nil {
		return err
	}
	return work(ctx, bucket)
}

func policyBucket(ctx context.Context, nc *nats.Conn) (jetstream.KeyValue, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	return gateway.PolicyBucket(ctx, js)
}

// publishPolicy pushes over the revision that stands, which must be the expected one where one is: of two who push at the same
// moment, one is told.
func publishPolicy(c *cobra.Command, data []byte, expected *uint64) error {
	return withBucket(c.Context(), func(ctx context.Context, bucket jetstream.KeyValue) error {
		var stands uint64
		entry, err := bucket.Get(ctx, policy.BucketKey)
		switch {
		case err == nil:
			stands = entry.Revision()
		case !errors.Is(err, jetstream.ErrKeyNotFound):
			return fmt.Errorf("push policy: %w", err)
		}
		if expected != nil && *expected != stands {
			return fmt.Errorf("push policy: revision %d is in force, not %d: compare with 'tollgate policy show' and push again", stands, *expected)
		}
		revision, err := bucket.Update(ctx, policy.BucketKey, data, stands)
		if errors.Is(err, jetstream.ErrKeyExists) {
			return errors.New("push policy: another policy was pushed at the same moment: compare with 'tollgate policy show' and push again")
		}
		if err != nil {
			return fmt.Errorf("push policy: %w", err)
		}
		fmt.Fprintf(c.OutOrStdout(), "pushed as revision %d (%s)\n", revision, policy.RevisionOf(data))
		return nil
	})
}

func rollbackPolicy(c *cobra.Command, text string) error {
	revision, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return fmt.Errorf("revision %q is not a number of 'tollgate policy history'", text)
	}
	var data []byte
	err = withBucket(c.Context(), func(ctx context.Context, bucket jetstream.KeyValue) error {
		entry, err := bucket.GetRevision(ctx, policy.BucketKey, revision)
		if err != nil {
			return fmt.Errorf("revision %d: %w", revision, err)
		}
		data = entry.Value()
		return nil
	})
	if err != nil {
		return err
	}
	return publishPolicy(c, data, nil)
}

// pushedPolicy is the policy that was pushed last; it errors when none was.
func pushedPolicy(ctx context.Context, nc *nats.Conn) (*policy.Policy, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("policy: NATS did not answer in time"))
	defer cancel()
	bucket, err := policyBucket(ctx, nc)
	if err != nil {
		return nil, err
	}
	entry, err := bucket.Get(ctx, policy.BucketKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, errors.New("no policy: name a file with --policy, or push one with 'tollgate policy push FILE'")
	}
	if err != nil {
		return nil, fmt.Errorf("read pushed policy: %w", err)
	}
	p, err := policy.Parse(entry.Value(), os.LookupEnv)
	if err != nil {
		return nil, fmt.Errorf("pushed policy:\n%w", err)
	}
	return p, nil
}
