-- +goose Up

-- The comparison of the ledger with a provider's bill: one run per provider, day and look.
CREATE TABLE reconciliation_runs (
    run_id         bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT reconciliation_runs_pkey PRIMARY KEY,
    provider       text        NOT NULL,
    day            date        NOT NULL,
    ledger_nanousd bigint      NOT NULL,
    billed_nanousd bigint      NOT NULL,
    status         text        NOT NULL,
    started_at     timestamptz NOT NULL,
    finished_at    timestamptz,
    CONSTRAINT reconciliation_runs_status_known CHECK (status IN ('running', 'provisional', 'stable', 'posted', 'failed'))
);

CREATE TABLE reconciliation_breaks (
    break_id       bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT reconciliation_breaks_pkey PRIMARY KEY,
    run_id         bigint NOT NULL CONSTRAINT reconciliation_breaks_run_fkey REFERENCES reconciliation_runs (run_id),
    class          text   NOT NULL,
    model          text   NOT NULL,
    ledger_nanousd bigint NOT NULL,
    billed_nanousd bigint NOT NULL,
    status         text   NOT NULL,
    detail         text   NOT NULL DEFAULT '',
    CONSTRAINT reconciliation_breaks_status_known CHECK (status IN ('open', 'explained', 'adjusted', 'written_off'))
);
CREATE INDEX reconciliation_breaks_run ON reconciliation_breaks (run_id);

-- +goose Down
DROP TABLE reconciliation_breaks;
DROP TABLE reconciliation_runs;
