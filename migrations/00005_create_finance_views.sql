-- +goose Up

-- What people read. Amounts of money are dollars as exact numerics with nine decimals. Names and meanings are a contract:
-- columns may join, none may change.

CREATE SCHEMA finance;
COMMENT ON SCHEMA finance IS 'Stable views for finance and dashboards';

CREATE VIEW finance.requests AS
SELECT
    r.reservation_id AS request_id,
    r.day AS day,
    r.reserved_at AS occurred_at,
    r.ended_at AS settled_at,
    r.state AS state,
    r.app AS app,
    r.api_key AS api_key,
    r.end_user AS end_user,
    r.plan AS plan,
    r.provider AS provider,
    r.model_requested AS model_requested,
    r.model AS model,
    r.model_served AS model_served,
    r.endpoint AS endpoint,
    r.attempt AS attempt,
    r.streamed AS streamed,
    r.input_tokens AS input_tokens,
    r.cached_input_tokens AS cached_input_tokens,
    r.cache_write_5m_tokens + r.cache_write_1h_tokens AS cache_write_tokens,
    r.input_audio_tokens AS input_audio_tokens,
    r.input_image_tokens AS input_image_tokens,
    r.output_tokens AS output_tokens,
    r.reasoning_tokens AS reasoning_tokens,
    r.output_audio_tokens AS output_audio_tokens,
    r.output_image_tokens AS output_image_tokens,
    r.charged_tokens AS charged_tokens,
    (r.held_nanousd::numeric / 1000000000)::numeric(30,9) AS reserved_usd,
    (r.charged_nanousd::numeric / 1000000000)::numeric(30,9) AS cost_usd,
    r.usage_state AS usage_state,
    r.finish AS finish,
    r.status AS status,
    r.upstream_id AS upstream_id,
    r.flags AS flags,
    r.price_row AS price_row,
    r.policy_revision AS policy_revision,
    r.producer AS gateway,
    r.trace_id AS trace_id,
    r.first_byte_ms AS first_byte_ms,
    r.duration_ms AS duration_ms,
    r.deadline AS deadline
FROM reservations r;

COMMENT ON VIEW finance.requests IS 'One row per request that was admitted, whatever became of it.';
COMMENT ON COLUMN finance.requests.request_id IS 'Reservation id, the X-Tollgate-Request-Id of the response';
COMMENT ON COLUMN finance.requests.day IS 'UTC day inside the id; a condition on it prunes partitions';
COMMENT ON COLUMN finance.requests.occurred_at IS 'When the request was admitted';
COMMENT ON COLUMN finance.requests.settled_at IS 'When the outcome happened, by the clock of its gateway; NULL while pending';
COMMENT ON COLUMN finance.requests.state IS 'pending, settled, released (nothing spent) or expired (outcome never arrived)';
COMMENT ON COLUMN finance.requests.app IS 'App that the key belongs to';
COMMENT ON COLUMN finance.requests.api_key IS 'Key id; never the secret';
COMMENT ON COLUMN finance.requests.end_user IS 'End user named by the caller, or empty';
COMMENT ON COLUMN finance.requests.plan IS 'Plan in force for the request';
COMMENT ON COLUMN finance.requests.provider IS 'Provider of the policy file';
COMMENT ON COLUMN finance.requests.model_requested IS 'Model that the caller asked for';
COMMENT ON COLUMN finance.requests.model IS 'Model asked of the provider; it decides the price';
COMMENT ON COLUMN finance.requests.model_served IS 'Model that the provider says it served, or empty';
COMMENT ON COLUMN finance.requests.endpoint IS 'Route';
COMMENT ON COLUMN finance.requests.attempt IS 'Attempt number of the same call, from 1';
COMMENT ON COLUMN finance.requests.streamed IS 'Whether the answer was streamed';
COMMENT ON COLUMN finance.requests.input_tokens IS 'Text input tokens, neither cached nor written to a cache';
COMMENT ON COLUMN finance.requests.cached_input_tokens IS 'Input tokens read from the cache of the provider';
COMMENT ON COLUMN finance.requests.cache_write_tokens IS 'Input tokens written to a cache, of any lifetime';
COMMENT ON COLUMN finance.requests.input_audio_tokens IS 'Audio input tokens';
COMMENT ON COLUMN finance.requests.input_image_tokens IS 'Image input tokens';
COMMENT ON COLUMN finance.requests.output_tokens IS 'Visible text output tokens, reasoning not included';
COMMENT ON COLUMN finance.requests.reasoning_tokens IS 'Reasoning tokens, which are billed as output';
COMMENT ON COLUMN finance.requests.output_audio_tokens IS 'Audio output tokens';
COMMENT ON COLUMN finance.requests.output_image_tokens IS 'Image output tokens';
COMMENT ON COLUMN finance.requests.charged_tokens IS 'Tokens that the budgets carry for the request, all classes';
COMMENT ON COLUMN finance.requests.reserved_usd IS 'Dollars set aside at admission: the upper estimate';
COMMENT ON COLUMN finance.requests.cost_usd IS 'Dollars that the budgets carry for the request: actual, or the estimate when usage_state is unconfirmed';
COMMENT ON COLUMN finance.requests.usage_state IS 'reported, zero, estimated, inconsistent, unconfirmed; empty while pending and after a release';
COMMENT ON COLUMN finance.requests.finish IS 'Reason code of the end: OK, CLIENT_GONE, UPSTREAM_CUT, ...';
COMMENT ON COLUMN finance.requests.status IS 'HTTP status of the provider, 0 when it never answered';
COMMENT ON COLUMN finance.requests.upstream_id IS 'Id that the provider gave the call';
COMMENT ON COLUMN finance.requests.flags IS 'Marks: degraded, shadow, unpriced, used_after_release, ...';
COMMENT ON COLUMN finance.requests.price_row IS 'Price row that the cost was computed from';
COMMENT ON COLUMN finance.requests.policy_revision IS 'Policy that admitted the request';
COMMENT ON COLUMN finance.requests.gateway IS 'Who reported the end: a gateway, or the settler for an expiry; while pending, the gateway that admitted it';
COMMENT ON COLUMN finance.requests.trace_id IS 'Trace id, or empty';
COMMENT ON COLUMN finance.requests.first_byte_ms IS 'Milliseconds to the first byte of the provider';
COMMENT ON COLUMN finance.requests.duration_ms IS 'Milliseconds of the whole call';
COMMENT ON COLUMN finance.requests.deadline IS 'After it a pending request may be expired';

CREATE VIEW finance.spend_daily AS
SELECT
    (r.ended_at AT TIME ZONE 'UTC')::date AS day,
    r.app AS app,
    r.api_key AS api_key,
    r.end_user AS end_user,
    r.plan AS plan,
    r.provider AS provider,
    r.model AS model,
    r.endpoint AS endpoint,
    sum(r.charged_requests) AS requests,
    sum(r.input_tokens) AS input_tokens,
    sum(r.cached_input_tokens) AS cached_input_tokens,
    sum(r.cache_write_5m_tokens + r.cache_write_1h_tokens) AS cache_write_tokens,
    sum(r.output_tokens) AS output_tokens,
    sum(r.reasoning_tokens) AS reasoning_tokens,
    sum(r.charged_tokens) AS charged_tokens,
    (sum(r.charged_nanousd)::numeric / 1000000000)::numeric(30,9) AS cost_usd,
    (coalesce(sum(r.charged_nanousd) FILTER (WHERE r.usage_state = 'unconfirmed'), 0)::numeric / 1000000000)::numeric(30,9) AS unconfirmed_usd
FROM reservations r
WHERE r.charged_requests > 0
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8;

COMMENT ON VIEW finance.spend_daily IS 'What was charged, by UTC day of the outcome. Equals the postings of the transfers of that day.';
COMMENT ON COLUMN finance.spend_daily.day IS 'UTC day of the outcome';
COMMENT ON COLUMN finance.spend_daily.app IS 'App';
COMMENT ON COLUMN finance.spend_daily.api_key IS 'Key id';
COMMENT ON COLUMN finance.spend_daily.end_user IS 'End user, or empty';
COMMENT ON COLUMN finance.spend_daily.plan IS 'Plan';
COMMENT ON COLUMN finance.spend_daily.provider IS 'Provider';
COMMENT ON COLUMN finance.spend_daily.model IS 'Model asked of the provider';
COMMENT ON COLUMN finance.spend_daily.endpoint IS 'Route';
COMMENT ON COLUMN finance.spend_daily.requests IS 'Requests charged';
COMMENT ON COLUMN finance.spend_daily.input_tokens IS 'Text input tokens, neither cached nor written to a cache';
COMMENT ON COLUMN finance.spend_daily.cached_input_tokens IS 'Cached input tokens';
COMMENT ON COLUMN finance.spend_daily.cache_write_tokens IS 'Cache write tokens';
COMMENT ON COLUMN finance.spend_daily.output_tokens IS 'Visible text output tokens';
COMMENT ON COLUMN finance.spend_daily.reasoning_tokens IS 'Reasoning tokens';
COMMENT ON COLUMN finance.spend_daily.charged_tokens IS 'Tokens of all classes that the budgets carry';
COMMENT ON COLUMN finance.spend_daily.cost_usd IS 'Dollars charged';
COMMENT ON COLUMN finance.spend_daily.unconfirmed_usd IS 'Part of cost_usd that expiry charged and no provider has confirmed';

CREATE VIEW finance.open_reservations AS
SELECT
    r.reservation_id AS request_id,
    r.app AS app,
    r.api_key AS api_key,
    r.provider AS provider,
    r.model AS model,
    (r.held_nanousd::numeric / 1000000000)::numeric(30,9) AS reserved_usd,
    r.held_tokens AS reserved_tokens,
    r.reserved_at AS reserved_at,
    r.deadline AS deadline,
    now() - r.reserved_at AS age
FROM reservations r
WHERE r.state = 'pending';

COMMENT ON VIEW finance.open_reservations IS 'Requests whose outcome has not arrived yet.';
COMMENT ON COLUMN finance.open_reservations.request_id IS 'Reservation id';
COMMENT ON COLUMN finance.open_reservations.app IS 'App';
COMMENT ON COLUMN finance.open_reservations.api_key IS 'Key id';
COMMENT ON COLUMN finance.open_reservations.provider IS 'Provider';
COMMENT ON COLUMN finance.open_reservations.model IS 'Model asked of the provider';
COMMENT ON COLUMN finance.open_reservations.reserved_usd IS 'Dollars held';
COMMENT ON COLUMN finance.open_reservations.reserved_tokens IS 'Tokens held';
COMMENT ON COLUMN finance.open_reservations.reserved_at IS 'When it was admitted';
COMMENT ON COLUMN finance.open_reservations.deadline IS 'After it the sweeper ends the reservation';
COMMENT ON COLUMN finance.open_reservations.age IS 'Time since admission';

CREATE VIEW finance.accounts AS
SELECT
    a.account_id AS account_id,
    a.name AS account,
    a.kind AS kind,
    (coalesce(t.debit, 0)::numeric / 1000000000)::numeric(30,9) AS debit_usd,
    (coalesce(t.credit, 0)::numeric / 1000000000)::numeric(30,9) AS credit_usd,
    ((coalesce(t.debit, 0) - coalesce(t.credit, 0))::numeric / 1000000000)::numeric(30,9) AS balance_usd,
    a.created_at AS created_at
FROM accounts a
LEFT JOIN (
    SELECT s.account_id, sum(s.debit) AS debit, sum(s.credit) AS credit
    FROM (
        SELECT debit_account_id AS account_id, sum(amount_nanousd) AS debit, 0::numeric AS credit FROM transfers GROUP BY 1
        UNION ALL
        SELECT credit_account_id, 0::numeric, sum(amount_nanousd) FROM transfers GROUP BY 1
    ) s
    GROUP BY 1
) t ON t.account_id = a.account_id;

COMMENT ON VIEW finance.accounts IS 'Accounts of the double-entry ledger with their balances.';
COMMENT ON COLUMN finance.accounts.account_id IS 'Id used in transfers';
COMMENT ON COLUMN finance.accounts.account IS 'Name: app:<app>:spend, provider:<provider>:payable, ...';
COMMENT ON COLUMN finance.accounts.kind IS 'spend, payable, unconfirmed, grant, rounding or suspense';
COMMENT ON COLUMN finance.accounts.debit_usd IS 'Sum of debits';
COMMENT ON COLUMN finance.accounts.credit_usd IS 'Sum of credits';
COMMENT ON COLUMN finance.accounts.balance_usd IS 'Debits less credits';
COMMENT ON COLUMN finance.accounts.created_at IS 'When the account was first used';

CREATE VIEW finance.transfers AS
SELECT
    t.event_id || '/' || t.kind AS transfer_id,
    t.kind AS kind,
    d.name AS debit_account,
    c.name AS credit_account,
    (t.amount_nanousd::numeric / 1000000000)::numeric(30,9) AS amount_usd,
    t.reservation_id AS request_id,
    t.event_id AS event_id,
    t.price_row AS price_row,
    t.components AS components,
    t.linked_transfer AS linked_transfer,
    t.occurred_at AS occurred_at,
    t.utc_day AS utc_day,
    t.recorded_at AS recorded_at,
    t.day AS day
FROM transfers t
LEFT JOIN accounts d ON d.account_id = t.debit_account_id
LEFT JOIN accounts c ON c.account_id = t.credit_account_id;

COMMENT ON VIEW finance.transfers IS 'Every movement of money: one debit, one credit, never changed.';
COMMENT ON COLUMN finance.transfers.transfer_id IS 'Unique for ever';
COMMENT ON COLUMN finance.transfers.kind IS 'settle, expire, correct (takes an expiry back), adjust, grant';
COMMENT ON COLUMN finance.transfers.debit_account IS 'Account debited';
COMMENT ON COLUMN finance.transfers.credit_account IS 'Account credited';
COMMENT ON COLUMN finance.transfers.amount_usd IS 'Amount, never negative';
COMMENT ON COLUMN finance.transfers.request_id IS 'Request that it is about, if any';
COMMENT ON COLUMN finance.transfers.event_id IS 'Event that caused it';
COMMENT ON COLUMN finance.transfers.price_row IS 'Price row pinned';
COMMENT ON COLUMN finance.transfers.components IS 'Raw token classes with price and cost, as computed';
COMMENT ON COLUMN finance.transfers.linked_transfer IS 'Transfer that this one takes back';
COMMENT ON COLUMN finance.transfers.occurred_at IS 'When it happened; a correction carries the time of what it corrects';
COMMENT ON COLUMN finance.transfers.utc_day IS 'UTC day that it counts for';
COMMENT ON COLUMN finance.transfers.recorded_at IS 'When it was posted';
COMMENT ON COLUMN finance.transfers.day IS 'UTC day inside the id; a condition on it prunes partitions';

CREATE VIEW finance.trial_balance AS
SELECT
    a.account AS account,
    a.kind AS kind,
    a.debit_usd AS debit_usd,
    a.credit_usd AS credit_usd,
    a.balance_usd AS balance_usd
FROM finance.accounts a;

COMMENT ON VIEW finance.trial_balance IS 'Debits and credits per account; balance_usd over all rows sums to zero.';
COMMENT ON COLUMN finance.trial_balance.account IS 'Account';
COMMENT ON COLUMN finance.trial_balance.kind IS 'Kind of account';
COMMENT ON COLUMN finance.trial_balance.debit_usd IS 'Sum of debits';
COMMENT ON COLUMN finance.trial_balance.credit_usd IS 'Sum of credits';
COMMENT ON COLUMN finance.trial_balance.balance_usd IS 'Debits less credits';

CREATE VIEW finance.reconciliation_runs AS
SELECT
    r.run_id AS run_id,
    r.provider AS provider,
    r.day AS day,
    (r.ledger_nanousd::numeric / 1000000000)::numeric(30,9) AS ledger_usd,
    (r.billed_nanousd::numeric / 1000000000)::numeric(30,9) AS billed_usd,
    ((r.billed_nanousd - r.ledger_nanousd)::numeric / 1000000000)::numeric(30,9) AS difference_usd,
    (SELECT count(*) FROM reconciliation_breaks b WHERE b.run_id = r.run_id) AS breaks,
    r.status AS status,
    r.started_at AS started_at,
    r.finished_at AS finished_at
FROM reconciliation_runs r;

COMMENT ON VIEW finance.reconciliation_runs IS 'Comparisons of the ledger with the bills of the providers.';
COMMENT ON COLUMN finance.reconciliation_runs.run_id IS 'Run';
COMMENT ON COLUMN finance.reconciliation_runs.provider IS 'Provider';
COMMENT ON COLUMN finance.reconciliation_runs.day IS 'UTC day compared';
COMMENT ON COLUMN finance.reconciliation_runs.ledger_usd IS 'Total of the ledger';
COMMENT ON COLUMN finance.reconciliation_runs.billed_usd IS 'Total of the bill';
COMMENT ON COLUMN finance.reconciliation_runs.difference_usd IS 'Bill less ledger';
COMMENT ON COLUMN finance.reconciliation_runs.breaks IS 'Number of differences found';
COMMENT ON COLUMN finance.reconciliation_runs.status IS 'running, provisional, stable, posted or failed';
COMMENT ON COLUMN finance.reconciliation_runs.started_at IS 'Start';
COMMENT ON COLUMN finance.reconciliation_runs.finished_at IS 'End, NULL while running';

CREATE VIEW finance.reconciliation_breaks AS
SELECT
    b.break_id AS break_id,
    b.run_id AS run_id,
    r.provider AS provider,
    r.day AS day,
    b.class AS class,
    b.model AS model,
    (b.ledger_nanousd::numeric / 1000000000)::numeric(30,9) AS ledger_usd,
    (b.billed_nanousd::numeric / 1000000000)::numeric(30,9) AS billed_usd,
    ((b.billed_nanousd - b.ledger_nanousd)::numeric / 1000000000)::numeric(30,9) AS difference_usd,
    b.status AS status,
    b.detail AS detail
FROM reconciliation_breaks b
JOIN reconciliation_runs r ON r.run_id = b.run_id;

COMMENT ON VIEW finance.reconciliation_breaks IS 'Differences between ledger and bill, one by one.';
COMMENT ON COLUMN finance.reconciliation_breaks.break_id IS 'Break';
COMMENT ON COLUMN finance.reconciliation_breaks.run_id IS 'Run that found it';
COMMENT ON COLUMN finance.reconciliation_breaks.provider IS 'Provider';
COMMENT ON COLUMN finance.reconciliation_breaks.day IS 'UTC day';
COMMENT ON COLUMN finance.reconciliation_breaks.class IS 'Kind of difference: timing, missing, quantity, price, rounding, duplicate, ...';
COMMENT ON COLUMN finance.reconciliation_breaks.model IS 'Model';
COMMENT ON COLUMN finance.reconciliation_breaks.ledger_usd IS 'Of the ledger';
COMMENT ON COLUMN finance.reconciliation_breaks.billed_usd IS 'Of the bill';
COMMENT ON COLUMN finance.reconciliation_breaks.difference_usd IS 'Bill less ledger';
COMMENT ON COLUMN finance.reconciliation_breaks.status IS 'open, explained, adjusted or written_off';
COMMENT ON COLUMN finance.reconciliation_breaks.detail IS 'Explanation';

CREATE VIEW finance.refusals_hourly AS
SELECT
    date_trunc('hour', f.from_at, 'UTC') AS hour,
    f.layer AS layer,
    f.reason AS reason,
    f.limit_name AS limit_name,
    f.subject AS subject,
    f.app AS app,
    f.endpoint AS endpoint,
    sum(f.refusals) AS refusals
FROM refusals f
GROUP BY 1, 2, 3, 4, 5, 6, 7;

COMMENT ON VIEW finance.refusals_hourly IS 'Requests refused, by the hour and the limit that refused them last.';
COMMENT ON COLUMN finance.refusals_hourly.hour IS 'Hour, by UTC';
COMMENT ON COLUMN finance.refusals_hourly.layer IS 'Tier of the limit';
COMMENT ON COLUMN finance.refusals_hourly.reason IS 'Reason code';
COMMENT ON COLUMN finance.refusals_hourly.limit_name IS 'Limit of the policy';
COMMENT ON COLUMN finance.refusals_hourly.subject IS 'Subject refused';
COMMENT ON COLUMN finance.refusals_hourly.app IS 'App of the caller';
COMMENT ON COLUMN finance.refusals_hourly.endpoint IS 'Route';
COMMENT ON COLUMN finance.refusals_hourly.refusals IS 'Requests refused';

CREATE VIEW finance.budget_status AS
SELECT
    b.tier AS tier,
    b.subject AS subject,
    b.app AS app,
    l.limit_name AS limit_name,
    l.unit AS unit,
    b.period AS period,
    CASE WHEN b.window_end IS NOT NULL THEN b.window_start END AS window_start,
    b.window_end AS window_end,
    v.limit_value AS limit_value,
    v.used AS used,
    v.limit_value - v.used AS remaining,
    CASE WHEN v.limit_value > 0 THEN round(v.used / v.limit_value, 6) END AS used_ratio,
    l.hard AS hard,
    b.updated_at AS updated_at
FROM budgets b
JOIN policy_limits l
    ON l.event_id = (SELECT event_id FROM policy_revisions ORDER BY occurred_at DESC, event_id DESC LIMIT 1)
    AND l.family = b.family AND l.period = b.period AND l.name = ''
LEFT JOIN policy_limits o
    ON o.event_id = l.event_id AND o.limit_name = l.limit_name AND o.unit = l.unit AND o.name = b.name AND b.name <> ''
    AND (o.until IS NULL OR o.until > now())
CROSS JOIN LATERAL (
    SELECT
        CASE l.unit WHEN 'usd' THEN (coalesce(o.limit_value, l.limit_value)::numeric / 1000000000)::numeric(30,9)
                    ELSE coalesce(o.limit_value, l.limit_value)::numeric END AS limit_value,
        CASE l.unit WHEN 'usd' THEN (b.nanousd::numeric / 1000000000)::numeric(30,9)
                    WHEN 'tokens' THEN b.tokens::numeric ELSE b.requests::numeric END AS used
) v
WHERE b.window_end IS NULL OR b.window_end > now();

COMMENT ON VIEW finance.budget_status IS 'Every budget of the running windows against the limits of the policy in force. Amounts held by open requests are not included.';
COMMENT ON COLUMN finance.budget_status.tier IS 'Level of the hierarchy';
COMMENT ON COLUMN finance.budget_status.subject IS 'Whose budget it is';
COMMENT ON COLUMN finance.budget_status.app IS 'Owner, empty when all apps share it';
COMMENT ON COLUMN finance.budget_status.limit_name IS 'Limit of the policy';
COMMENT ON COLUMN finance.budget_status.unit IS 'usd, tokens or requests';
COMMENT ON COLUMN finance.budget_status.period IS 'day, week, month or total';
COMMENT ON COLUMN finance.budget_status.window_start IS 'Start of the window, NULL when it never resets';
COMMENT ON COLUMN finance.budget_status.window_end IS 'End of the window, not included; NULL when it never resets';
COMMENT ON COLUMN finance.budget_status.limit_value IS 'Limit in force for the subject, in unit';
COMMENT ON COLUMN finance.budget_status.used IS 'Used in the window, in unit';
COMMENT ON COLUMN finance.budget_status.remaining IS 'limit_value less used; negative when settlement passed the limit';
COMMENT ON COLUMN finance.budget_status.used_ratio IS 'used divided by limit_value, NULL for a limit of zero';
COMMENT ON COLUMN finance.budget_status.hard IS 'Whether a stream that outgrows the budget is ended';
COMMENT ON COLUMN finance.budget_status.updated_at IS 'Last settlement that touched the budget';

-- +goose StatementBegin
CREATE FUNCTION finance.statement(app text, month date)
    RETURNS TABLE (opening_usd numeric, grants_usd numeric, spend_usd numeric, adjustments_usd numeric, closing_usd numeric)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    WITH moved AS (
        SELECT t.utc_day < date_trunc('month', statement.month)::date AS before,
               t.kind,
               CASE WHEN t.debit_account_id = a.account_id THEN t.amount_nanousd ELSE -t.amount_nanousd END::numeric / 1000000000 AS usd
        FROM transfers t
        JOIN accounts a ON a.account_id IN (t.debit_account_id, t.credit_account_id)
        WHERE a.name = 'app:' || statement.app || ':spend'
          AND t.utc_day < (date_trunc('month', statement.month) + interval '1 month')::date
    ), sums AS (
        SELECT coalesce(-sum(usd) FILTER (WHERE before), 0) AS opening,
               coalesce(-sum(usd) FILTER (WHERE NOT before AND kind = 'grant'), 0) AS grants,
               coalesce(sum(usd) FILTER (WHERE NOT before AND kind IN ('settle', 'expire', 'correct')), 0) AS spend,
               coalesce(sum(usd) FILTER (WHERE NOT before AND kind = 'adjust'), 0) AS adjustments
        FROM moved
    )
    SELECT opening::numeric(30,9), grants::numeric(30,9), spend::numeric(30,9), adjustments::numeric(30,9),
           (opening + grants - spend - adjustments)::numeric(30,9)
    FROM sums
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION finance.statement(text, date) IS
    'Monthly statement of one app, by UTC days: closing = opening + grants - spend - adjustments. Without grants the balance is what was spent, negative.';
REVOKE ALL ON FUNCTION finance.statement(text, date) FROM PUBLIC;

-- +goose Down
DROP FUNCTION finance.statement(text, date);
DROP VIEW finance.trial_balance;
DROP VIEW finance.requests;
DROP VIEW finance.spend_daily;
DROP VIEW finance.open_reservations;
DROP VIEW finance.accounts;
DROP VIEW finance.transfers;
DROP VIEW finance.reconciliation_runs;
DROP VIEW finance.reconciliation_breaks;
DROP VIEW finance.refusals_hourly;
DROP VIEW finance.budget_status;
DROP SCHEMA finance;
