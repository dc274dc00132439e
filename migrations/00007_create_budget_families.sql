-- +goose Up

-- The families of counters that budgets must count, whatever policy a request was made under: those that some gateway judges
-- by. A request belongs to the family's counter of its window when it was reserved within [since, until) and matches, also if
-- its event does not name the counter. What was settled before the family was known has been added when its row was made.
--
-- timezone and week_start cut the windows; they are '' and 0 where they make no difference. written says that Redis has been
-- told of what was added. version rises with every change that settlements must know of.
CREATE TABLE budget_families (
    family     text        COLLATE "C" NOT NULL,
    period     text        COLLATE "C" NOT NULL,
    timezone   text        COLLATE "C" NOT NULL,
    week_start smallint    NOT NULL,
    since      timestamptz NOT NULL,
    until      timestamptz NOT NULL,
    tier       text        NOT NULL,
    written    boolean     NOT NULL,
    version    bigint      NOT NULL,
    filled_at  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT budget_families_pkey PRIMARY KEY (family, period, timezone, week_start, since),
    CONSTRAINT budget_families_period_known CHECK (period IN ('day', 'week', 'month', 'total')),
    CONSTRAINT budget_families_not_empty CHECK (since < until)
);
CREATE INDEX budget_families_version ON budget_families (version);
GRANT SELECT, INSERT, UPDATE ON budget_families TO tollgate_app;

-- The model as the limits name it, where that is not the one asked for.
ALTER TABLE reservations ADD COLUMN model_judged text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE reservations DROP COLUMN model_judged;
DROP TABLE budget_families;
