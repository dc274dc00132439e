package pg_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"tollgate/e2e/stack"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
)

// TestManySessionsSettleOnce gives 32 sessions the same events, each in an order and in batches of its own and some of them twice,
// all at once. Each event must be posted by exactly one, none may be held up by a deadlock, and every projection must be what one
// session makes of the events in their order.
func TestManySessionsSettleOnce(t *testing.T) {
	t.Parallel()
	const sessions, reservations = 32, 40
	random := rand.New(rand.NewPCG(1, 2))
	kinds := []event.Kind{event.KindReserved, event.KindUsed, event.KindReleased, event.KindExpired}
	var events []pg.Received
	for i := range reservations {
		app := fmt.Sprintf("app%d", i%3)
		r := reservation(app, int64(i), start.Add(time.Duration(i)*time.Second))
		random.Shuffle(len(kinds), func(a, b int) { kinds[a], kinds[b] = kinds[b], kinds[a] })
		for _, kind := range kinds[:1+i%len(kinds)] {
			events = append(events, received(t, newEvent(kind, app, r, uint64(len(events)+1)), uint64(len(events)+1)))
		}
	}
	one, many := stack.Postgres(t), stack.Postgres(t)
	_, err := post(t.Context(), openAt(t, one), events)
	require.NoError(t, err)

	var stores [8]*pg.Store // each like a settler's
	for i := range stores {
		stores[i], err = pg.Open(t.Context(), many, sessions/int32(len(stores)))
		require.NoError(t, err)
	}
	var mu sync.Mutex // guards posted
	posted := map[string]int{}
	ready := make(chan struct{})
	group, ctx := errgroup.WithContext(t.Context())
	for s := range sessions {
		group.Go(func() error {
			session, err := stores[s%len(stores)].Settling(ctx)
			if err != nil {
				return err
			}
			defer session.Close(context.WithoutCancel(ctx))
			<-ready
			for _, batch := range deal(rand.New(rand.NewPCG(3, uint64(s))), events) {
				result, err := session.Post(ctx, batch)
				if err != nil {
					return err
				}
				mu.Lock()
				for i, fate := range result.Fates {
					if fate == pg.FatePosted {
						posted[batch[i].Event.ID]++
					}
				}
				mu.Unlock()
			}
			return nil
		})
	}
	close(ready)
	require.NoError(t, group.Wait())
	for _, store := range stores {
		store.Close() // its sessions tell what they counted when they end
	}

	require.Len(t, posted, len(events))
	for id, n := range posted {
		require.Equal(t, 1, n, id)
	}
	require.Equal(t, []string{"0"}, lines(t, many, `SELECT deadlocks::text FROM pg_stat_database WHERE datname = current_database()`))
	for _, table := range []string{"events", "transfers", "reservations", "budgets", "producers", "parked_events"} {
		require.Equal(t, content(t, one, table), content(t, many, table), table)
	}
}

// TestSessionsEndInTheOrderOfTheirBudgets: what a session says of a budget must reach Redis before another one of the store can say
// more of it. Else, what was used counts as held as well until the older one has said which reservations ended.
func TestSessionsEndInTheOrderOfTheirBudgets(t *testing.T) {
	t.Parallel()
	store, ctx := openAt(t, stack.Postgres(t)), t.Context()
	settle := func(ctx context.Context, session *pg.Session, n int64) error {
		r := reservation("checkout", n, start)
		_, err := session.Post(ctx, []pg.Received{received(t, newEvent(event.KindUsed, "checkout", r, uint64(n)), uint64(n))})
		return err
	}
	grant := func(session *pg.Session) error {
		_, err := session.Post(ctx, []pg.Received{received(t, granted("g-1", 1, start, nil), 1)})
		return err
	}
	settling := func() (session *pg.Session, end func()) {
		session, err := store.Settling(ctx)
		require.NoError(t, err)
		end = sync.OnceFunc(func() { session.Close(context.Background()) })
		t.Cleanup(end)
		return session, end
	}
	first, end := settling()
	third, _ := settling()
	require.NoError(t, settle(ctx, first, 1))
	for wait := time.Second; ; wait *= 2 { // until it comes that far in time
		second, _ := settling()
		short, cancel := context.WithTimeout(ctx, wait)
		err := settle(short, second, 2)
		cancel()
		require.Error(t, err)
		if strings.Contains(err.Error(), "wait for the batch before") {
			break
		}
		require.Less(t, wait, time.Minute, "%v", err)
	}
	require.NoError(t, settle(ctx, first, 3), "a session may post again")
	done := make(chan error, 1)
	go func() { done <- settle(ctx, third, 2) }()
	end()
	require.NoError(t, <-done)

	// Who fails after it was his turn does not keep it.
	require.NoError(t, grant(third))
	require.True(t, pg.Permanent(grant(third)), "the grant is there already")
	fourth, _ := settling()
	require.NoError(t, settle(ctx, fourth, 4))
}

// deal is the events in a random order, a third of them twice, cut into batches of random size.
func deal(random *rand.Rand, events []pg.Received) [][]pg.Received {
	dealt := slices.Clone(events)
	for _, e := range events {
		if random.IntN(3) == 0 {
			dealt = append(dealt, e)
		}
	}
	random.Shuffle(len(dealt), func(a, b int) { dealt[a], dealt[b] = dealt[b], dealt[a] })
	var batches [][]pg.Received
	for len(dealt) > 0 {
		n := min(len(dealt), 1+random.IntN(30))
		batches, dealt = append(batches, dealt[:n]), dealt[n:]
	}
	return batches
}

// content is every row of a table as text, without what says when and by which batch it was written, and without transfers that
// were made and taken back: whether an expiry was charged first depends on the order.
func content(t *testing.T, url, table string) []string {
	t.Helper()
	where := ""
	if table == "transfers" {
		where = ` WHERE kind IN ('settle', 'expire') AND NOT EXISTS (SELECT FROM transfers c WHERE c.linked_transfer = x.event_id || '/' || x.kind)`
	}
	return lines(t, url, `
SELECT (to_jsonb(x) - '{serial,recorded_at,updated_at,version,debit_account_id,credit_account_id}'::text[])::text
FROM `+table+` x`+where+` ORDER BY 1`)
}
