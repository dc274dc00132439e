package pg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger/event"
)

// replayBatch is how many events a rebuild posts at once. Every batch leaves a dead version of each hot budget row, which only
// the end of the transaction lets anybody remove, so batches are large.
const replayBatch = 5000

// RebuildOptions say what becomes of a rebuild.
type RebuildOptions struct {
	Schema   string                    // to make; it must not exist
	Keep     bool                      // leave the schema; otherwise nothing of it is ever seen
	Examples int                       // differing rows to name per table
	Progress func(events, total int64) // called now and then; nil for nobody
}

// Difference is what one projection and its rebuilt one have apart.
type Difference struct {
	Table    string
	Rows     int64    // of the live table, as far as they are compared
	Differ   int64    // rows that are only in one of them, or not the same
	Examples []string // the first of them by key
}

// Rebuild derives every projection from the stored events, by the code that settles, into a schema of its own, and compares
// it with the live one. All of it is one transaction on the ledger as it stood at one instant: settlement goes on, live tables
// are only read, and without Keep nothing stays, whatever happens. It needs the right to create a schema, and room on disk for
// the projections. Memory does not grow with the ledger.
//
// Not compared, because they tell how the ledger came about and not what it says: versions, times of recording, serials,
// account ids, and expiries that a correction took back with that correction. Which families of budgets are filled is no event
// and taken as it is.
func (s *Store) Rebuild(ctx context.Context, o RebuildOptions) (differences []Difference, events int64, err error) {
	conn, err := pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig) // not of the pool: its settings and statements are of this rebuild
	if err != nil {
		return nil, 0, fmt.Errorf("rebuild: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return nil, 0, fmt.Errorf("rebuild: %w", err)
	}
	defer func() {
		if rollback := tx.Rollback(context.WithoutCancel(ctx)); !errors.Is(rollback, pgx.ErrTxClosed) {
			err = errors.Join(err, rollback)
		}
	}()
	r := &replay{tx: tx, options: o, store: &Store{accounts: map[string]int64{}}}
	if differences, err = r.run(ctx); err != nil {
		return nil, r.done, fmt.Errorf("rebuild: %w", err)
	}
	if o.Keep {
		if err := tx.Commit(ctx); err != nil {
			return nil, r.done, fmt.Errorf("rebuild: %w", err)
		}
	}
	return differences, r.done, nil
}

// replay is one rebuild.
type replay struct {
	tx      pgx.Tx
	options RebuildOptions
	store   *Store // for the ids of the rebuilt accounts
	done    int64
}

func (r *replay) run(ctx context.Context) ([]Difference, error) {
	known, err := readFamilies(ctx, r.tx)
	if err != nil {
		return nil, err
	}
	projections, err := r.projections(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.makeSchema(ctx, projections); err != nil {
		return nil, err
	}
	if err := r.postAll(ctx, known); err != nil {
		return nil, err
	}
	if err := r.addParked(ctx); err != nil {
		return nil, err
	}
	var differences []Difference
	for _, p := range projections {
		d, err := r.compare(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("compare %s: %w", p.table, err)
		}
		differences = append(differences, d)
	}
	return differences, nil
}

// makeSchema makes empty projections. The events are the live ones, for the posting code to read and not to write.
func (r *replay) makeSchema(ctx context.Context, projections []projection) error {
	schema := pgx.Identifier{r.options.Schema}.Sanitize()
	statements := []string{
		`CREATE SCHEMA ` + schema,
		`CREATE VIEW ` + schema + `.events AS SELECT * FROM public.events`,
		`CREATE TABLE ` + schema + `.accounts (LIKE public.accounts INCLUDING ALL)`,
	}
	for _, p := range projections {
		statements = append(statements, `CREATE TABLE `+schema+`.`+p.table+` (LIKE public.`+p.table+` INCLUDING ALL)`)
	}
	statements = append(statements,
		`ALTER TABLE `+schema+`.transfers ALTER serial DROP DEFAULT, ALTER serial DROP NOT NULL`, // the live sequence is not touched
		`SET LOCAL search_path = `+schema,
		`SET LOCAL work_mem = '128MB'`,
	)
	for _, sql := range statements {
		if _, err := r.tx.Exec(ctx, sql); err != nil {
			return fmt.Errorf("make schema %s: %w", r.options.Schema, err)
		}
	}
	return nil
}

// postAll posts the events in the order of their ids, so that those of one request come together.
func (r *replay) postAll(ctx context.Context, known []knownFamily) error {
	const count = `SELECT count(*) FROM public.events`
	const declare = `DECLARE replayed NO SCROLL CURSOR FOR SELECT body FROM public.events ORDER BY event_id`
	fetch := fmt.Sprintf(`FETCH %d FROM replayed`, replayBatch)
	var total int64
	if err := r.tx.QueryRow(ctx, count).Scan(&total); err != nil {
		return fmt.Errorf("count events: %w", err)
	}
	if _, err := r.tx.Exec(ctx, declare); err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	for {
		rows, err := r.tx.Query(ctx, fetch)
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		batch, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (x Received, err error) {
			if err := row.Scan(&x.Body); err != nil {
				return x, err
			}
			x.Event, err = event.Decode(x.Body)
			return x, err
		})
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		if len(batch) == 0 {
			return nil
		}
		if err := r.post(ctx, known, batch); err != nil {
			return err
		}
		r.done += int64(len(batch))
		if r.options.Progress != nil {
			r.options.Progress(r.done, total)
		}
	}
}

// post does to the rebuilt projections what settling the batch does to the live ones.
func (r *replay) post(ctx context.Context, known []knownFamily, batch []Received) error {
	accounts, err := r.store.ensureAccounts(ctx, r.tx, "", accountsOf(batch))
	if err != nil {
		return err
	}
	p := &posting{store: r.store, accounts: accounts, fates: make([]Fate, len(batch)), counting: newCounting(known)}
	for i := range batch {
		p.fates[i] = FatePosted // stored once each, so none is a duplicate
		p.fresh = append(p.fresh, &entry{Received: &batch[i], index: i})
	}
	if err := p.project(ctx, r.tx, batch, nil); err != nil {
		return fmt.Errorf("post %d events from %s: %w", len(batch), batch[0].Event.ID, err)
	}
	return nil
}

// addParked counts what has arrived and could not be settled among the producers' sequences.
func (r *replay) addParked(ctx context.Context) error {
	const query = `SELECT body FROM public.parked_events`
	rows, err := r.tx.Query(ctx, query)
	if err != nil {
		return fmt.Errorf("read parked events: %w", err)
	}
	bodies, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return fmt.Errorf("read parked events: %w", err)
	}
	var parked []*entry
	for _, body := range bodies {
		if e, err := event.Decode(body); err == nil { // one that cannot be read has no sequence
			parked = append(parked, &entry{Received: &Received{Event: e}})
		}
	}
	out := &pgx.Batch{}
	queueProducers(out, parked, nil)
	if out.Len() == 0 {
		return nil
	}
	if err := r.tx.SendBatch(ctx, out).Close(); err != nil {
		return fmt.Errorf("count parked events: %w", err)
	}
	return nil
}

// RebuildSchema names a schema for a rebuild that begins now.
func RebuildSchema(now time.Time) string { return "rebuild_" + now.UTC().Format("20060102_150405") }
