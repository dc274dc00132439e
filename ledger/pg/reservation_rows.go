package pg

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"tollgate/ledger/event"
)

// The columns of a reservation, in the order of the type incoming_reservation and of wireArray.reservation: texts, then numbers, then
// the rest.
const reservationColumns = `
    reservation_id, state, app, api_key, end_user, plan, provider, model_requested, model_judged, model, model_served,
    endpoint, producer, trace_id, policy_revision, price_row, on_expiry, usage_state, service_tier, finish,
    provider_key, first_attempt, attempt, held_requests, held_tokens, held_nanousd, charged_requests, charged_tokens,
    charged_nanousd, input_tokens, cached_input_tokens, cache_write_5m_tokens, cache_write_1h_tokens, input_audio_tokens,
    input_image_tokens, input_video_tokens, cached_input_audio_tokens, cached_input_image_tokens, output_tokens, reasoning_tokens,
    output_audio_tokens, output_image_tokens, output_video_tokens, web_search_calls, file_search_calls,
    code_interpreter_calls, status, first_byte_ms, duration_ms, adjustments, day, reserved_at, deadline, ended_at,
    streamed, upstream_id, flags`

// incomingColumns is how many they are.
const incomingColumns = 57

// incomingReservations are the rows of one parameter, see incomingArgument. A rebuild has a schema of its own, and no type in it.
const incomingReservations = `unnest($1::public.incoming_reservation[]) AS n`

// reservationBytes is more than what almost every row takes, texts and all.
const reservationBytes = 1200

// incomingArgument is the argument of incomingReservations. Its bytes are made here and not by pgx, which boxes every value and looks
// for a way to write it, 57 times a row.
func incomingArgument(ctx context.Context, conn *pgx.Conn, touches []*touch) ([]byte, error) {
	rowType, err := incomingType(ctx, conn)
	if err != nil {
		return nil, err
	}
	a := make(wireArray, 0, len(touches)*reservationBytes)
	a.header(rowType, len(touches))
	for _, t := range touches {
		start := a.open()
		a.reservation(t)
		a.close(start)
	}
	return a, nil
}

// incomingMode is how a statement with incomingArgument is sent: bytes of a type need its id to be said with them, which two of the
// modes that a database URL can ask for (default_query_exec_mode) do not.
func incomingMode(conn *pgx.Conn) pgx.QueryExecMode {
	switch mode := conn.Config().DefaultQueryExecMode; mode {
	case pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol:
		return pgx.QueryExecModeDescribeExec
	default:
		return mode
	}
}

// incomingKey is where a connection keeps the id that incomingType has found.
const incomingKey = "tollgate.incoming_reservation"

// incomingType is the row type's id in the connection's database. The connection also learns to send arrays of it as the bytes they are.
func incomingType(ctx context.Context, conn *pgx.Conn) (uint32, error) {
	const query = `SELECT oid, typarray FROM pg_type WHERE oid = $1::text::regtype` // a constant would be looked up once, for ever
	if known, ok := conn.PgConn().CustomData()[incomingKey].(uint32); ok {
		return known, nil
	}
	var row, array uint32
	if err := conn.QueryRow(ctx, query, "public.incoming_reservation").Scan(&row, &array); err != nil {
		return 0, fmt.Errorf("look for the type of incoming reservations: %w", err)
	}
	conn.TypeMap().RegisterType(&pgtype.Type{Name: "incoming_reservation[]", OID: array, Codec: pgtype.ByteaCodec{}})
	conn.PgConn().CustomData()[incomingKey] = row
	return row, nil
}

// remembersIncomingType reports whether a batch takes the type as it was when it was looked up.
func remembersIncomingType(conn *pgx.Conn) bool {
	_, known := conn.PgConn().CustomData()[incomingKey]
	return known
}

// forgetIncomingType is for connections on which a batch has failed: the type may have been made anew under them.
func forgetIncomingType(conn *pgx.Conn) { delete(conn.PgConn().CustomData(), incomingKey) }

// wireArray is an array of rows in the form in which Postgres receives it: array_recv of
// https://github.com/postgres/postgres/blob/REL_15_STABLE/src/backend/utils/adt/arrayfuncs.c and record_recv of rowtypes.c beside it.
// Each value is preceded by its size, in a row also by its type.
type wireArray []byte

func (a *wireArray) int32(n int)   { *a = binary.BigEndian.AppendUint32(*a, uint32(n)) }
func (a *wireArray) int64(n int64) { *a = binary.BigEndian.AppendUint64(*a, uint64(n)) }

// header is what stands before the n elements of an array, in one dimension.
func (a *wireArray) header(elementType uint32, n int) {
	dimensions := 1
	if n == 0 {
		dimensions = 0
	}
	a.int32(dimensions)
	a.int32(0) // no element is NULL
	a.int32(int(elementType))
	if n > 0 {
		a.int32(n)
		a.int32(1) // the first index
	}
}

// open leaves room for the size of the value that follows, and returns where that begins.
func (a *wireArray) open() int {
	a.int32(0)
	return len(*a)
}

// close fills in the size of the value that starts there.
func (a *wireArray) close(start int) {
	binary.BigEndian.PutUint32((*a)[start-4:], uint32(len(*a)-start))
}

// storable is a text with its size and without its type.
func (a *wireArray) storable(s string) {
	s = clean(s)
	a.int32(len(s))
	*a = append(*a, s...)
}

func (a *wireArray) text(s string) {
	a.int32(pgtype.TextOID)
	a.storable(s)
}

func (a *wireArray) number(n int64) {
	a.int32(pgtype.Int8OID)
	a.int32(8)
	a.int64(n)
}

func (a *wireArray) bool(b bool) {
	a.int32(pgtype.BoolOID)
	a.int32(1)
	if b {
		*a = append(*a, 1)
	} else {
		*a = append(*a, 0)
	}
}

// millennium is when the time of Postgres begins.
var millennium = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (a *wireArray) date(t time.Time) {
	midnight := t.Truncate(24 * time.Hour) // of UTC; a division would round up before the millennium
	a.int32(pgtype.DateOID)
	a.int32(4)
	a.int32(int((midnight.Unix() - millennium.Unix()) / (24 * 60 * 60)))
}

func (a *wireArray) time(t time.Time) {
	a.int32(pgtype.TimestamptzOID)
	a.int32(8)
	a.int64(t.UnixMicro() - millennium.UnixMicro())
}

func (a *wireArray) noTime() {
	a.int32(pgtype.TimestamptzOID)
	a.int32(-1)
}

func (a *wireArray) texts(list []string) {
	a.int32(pgtype.TextArrayOID)
	start := a.open()
	a.header(pgtype.TextOID, len(list))
	for _, s := range list {
		a.storable(s)
	}
	a.close(start)
}

// reservation appends a row, in the order of reservationColumns.
func (a *wireArray) reservation(t *touch) {
	e, r, row := t.row.event, t.row.event.Reservation, &t.row
	o := e.Outcome
	if o == nil {
		o = &event.Outcome{}
	}
	finish, status := string(o.Finish), o.Status
	if e.Release != nil {
		finish, status = string(e.Release.Reason), e.Release.Status
	}
	a.int32(incomingColumns)
	for _, text := range [...]string{
		t.id, row.state, e.App, r.Key, r.User, r.Plan, r.Provider, r.ModelRequested, r.ModelJudged, r.Model, o.ModelServed,
		r.Endpoint, reporter(e), e.TraceID, r.PolicyRevision, priceRow(e), string(r.OnExpiry), string(row.usage), string(o.ServiceTier),
		finish, r.ProviderKey, r.FirstAttempt,
	} {
		a.text(text)
	}
	u := &o.Usage
	for _, number := range [...]int64{
		int64(r.Attempt), row.held.Requests, int64(row.held.Tokens), int64(row.held.NanoUSD),
		row.charged.Requests, int64(row.charged.Tokens), int64(row.charged.NanoUSD),
		int64(u.Input), int64(u.CachedInput), int64(u.CacheWrite5m), int64(u.CacheWrite1h), int64(u.InputAudio), int64(u.InputImage),
		int64(u.InputVideo), int64(u.CachedInputAudio), int64(u.CachedInputImage),
		int64(u.Output), int64(u.Reasoning), int64(u.OutputAudio), int64(u.OutputImage), int64(u.OutputVideo),
		u.Calls.WebSearch, u.Calls.FileSearch, u.Calls.CodeInterpreter,
		int64(status), o.FirstByteMS, o.DurationMS, int64(row.adjustments),
	} {
		a.number(number)
	}
	a.date(day(t.id))
	a.time(r.ReservedAt)
	a.time(r.Deadline)
	if row.state == statePending || e.OccurredAt.IsZero() {
		a.noTime()
	} else {
		a.time(e.OccurredAt)
	}
	a.bool(r.Streamed)
	a.text(o.UpstreamID)
	a.texts(row.flags)
}

// reporter is who told of the end, which an adjustment does not change.
func reporter(e *event.Event) string {
	if e.Adjustment != nil {
		return e.Adjustment.Gateway
	}
	return e.Producer
}

// priceRow is the row that decided the cost, or the one the estimate was made from.
func priceRow(e *event.Event) string {
	if e.Outcome != nil && e.Outcome.PriceRow != "" {
		return e.Outcome.PriceRow
	}
	return e.Reservation.PriceRow
}
