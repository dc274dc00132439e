package command

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"tollgate/ledger/keys"
	"tollgate/ledger/pg"
	"tollgate/ledger/policy"
	"tollgate/settler/directory"
)

func newApp() *cobra.Command {
	var plan string
	create := &cobra.Command{
		Use:   "create NAME",
		Short: "Create an app; limits of the policy apply to it at once",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := policy.CheckApp(args[0]); err != nil {
				return err
			}
			return changeDirectory(c, func(ctx context.Context, store *pg.Store) error {
				if err := store.CreateApp(ctx, args[0], plan); err != nil {
					return err
				}
				fmt.Fprintf(c.OutOrStdout(), "app %s created\n", args[0])
				return nil
			})
		},
	}
	create.Flags().StringVar(&plan, "plan", "", "plan of the app; the policy's apps section comes first")
	list := &cobra.Command{
		Use:   "list",
		Short: "List apps",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			store, _, err := openStore(c.Context())
			if err != nil {
				return err
			}
			defer store.Close()
			apps, err := store.ListApps(c.Context())
			if err != nil {
				return err
			}
			table := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "APP\tPLAN\tCREATED\tSTATE")
			for _, a := range apps {
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", a.Name, a.Plan, day(a.CreatedAt), stateOf(a.DisabledAt, time.Time{}))
			}
			return table.Flush()
		},
	}
	return group("app", "Create and list apps", create, list,
		switchApp("disable", "Refuse all keys of an app", true), switchApp("enable", "Accept the keys of a disabled app again", false))
}

func switchApp(use, short string, disabled bool) *cobra.Command {
	return &cobra.Command{
		Use: use + " NAME", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return changeDirectory(c, func(ctx context.Context, store *pg.Store) error {
				if err := store.DisableApp(ctx, args[0], disabled); err != nil {
					return err
				}
				fmt.Fprintf(c.OutOrStdout(), "app %s %sd\n", args[0], use)
				return nil
			})
		},
	}
}

func newKey() *cobra.Command {
	var key pg.Key
	var expires string
	create := &cobra.Command{
		Use:   "create --app A",
		Short: "Create an API key and print its secret, once",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			at, err := parseExpiry(expires, time.Now())
			if err != nil {
				return fmt.Errorf("--expires: %w", err)
			}
			key.ExpiresAt = at
			return createKey(c, key)
		},
	}
	f := create.Flags()
	f.StringVar(&key.App, "app", "", "app that the key belongs to")
	f.StringVar(&key.User, "user", "", "end user that the key acts for")
	f.StringVar(&key.Plan, "plan", "", "plan of the key, before the app's")
	f.StringVar(&key.Name, "name", "", "a name for people")
	f.StringVar(&expires, "expires", "", "when the key ends: a duration (720h, 30d), a date or an RFC 3339 time")
	if err := create.MarkFlagRequired("app"); err != nil {
		panic(err) // the flag stands above
	}
	var app string
	list := &cobra.Command{
		Use: "list", Short: "List API keys, never their secrets", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return listKeys(c, app) },
	}
	list.Flags().StringVar(&app, "app", "", "only the keys of one app")
	revoke := &cobra.Command{
		Use: "revoke KEY_ID", Short: "Refuse a key from now on", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return changeDirectory(c, func(ctx context.Context, store *pg.Store) error {
				if err := store.RevokeKey(ctx, args[0]); err != nil {
					return err
				}
				fmt.Fprintf(c.OutOrStdout(), "key %s revoked\n", args[0])
				return nil
			})
		},
	}
	return group("key", "Create, list and revoke API keys", create, list, revoke)
}

func createKey(c *cobra.Command, key pg.Key) error {
	return changeDirectory(c, func(ctx context.Context, store *pg.Store) error {
		secret := keys.NewSecret()
		key.ID, key.Hash = keys.NewID(), keys.Hash(secret)
		err := store.CreateKey(ctx, key)
		if errors.Is(err, pg.ErrAppUnknown) {
			return fmt.Errorf("create key: app %q: %w; create it first: tollgate app create %s", key.App, pg.ErrAppUnknown, key.App)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(c.ErrOrStderr(), "key %s of app %s created; the secret is shown once:\n", key.ID, key.App)
		fmt.Fprintln(c.OutOrStdout(), secret)
		return nil
	})
}

func listKeys(c *cobra.Command, app string) error {
	store, _, err := openStore(c.Context())
	if err != nil {
		return err
	}
	defer store.Close()
	list, err := store.ListKeys(c.Context(), app)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "KEY\tAPP\tPLAN\tUSER\tNAME\tCREATED\tEXPIRES\tSTATE")
	for _, k := range list {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, k.App, k.Plan, k.User, k.Name, day(k.CreatedAt), day(k.ExpiresAt),
			stateOf(k.RevokedAt, k.ExpiresAt))
	}
	return table.Flush()
}

func day(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04")
}

func stateOf(ended, expires time.Time) string {
	switch {
	case !ended.IsZero():
		return "off since " + day(ended)
	case !expires.IsZero() && time.Now().After(expires):
		return "expired"
	default:
		return "on"
	}
}

// parseExpiry reads a duration from now, with d for days, a date (its first instant, UTC) or an RFC 3339 time.
func parseExpiry(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	var days int
	if n, err := fmt.Sscanf(text, "%dd", &days); err == nil && n == 1 && text == fmt.Sprintf("%dd", days) && days > 0 {
		return now.AddDate(0, 0, days).UTC(), nil
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return now.Add(d).UTC(), nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil {
			if !t.After(now) {
				return time.Time{}, fmt.Errorf("%s lies in the past", text)
			}
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is no duration (720h, 30d), date (2027-01-31) or RFC 3339 time", text)
}

// changeDirectory changes apps or keys in Postgres and brings the change to the gateways. Postgres is the truth: when NATS
// is away the change stands, and the settler brings it to the gateways later.
func changeDirectory(c *cobra.Command, change func(context.Context, *pg.Store) error) error {
	ctx := c.Context()
	store, connections, err := openStore(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	if err := change(ctx, store); err != nil {
		return err
	}
	if err := publishDirectory(ctx, store, connections); err != nil {
		fmt.Fprintf(c.ErrOrStderr(), "the change is stored; gateways learn of it when the settler next compares (now: %v)\n", err)
	}
	return nil
}

func publishDirectory(ctx context.Context, store *pg.Store, connections Connections) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Second, errors.New("publish directory: NATS did not answer in time"))
	defer cancel()
	nc, err := nats.Connect(connections.NATS.Reveal(), nats.Name("tollgate-directory"))
	if err != nil {
		return fmt.Errorf("NATS_URL: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	return directory.NewSync(store, js).Run(ctx)
}
