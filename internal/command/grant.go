package command

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
	"tollgate/ledger/policy"
)

// grantAsk is what the flags of grant add say.
type grantAsk struct {
	id, app, limit, subject, usd, tokens, requests, until, reason, policy string
}

func newGrant() *cobra.Command {
	var ask grantAsk
	add := &cobra.Command{
		Use:   "add --limit NAME [--app A] (--usd N | --tokens N | --requests N)",
		Short: "Add to one budget of one subject: for good where it never resets, else in the running window",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return addGrant(c, ask) },
	}
	f := add.Flags()
	f.StringVar(&ask.app, "app", "", "app that is granted to; none for a limit that all apps share")
	f.StringVar(&ask.limit, "limit", "", "limit of the policy that is raised")
	f.StringVar(&ask.subject, "subject", "", "key id, end user or other name that the limit counts by")
	f.StringVar(&ask.usd, "usd", "", "dollars, to the nano-dollar")
	f.StringVar(&ask.tokens, "tokens", "", "tokens")
	f.StringVar(&ask.requests, "requests", "", "requests")
	f.StringVar(&ask.until, "until", "", "when it lapses: a duration (720h, 30d), a date or an RFC 3339 time")
	f.StringVar(&ask.reason, "reason", "", "why, for people")
	f.StringVar(&ask.id, "id", "", "id of the grant: the same one again grants nothing twice; made up if none is given")
	f.StringVar(&ask.policy, "policy", "", "policy file with the limit; the pushed policy if none is given")
	if err := add.MarkFlagRequired("limit"); err != nil {
		panic(err) // the flag stands above
	}
	var app string
	list := &cobra.Command{
		Use: "list", Short: "List grants", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return listGrants(c, app) },
	}
	list.Flags().StringVar(&app, "app", "", "only the grants of one app")
	revoke := &cobra.Command{
		Use: "revoke ID", Short: "Take a grant back whole; what was spent stays spent", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return revokeGrant(c, args[0]) },
	}
	return group("grant", "Add to budgets, list and revoke what was added", add, list, revoke)
}

// amount reads the one amount that was given, in the unit's integers.
func (a *grantAsk) amount() (unit ledger.Unit, amount int64, err error) {
	given := 0
	for _, x := range []struct {
		unit ledger.Unit
		text string
	}{{ledger.UnitUSD, a.usd}, {ledger.UnitTokens, a.tokens}, {ledger.UnitRequests, a.requests}} {
		if x.text == "" {
			continue
		}
		given++
		unit = x.unit
		if unit == ledger.UnitUSD {
			var money ledger.NanoUSD
			money, err = ledger.ParseUSD(x.text)
			amount = int64(money)
		} else if amount, err = strconv.ParseInt(x.text, 10, 64); err != nil {
			err = fmt.Errorf("%q is no whole number up to %d", x.text, int64(math.MaxInt64))
		}
		if err == nil && amount <= 0 {
			err = fmt.Errorf("%q is not above zero", x.text)
		}
		if err != nil {
			return unit, 0, fmt.Errorf("--%s: %w", unit, err)
		}
	}
	if given != 1 {
		return unit, 0, errors.New("give one of --usd, --tokens and --requests")
	}
	return unit, amount, nil
}

// event checks what is asked for against the policy and says it as an event.
func (a *grantAsk) event(p *policy.Policy, now time.Time) (*event.Event, error) {
	unit, amount, err := a.amount()
	if err != nil {
		return nil, err
	}
	until, err := parseExpiry(a.until, now)
	if err != nil {
		return nil, fmt.Errorf("--until: %w", err)
	}
	i := slices.IndexFunc(p.Limits, func(l *policy.Limit) bool { return l.Name == a.limit })
	if i < 0 {
		return nil, fmt.Errorf("--limit: the policy has no limit %q", a.limit)
	}
	limit := p.Limits[i]
	subject, err := limit.GrantSubject(a.app, a.subject)
	if err != nil {
		return nil, err
	}
	if limit.Budget.Unit != unit {
		return nil, fmt.Errorf("limit %s counts %s: give --%s", limit.Name, limit.Budget.Unit, limit.Budget.Unit)
	}
	uuid := event.NewReservationID(now)
	e := &event.Event{
		V: event.Version, ID: event.ID(uuid, event.KindGranted), Kind: event.KindGranted, App: a.app, OccurredAt: now, Producer: "grant",
		Grant: &event.Grant{
			ID: a.id, Limit: limit.Name, Tier: limit.Tier, Family: limit.Family, Subject: subject, Unit: unit, Period: limit.Budget.Period,
			Amount: amount, Window: p.Calendar.Window(limit.Budget.Period, now), Until: until, Reason: a.reason,
		},
	}
	if e.App == "" {
		e.App = "platform"
	}
	if e.Grant.ID == "" {
		e.Grant.ID = "g_" + uuid
	}
	return e, e.Check()
}

func addGrant(c *cobra.Command, ask grantAsk) error {
	return withGrants(c, func(ctx context.Context, store *pg.Store, nc *nats.Conn) error {
		p, err := policyFor(ctx, nc, ask.policy)
		if err != nil {
			return err
		}
		// Postgres keeps microseconds.
		e, err := ask.event(p, time.Now().UTC().Truncate(time.Microsecond))
		if err != nil {
			return err
		}
		noted, body, err := store.OrderGrant(ctx, e)
		if err != nil {
			return err
		}
		switch taken, _, err := store.GrantEvent(ctx, event.RevocationID(e.Grant.ID)); {
		case err == nil:
			return fmt.Errorf("grant %s was taken back, on %s: use another id", e.Grant.ID, day(taken.OccurredAt))
		case !errors.Is(err, pg.ErrGrantUnknown):
			return err
		}
		said := fmt.Sprintf("grant %s of %s to %s", e.Grant.ID, grantAmount(noted.Grant), noted.Grant.Subject)
		if noted.ID != e.ID {
			said += ", as asked for before"
		}
		return publishGrant(ctx, c, store, nc, noted, body, said)
	})
}

func policyFor(ctx context.Context, nc *nats.Conn, file string) (*policy.Policy, error) {
	if file == "" {
		return pushedPolicy(ctx, nc)
	}
	p, _, err := readPolicy(file)
	return p, err
}

func revokeGrant(c *cobra.Command, id string) error {
	return withGrants(c, func(ctx context.Context, store *pg.Store, nc *nats.Conn) error {
		if err := event.CheckGrantID(id); err != nil {
			return err
		}
		of, body, err := store.GrantEvent(ctx, id)
		if err != nil {
			return err
		}
		// A grant that was ordered and never published must not be taken back without having been given.
		if err := putOnStream(ctx, nc, of, body); err != nil {
			return err
		}
		now := time.Now().UTC().Truncate(time.Microsecond)
		g := *of.Grant
		g.ID, g.Amount, g.Revokes, g.RevokesEvent = event.RevocationID(id), -g.Amount, id, of.ID
		e := &event.Event{
			V: event.Version, ID: event.ID(event.NewReservationID(now), event.KindGranted), Kind: event.KindGranted, App: of.App, OccurredAt: now,
			Producer: "grant", Grant: &g,
		}
		noted, body, err := store.OrderGrant(ctx, e)
		if err != nil {
			return err
		}
		said := fmt.Sprintf("grant %s of %s to %s taken back", id, grantAmount(of.Grant), g.Subject)
		if noted.ID != e.ID {
			said += ", as asked for before"
		}
		return publishGrant(ctx, c, store, nc, noted, body, said)
	})
}

func grantAmount(g *event.Grant) string {
	if g.Unit == ledger.UnitUSD {
		return ledger.NanoUSD(g.Amount).String() + " usd"
	}
	return fmt.Sprintf("%d %s", g.Amount, g.Unit)
}

// publishGrant puts the event on the stream and waits until it is settled, for a while.
func publishGrant(ctx context.Context, c *cobra.Command, store *pg.Store, nc *nats.Conn, e *event.Event, body []byte, said string) error {
	if err := putOnStream(ctx, nc, e, body); err != nil {
		return fmt.Errorf("%w; nothing is lost: ask again with the id %s", err, e.Grant.ID)
	}
	for deadline := time.Now().Add(5 * time.Second); ; {
		settled, err := store.GrantSettled(ctx, e.Grant.ID)
		if err != nil {
			return err
		}
		if settled {
			fmt.Fprintln(c.OutOrStdout(), said)
			return nil
		}
		if time.Now().After(deadline) {
			fmt.Fprintln(c.OutOrStdout(), said+"; it is on the stream and counts when a settler has settled it")
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func putOnStream(ctx context.Context, nc *nats.Conn, e *event.Event, body []byte) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	if _, err := js.Publish(ctx, e.Subject(), body, jetstream.WithMsgID(e.ID)); err != nil {
		return fmt.Errorf("publish grant %s: %w", e.Grant.ID, err)
	}
	return nil
}

func listGrants(c *cobra.Command, app string) error {
	store, _, err := openStore(c.Context())
	if err != nil {
		return err
	}
	defer store.Close()
	list, err := store.ListGrants(c.Context(), app)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "GRANT\tAPP\tLIMIT\tSUBJECT\tAMOUNT\tUNIT\tPERIOD\tGRANTED\tENDS\tSTATE\tREASON")
	for _, g := range list {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.ID, g.App, g.Limit, g.Subject, g.Amount, g.Unit, g.Period,
			day(g.GrantedAt), day(g.EndsAt), g.State, g.Reason)
	}
	return table.Flush()
}

// withGrants connects to Postgres and NATS for one change, within half a minute.
func withGrants(c *cobra.Command, work func(context.Context, *pg.Store, *nats.Conn) error) error {
	ctx, cancel := context.WithTimeoutCause(c.Context(), 30*time.Second, errors.New("grant: took more than 30 s"))
	defer cancel()
	store, connections, err := openStore(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	nc, err := nats.Connect(connections.NATS.Reveal(), nats.Name("tollgate-grant"))
	if err != nil {
		return fmt.Errorf("NATS_URL: %w", err)
	}
	defer nc.Close()
	return work(ctx, store, nc)
}
