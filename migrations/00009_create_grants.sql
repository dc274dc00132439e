-- +goose Up

-- Budget that was added to one limit for one subject, and what took it back. A revocation is a row of its own, so that nothing
-- changes once it is written. app is '' where all apps share the counter, as in budgets.
CREATE TABLE grants (
    grant_id     text        COLLATE "C" CONSTRAINT grants_pkey PRIMARY KEY,
    event_id     text        COLLATE "C" NOT NULL,
    granted_at   timestamptz NOT NULL,
    owner        text        COLLATE "C" NOT NULL,
    app          text        COLLATE "C" NOT NULL,
    subject      text        COLLATE "C" NOT NULL,
    limit_name   text        NOT NULL,
    tier         text        NOT NULL,
    family       text        NOT NULL,
    name         text        NOT NULL,
    unit         text        NOT NULL,
    period       text        NOT NULL,
    amount       bigint      NOT NULL,
    window_start timestamptz NOT NULL,
    window_end   timestamptz,
    until        timestamptz,
    revokes      text        COLLATE "C",
    reason       text        NOT NULL,
    CONSTRAINT grants_unit_known CHECK (unit IN ('requests', 'tokens', 'usd')),
    CONSTRAINT grants_negative_when_revoking CHECK (amount <> 0 AND (amount < 0) = (revokes IS NOT NULL))
);
CREATE INDEX grants_subject ON grants (subject);
CREATE UNIQUE INDEX grants_revoked_once ON grants (revokes);

-- What was asked for under which id, written before it is published: asking again publishes the same bytes, so that it is
-- granted once whatever fails in between.
CREATE TABLE grant_orders (
    grant_id   text        COLLATE "C" CONSTRAINT grant_orders_pkey PRIMARY KEY,
    body       bytea       NOT NULL,
    ordered_at timestamptz NOT NULL DEFAULT now()
);
GRANT SELECT, INSERT ON grants, grant_orders TO tollgate_app;

CREATE VIEW finance.grants AS
SELECT
    g.grant_id AS grant_id,
    g.granted_at AS granted_at,
    g.owner AS app,
    g.limit_name AS limit_name,
    g.subject AS subject,
    g.unit AS unit,
    g.period AS period,
    CASE g.unit WHEN 'usd' THEN (g.amount::numeric / 1000000000)::numeric(30,9) ELSE g.amount::numeric END AS amount,
    least(g.until, g.window_end) AS ends_at,
    CASE WHEN r.grant_id IS NOT NULL THEN 'revoked' WHEN least(g.until, g.window_end) <= now() THEN 'lapsed' ELSE 'in force' END AS state,
    r.granted_at AS revoked_at,
    g.reason AS reason,
    g.event_id AS event_id
FROM grants g
LEFT JOIN grants r ON r.revokes = g.grant_id
WHERE g.revokes IS NULL;

COMMENT ON VIEW finance.grants IS 'Budget added to one limit for one subject, and whether it is in force.';
COMMENT ON COLUMN finance.grants.grant_id IS 'Unique for ever';
COMMENT ON COLUMN finance.grants.granted_at IS 'When it was granted';
COMMENT ON COLUMN finance.grants.app IS 'App whose statement shows it; platform where all apps share the limit';
COMMENT ON COLUMN finance.grants.limit_name IS 'Limit of the policy that it raises';
COMMENT ON COLUMN finance.grants.subject IS 'Whose budget it raises';
COMMENT ON COLUMN finance.grants.unit IS 'usd, tokens or requests';
COMMENT ON COLUMN finance.grants.period IS 'Period of the limit: day, week, month or total';
COMMENT ON COLUMN finance.grants.amount IS 'What it adds, in unit';
COMMENT ON COLUMN finance.grants.ends_at IS 'When it lapses; NULL for never';
COMMENT ON COLUMN finance.grants.state IS 'in force, lapsed or revoked';
COMMENT ON COLUMN finance.grants.revoked_at IS 'When it was taken back; NULL when it was not';
COMMENT ON COLUMN finance.grants.reason IS 'Why, in the words of who granted it';
COMMENT ON COLUMN finance.grants.event_id IS 'Event that granted it';
GRANT SELECT ON finance.grants TO finance, grafana, tollgate_app;

-- Budgets nobody has used yet are shown too when something was granted to them.
CREATE OR REPLACE VIEW finance.budget_status AS
WITH used AS (
    SELECT tier, subject, app, family, name, period, window_start, window_end, requests, tokens, nanousd, updated_at FROM budgets
    UNION ALL
    SELECT g.tier, g.subject, g.app, g.family, g.name, g.period, g.window_start, g.window_end, 0, 0, 0, max(g.granted_at)
    FROM grants g
    WHERE NOT EXISTS (
        SELECT FROM budgets b WHERE b.app = g.app AND b.subject = g.subject AND b.period = g.period AND b.window_start = g.window_start)
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
)
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
    b.updated_at AS updated_at,
    v.granted AS granted
FROM used b
JOIN policy_limits l
    ON l.event_id = (SELECT event_id FROM policy_revisions ORDER BY occurred_at DESC, event_id DESC LIMIT 1)
    AND l.family = b.family AND l.period = b.period AND l.name = ''
LEFT JOIN policy_limits o
    ON o.event_id = l.event_id AND o.limit_name = l.limit_name AND o.unit = l.unit AND o.name = b.name AND b.name <> ''
    AND (o.until IS NULL OR o.until > now())
CROSS JOIN LATERAL (
    SELECT coalesce(sum(g.amount), 0) AS amount
    FROM grants g
    WHERE g.app = b.app AND g.subject = b.subject AND g.limit_name = l.limit_name AND g.unit = l.unit AND g.period = b.period
        AND (b.window_end IS NULL OR g.granted_at >= b.window_start AND g.granted_at < b.window_end)
        AND (g.until IS NULL OR g.until > now())
        AND g.revokes IS NULL AND NOT EXISTS (SELECT FROM grants r WHERE r.revokes = g.grant_id)
) g
CROSS JOIN LATERAL (
    SELECT
        CASE l.unit WHEN 'usd' THEN ((coalesce(o.limit_value, l.limit_value) + g.amount) / 1000000000)::numeric(30,9)
                    ELSE coalesce(o.limit_value, l.limit_value) + g.amount END AS limit_value,
        CASE l.unit WHEN 'usd' THEN (b.nanousd::numeric / 1000000000)::numeric(30,9)
                    WHEN 'tokens' THEN b.tokens::numeric ELSE b.requests::numeric END AS used,
        CASE l.unit WHEN 'usd' THEN (g.amount / 1000000000)::numeric(30,9) ELSE g.amount END AS granted
) v
WHERE b.window_end IS NULL OR b.window_end > now();
COMMENT ON COLUMN finance.budget_status.limit_value IS 'Limit in force for the subject with what was granted to it, in unit';
COMMENT ON COLUMN finance.budget_status.granted IS 'Part of limit_value that grants in force add, in unit';

-- +goose Down
DROP VIEW finance.budget_status;
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
GRANT SELECT ON finance.budget_status TO finance, grafana, tollgate_app;
DROP VIEW finance.grants;
DROP TABLE grant_orders;
DROP TABLE grants;
