package pg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger"
	"tollgate/ledger/event"
)

// PricedFilter says which requests are meant; its zero fields leave out nothing.
type PricedFilter struct {
	Provider, Model string    // of the provider, as it was asked
	From, Until     time.Time // when they were admitted, half-open
}

// Priced is a settled request with all that its price follows from.
type Priced struct {
	ReservationID, App, Provider, Model string
	ReservedAt                          time.Time
	Usage                               ledger.Usage
	Others                              []ledger.ModelUsage // what other models used for the same answer
	Tier                                ledger.ServiceTier
	Charged                             ledger.NanoUSD
	PriceRow                            string // "" where it had no price
	Adjustments                         int    // that were made of its charge
}

const pricedWhere = `
    AND ($1 = '' OR provider = $1) AND ($2 = '' OR model = $2)
    AND ($3::timestamptz IS NULL OR reserved_at >= $3 AND r.day >= ($3 AT TIME ZONE 'UTC')::date - 1)
    AND ($4::timestamptz IS NULL OR reserved_at < $4 AND r.day <= ($4 AT TIME ZONE 'UTC')::date + 1)`

func (f *PricedFilter) args() []any {
	return []any{clean(f.Provider), clean(f.Model), orNull(f.From), orNull(f.Until)}
}

// EachPriced hands on every settled request that has a price, or was admitted although it had none, as the ledger stood when it was
// called. What is billed by nobody is left out. The Priced is reused. Memory does not grow with their number.
func (s *Store) EachPriced(ctx context.Context, f PricedFilter, each func(*Priced) error) error {
	const query = `
SELECT r.reservation_id, r.app, provider, model, reserved_at, service_tier, charged_nanousd, price_row, adjustments,
    input_tokens, cached_input_tokens, cache_write_5m_tokens, cache_write_1h_tokens, input_audio_tokens, input_image_tokens,
    input_video_tokens, cached_input_audio_tokens, cached_input_image_tokens, output_tokens, reasoning_tokens, output_audio_tokens,
    output_image_tokens, output_video_tokens, web_search_calls, file_search_calls, code_interpreter_calls,
    CASE WHEN position($5::bytea IN e.body) > 0 THEN e.body END
FROM reservations r
JOIN events e ON e.event_id = r.reservation_id || ':used' AND e.day = r.day
WHERE state = 'settled' AND (price_row <> '' OR flags @> '{unpriced}')` + pricedWhere
	// Only the events know of other models, and few tell of any: the others are not read.
	othersField := []byte(`"others":`)
	rows, err := s.pool.Query(ctx, query, append(f.args(), othersField)...)
	if err != nil {
		return fmt.Errorf("read settled requests: %w", err)
	}
	var p Priced
	var body []byte
	u := &p.Usage
	into := []any{
		&p.ReservationID, &p.App, &p.Provider, &p.Model, &p.ReservedAt, &p.Tier, &p.Charged, &p.PriceRow, &p.Adjustments,
		&u.Input, &u.CachedInput, &u.CacheWrite5m, &u.CacheWrite1h, &u.InputAudio, &u.InputImage,
		&u.InputVideo, &u.CachedInputAudio, &u.CachedInputImage, &u.Output, &u.Reasoning, &u.OutputAudio,
		&u.OutputImage, &u.OutputVideo, &u.Calls.WebSearch, &u.Calls.FileSearch, &u.Calls.CodeInterpreter, &body,
	}
	_, err = pgx.ForEachRow(rows, into, func() error {
		p.Others = nil
		if body != nil {
			e, err := event.Decode(body)
			if err != nil {
				return err
			}
			p.Others = e.Outcome.Others
		}
		return each(&p)
	})
	if err != nil {
		return fmt.Errorf("read settled requests: %w", err)
	}
	return nil
}

// Unconfirmed counts the requests whose outcome never arrived, and what they were charged instead.
func (s *Store) Unconfirmed(ctx context.Context, f PricedFilter) (requests int64, charged ledger.NanoUSD, err error) {
	const query = `
SELECT count(*), coalesce(sum(charged_nanousd), 0)::bigint
FROM reservations r
WHERE state = 'expired' AND usage_state = 'unconfirmed'` + pricedWhere
	if err := s.pool.QueryRow(ctx, query, f.args()...).Scan(&requests, &charged); err != nil {
		return 0, 0, fmt.Errorf("count unconfirmed requests: %w", err)
	}
	return requests, charged, nil
}

// UsedEvents reads the Used events of settled reservations, by reservation. It errs when one is missing.
func (s *Store) UsedEvents(ctx context.Context, reservations []string) (map[string]*event.Event, error) {
	ids := make([]string, len(reservations))
	for i, id := range reservations {
		ids[i] = event.ID(id, event.KindUsed)
	}
	found, err := loadEvents(ctx, s.pool, ids)
	if err != nil {
		return nil, err
	}
	used := make(map[string]*event.Event, len(ids))
	for i, id := range reservations {
		if used[id] = found[ids[i]]; used[id] == nil {
			return nil, fmt.Errorf("reservation %s is settled without a used event", id)
		}
	}
	return used, nil
}

// ErrRerating is returned by LockRerating while somebody else holds the lock.
var ErrRerating = errors.New("past usage is being priced anew already")

// rerateLock keeps two from pricing past usage anew by different books beside each other.
const rerateLock = 0x746f6c6d

// LockRerating takes the lock for as long as the connection lives, and until it is given back.
func (s *Store) LockRerating(ctx context.Context) (release func(), err error) {
	const query = `SELECT pg_try_advisory_lock($1)`
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect for the lock of re-rating: %w", err)
	}
	var taken bool
	err = conn.QueryRow(ctx, query, rerateLock).Scan(&taken)
	if err == nil && !taken {
		err = ErrRerating
	}
	if err != nil {
		conn.Release()
		return nil, fmt.Errorf("take the lock of re-rating: %w", err)
	}
	session := &Session{store: s, conn: conn}
	return func() { session.Close(ctx) }, nil
}
