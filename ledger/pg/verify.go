package pg

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Check is one invariant, looked at in the database.
type Check struct {
	Name    string // invariant and short name, e.g. "I6 double-entry"
	Meaning string // what Figure counts
	Figure  int64
	Example string // the first offender, empty without one
	OK      bool
	// Elsewhere: the database cannot show it. Meaning says what does.
	Elsewhere bool
}

// Verify looks at every invariant and returns them all, whether they hold or not. It reads the whole journal, as it stood at
// one instant, so its time grows with it, without locking anybody. While events are in flight, I8 may fail for a moment.
func (s *Store) Verify(ctx context.Context) ([]Check, error) {
	checks := make([]Check, 0, len(invariants))
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, s.pool, options, func(tx pgx.Tx) error {
		unnamed, err := unnamedCharges(ctx, tx)
		if err != nil {
			return err
		}
		for _, inv := range invariants {
			c := Check{Name: inv.name, Meaning: inv.meaning}
			var args []any
			if strings.HasPrefix(inv.query, chargesByBudget) {
				args = unnamed
			}
			if err := tx.QueryRow(ctx, inv.query, args...).Scan(&c.Figure, &c.Example); err != nil {
				return fmt.Errorf("verify %s: %w", inv.name, err)
			}
			c.OK = c.Figure == 0
			checks = append(checks, c)
		}
		return nil
	})
	return append(checks, elsewhere...), err
}

// unnamedCharges derives from the deciding events what budgets of known families must carry of requests whose events do not
// name them, as the arguments of chargesByBudget.
func unnamedCharges(ctx context.Context, tx pgx.Tx) ([]any, error) {
	known, err := readFamilies(ctx, tx)
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	p := &posting{budgets: map[budgetKey]*budgetDelta{}}
	if len(known) > 0 {
		if err := eachMissing(ctx, tx, known, p.add); err != nil {
			return nil, fmt.Errorf("verify: %w", err)
		}
	}
	budgets := slices.Collect(maps.Values(p.budgets))
	return append(keyArgs(budgets), changeArgs(budgets)...), nil
}

// bodyJSON reads an event's body. JSON may spell a NUL character, which Postgres cannot hold even in passing. The same letters after a
// backslash that is spelt as two are no NUL: such pairs are put aside, as a character that JSON holds only spelt out.
const bodyJSON = `replace(replace(replace(convert_from(e.body, 'UTF8'), '\\', chr(1)), '\u0000', '\ufffd'), chr(1), '\\')::json`

// countersOfBody lists b.counters, a reservation's counters as jsonb, each as its subject and its window: the two lists that
// event.Counters writes, or one of whole counters, as events were once written. OFFSET 0 where b is made has it read once: Postgres
// would else put the reading of the body in the place of each mention.
const countersOfBody = `
    SELECT s AS subject, b.counters -> 'windows' -> place::integer AS budget_window
    FROM jsonb_array_elements(CASE jsonb_typeof(b.counters) WHEN 'object' THEN b.counters -> 'subjects' END) s,
        jsonb_array_elements_text(s -> 'windows') place
    UNION ALL
    SELECT whole, whole FROM jsonb_array_elements(CASE jsonb_typeof(b.counters) WHEN 'array' THEN b.counters END) whole`

// chargesByBudget derives from the deciding events what every budget must carry, and how much of it nobody judged: what a
// request used beyond what it held (at first, where its answer outgrew that past a budget that lets it), what adjustments added to
// it, and all of a request that was admitted without Redis, past a limit that refuses nobody, or under a policy without the budget.
const chargesByBudget = `
WITH counted AS (
    SELECT CASE WHEN c.subject ->> 'tier' IN ('app', 'key', 'user') THEN r.app ELSE '' END AS app,
        c.subject ->> 'subject' AS subject, c.budget_window ->> 'period' AS period,
        coalesce((c.budget_window ->> 'start')::timestamptz, 'epoch') AS window_start,
        r.charged_requests AS requests, r.charged_tokens AS tokens, r.charged_nanousd AS nanousd,
        greatest(r.charged_requests - h.requests, 0) AS over_requests,
        greatest(r.charged_tokens - h.tokens, 0) AS over_tokens,
        greatest(r.charged_nanousd - h.nanousd, 0) AS over_nanousd
    FROM reservations r
    JOIN events e ON e.event_id = r.reservation_id || CASE r.state WHEN 'settled' THEN ':used' ELSE ':expired' END AND e.day = r.day
    CROSS JOIN LATERAL (SELECT
        CASE WHEN r.flags && '{degraded,flagged,shadow}' THEN 0
             WHEN r.flags && '{outgrown}' THEN coalesce((` + bodyJSON + ` -> 'reservation' -> 'held' ->> 'requests')::bigint, 0)
             ELSE r.held_requests END AS requests,
        CASE WHEN r.flags && '{degraded,flagged,shadow}' THEN 0
             WHEN r.flags && '{outgrown}' THEN coalesce((` + bodyJSON + ` -> 'reservation' -> 'held' ->> 'tokens')::bigint, 0)
             ELSE r.held_tokens END AS tokens,
        CASE WHEN r.flags && '{degraded,flagged,shadow}' THEN 0
             WHEN r.flags && '{outgrown}' THEN coalesce((` + bodyJSON + ` -> 'reservation' -> 'held' ->> 'nanousd')::bigint, 0)
             WHEN r.adjustments > 0 THEN least(r.held_nanousd, (` + bodyJSON + ` -> 'outcome' ->> 'cost_nanousd')::bigint)
             ELSE r.held_nanousd END AS nanousd) h
    CROSS JOIN LATERAL (SELECT (` + bodyJSON + ` -> 'reservation' -> 'counters')::jsonb AS counters OFFSET 0) b
    CROSS JOIN LATERAL (` + countersOfBody + `) c
    WHERE r.state IN ('settled', 'expired')
    UNION ALL
    SELECT n.*, n.requests, n.tokens, n.nanousd
    FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[], $5::bigint[], $6::bigint[], $7::bigint[])
        AS n (app, subject, period, window_start, requests, tokens, nanousd)
), charged AS (
    SELECT app, subject, period, window_start,
        sum(requests) AS requests, sum(tokens) AS tokens, sum(nanousd) AS nanousd,
        sum(over_requests) AS over_requests, sum(over_tokens) AS over_tokens, sum(over_nanousd) AS over_nanousd
    FROM counted
    GROUP BY 1, 2, 3, 4
)`

// finalTransfers are the charges that no correction took back, with what adjustments added to them.
const finalTransfers = `
WITH final AS (
    SELECT t.reservation_id, t.day, count(*) FILTER (WHERE t.kind <> 'adjust') AS n,
        sum(CASE WHEN t.kind <> 'adjust' OR a.kind = 'spend' THEN t.amount_nanousd ELSE -t.amount_nanousd END) AS nanousd
    FROM transfers t
    LEFT JOIN accounts a ON a.account_id = t.debit_account_id
    WHERE t.kind IN ('settle', 'expire', 'adjust') AND NOT EXISTS (
        SELECT FROM transfers c WHERE c.kind = 'correct' AND c.day = t.day AND c.linked_transfer = t.event_id || '/' || t.kind)
    GROUP BY 1, 2
)`

// elsewhere are the invariants that the database knows nothing of.
var elsewhere = []Check{
	{Name: "I2 refusal-changes-nothing", Meaning: "of Redis: the tests of package lua compare all of it before and after each refusal", OK: true, Elsewhere: true},
	{Name: "I9 equals-the-bill", Meaning: "of the providers' books: reconciliation", OK: true, Elsewhere: true},
	{Name: "I10 one-policy", Meaning: "of the gateways: e2e tests push policies under load and read what each judges by", OK: true, Elsewhere: true},
}

// invariants of design.md, each as a query whose answer is 0 when it holds, and an example of what breaks it.
var invariants = []struct{ name, meaning, query string }{
	{"I1 within-limits", "budgets whose use, less what settlement added, is above every limit they ever had and what was granted besides", chargesByBudget + `,
limits AS (
    SELECT family, period, unit, name, max(limit_value) AS most FROM policy_limits GROUP BY 1, 2, 3, 4
)
SELECT count(*), coalesce(min(b.subject || ' ' || b.period || ' ' || b.window_start), '')
FROM budgets b
JOIN charged c USING (app, subject, period, window_start)
JOIN limits l ON l.family = b.family AND l.period = b.period AND l.name = ''
LEFT JOIN limits o ON o.family = l.family AND o.period = l.period AND o.unit = l.unit AND o.name = b.name AND b.name <> ''
WHERE CASE l.unit WHEN 'requests' THEN b.requests - c.over_requests
                  WHEN 'tokens' THEN b.tokens - c.over_tokens
                  ELSE b.nanousd - c.over_nanousd END > greatest(l.most, o.most) + (
    SELECT coalesce(sum(g.amount), 0) FROM grants g
    WHERE g.amount > 0 AND g.app = b.app AND g.subject = b.subject AND g.unit = l.unit AND g.period = b.period
        AND (b.window_end IS NULL OR g.granted_at >= b.window_start AND g.granted_at < b.window_end))`},

	{"I3 reservations-end", "reservations pending more than a minute after their deadline", `
SELECT count(*), coalesce(min(reservation_id), '') FROM reservations WHERE state = 'pending' AND deadline < now() - interval '1 minute'`},

	{"I4 one-final-transfer", "reservations that have not exactly one final transfer, or whose transfers are not their charge", finalTransfers + `
SELECT count(*), coalesce(min(reservation_id), '')
FROM (SELECT reservation_id, day, charged_nanousd, (state = 'settled' OR usage_state = 'unconfirmed')::int AS want FROM reservations) r
FULL JOIN final f USING (reservation_id, day)
WHERE coalesce(f.n, 0) IS DISTINCT FROM r.want OR coalesce(f.nanousd, 0) IS DISTINCT FROM r.charged_nanousd`},

	{"I5 budgets-equal-charges", "budgets that differ from the sum of what their requests were charged", chargesByBudget + `
SELECT count(*), coalesce(min(subject || ' ' || period || ' ' || window_start), '')
FROM budgets b
FULL JOIN charged c USING (app, subject, period, window_start)
WHERE coalesce(b.requests, 0) <> coalesce(c.requests, 0) OR coalesce(b.tokens, 0) <> coalesce(c.tokens, 0)
    OR coalesce(b.nanousd, 0) <> coalesce(c.nanousd, 0)`},

	{"I5 transfers-equal-charges", "apps whose spend account differs from the sum of what their requests were charged", `
SELECT count(*), coalesce(min(name), '')
FROM (SELECT 'app:' || app || ':spend' AS name, sum(charged_nanousd) AS nanousd FROM reservations GROUP BY 1) r
FULL JOIN (
    SELECT a.name, sum(CASE WHEN t.debit_account_id = a.account_id THEN t.amount_nanousd ELSE -t.amount_nanousd END) AS nanousd
    FROM accounts a
    JOIN transfers t ON a.account_id IN (t.debit_account_id, t.credit_account_id)
    WHERE a.kind = 'spend' AND t.kind IN ('settle', 'expire', 'correct', 'adjust')
    GROUP BY 1
) t USING (name)
WHERE coalesce(r.nanousd, 0) <> coalesce(t.nanousd, 0)`},

	{"I5 transfers-equal-grants", "apps whose transfers of grants differ from the sum of what was granted in dollars", `
SELECT count(*), coalesce(min(name), '')
FROM (SELECT 'app:' || owner || ':grants' AS name, sum(amount) AS nanousd FROM grants WHERE unit = 'usd' GROUP BY 1) g
FULL JOIN (
    SELECT a.name, sum(CASE WHEN t.debit_account_id = a.account_id THEN t.amount_nanousd ELSE -t.amount_nanousd END) AS nanousd
    FROM accounts a
    JOIN transfers t ON a.account_id IN (t.debit_account_id, t.credit_account_id)
    WHERE a.kind = 'grant' AND t.kind = 'grant'
    GROUP BY 1
) t USING (name)
WHERE coalesce(g.nanousd, 0) <> coalesce(t.nanousd, 0)`},

	{"I5 charges-equal-events", "used events, or their latest adjustments, whose cost or tokens are not what their request was charged", `
SELECT count(*), coalesce(min(e.event_id), '')
FROM events e
CROSS JOIN LATERAL (SELECT ` + bodyJSON + ` -> 'outcome' AS outcome) o
LEFT JOIN reservations r ON r.reservation_id = split_part(e.event_id, ':', 1) AND r.day = e.day AND r.state = 'settled'
WHERE (e.kind = 'used' AND coalesce(r.adjustments, 0) = 0
    OR e.kind = 'adjusted' AND nullif(split_part(e.event_id, ':', 3), '')::integer >= coalesce(r.adjustments, 0)
) AND (
    r.charged_nanousd IS DISTINCT FROM (o.outcome ->> 'cost_nanousd')::bigint
    OR r.charged_tokens IS DISTINCT FROM (
        SELECT coalesce(sum(u.value::bigint), 0) FROM json_each_text(o.outcome -> 'usage') AS u WHERE u.key <> 'calls'))`},

	{"I6 double-entry", "transfers without two accounts, corrections that do not mirror one charge, and adjustments of none", `
SELECT count(*), coalesce(min(wrong), '')
FROM (
    SELECT t.event_id || '/' || t.kind AS wrong FROM transfers t
    WHERE NOT EXISTS (SELECT FROM accounts a WHERE a.account_id = t.debit_account_id)
        OR NOT EXISTS (SELECT FROM accounts a WHERE a.account_id = t.credit_account_id)
    UNION ALL
    SELECT c.event_id || '/' || c.kind FROM transfers c
    LEFT JOIN transfers t ON t.day = c.day AND t.event_id = split_part(c.linked_transfer, '/', 1) AND t.kind = 'expire'
    WHERE c.kind = 'correct' AND (t.amount_nanousd IS DISTINCT FROM c.amount_nanousd
        OR t.debit_account_id IS DISTINCT FROM c.credit_account_id OR t.credit_account_id IS DISTINCT FROM c.debit_account_id)
    UNION ALL
    SELECT c.event_id || '/' || c.kind FROM transfers c
    WHERE c.kind = 'adjust' AND NOT EXISTS (SELECT FROM transfers t WHERE t.day = c.day
        AND t.event_id = split_part(c.linked_transfer, '/', 1) AND t.kind = split_part(c.linked_transfer, '/', 2))
) x`},

	{"I6 trial-balance", "nano-dollars by which all debits differ from all credits", `
SELECT abs(coalesce(sum(balance_usd), 0) * 1000000000)::bigint, '' FROM finance.trial_balance`},

	{"I7 classes-sum", "requests whose token classes, or whose cost by class, do not sum to the total", `
SELECT count(*), coalesce(min(wrong), '')
FROM (
    SELECT reservation_id AS wrong FROM reservations
    WHERE state = 'settled' AND charged_tokens <> input_tokens + cached_input_tokens + cache_write_5m_tokens
        + cache_write_1h_tokens + input_audio_tokens + input_image_tokens + output_tokens + reasoning_tokens
        + output_audio_tokens + output_image_tokens + input_video_tokens + cached_input_audio_tokens
        + cached_input_image_tokens + output_video_tokens
    UNION ALL
    SELECT t.event_id || '/' || t.kind FROM transfers t
    WHERE t.components IS NOT NULL AND t.kind <> 'adjust' AND t.amount_nanousd <> (
        SELECT coalesce(sum((c ->> 'nanousd')::bigint), 0) FROM json_array_elements(t.components) AS c)
    UNION ALL
    SELECT r.reservation_id FROM reservations r
    LEFT JOIN transfers t ON t.event_id = r.reservation_id || ':adjusted:' || r.adjustments AND t.kind = 'adjust' AND t.day = r.day
    WHERE r.adjustments > 0 AND r.charged_nanousd <> (
        SELECT coalesce(sum((c ->> 'nanousd')::bigint), 0) FROM json_array_elements(t.components) AS c)
) x`},

	{"I8 no-gaps", "sequences of producers that have not arrived although later ones have", `
SELECT coalesce(sum(upper(hole) - lower(hole)), 0)::bigint, coalesce(min(p.producer || ' ' || hole::text), '')
FROM producers p, unnest(int8multirange(int8range(1, upper(p.seen))) - p.seen) AS hole`},

	// What a settler could not read may have been settled by another since.
	{"I8 nothing-parked", "messages that could not be settled", `
SELECT count(*), coalesce(min(p.parked_id || ': ' || p.reason), '') FROM parked_events p
WHERE p.body_hash NOT IN (SELECT e.body_hash FROM events e WHERE e.body_hash IN (SELECT body_hash FROM parked_events))`},
}
