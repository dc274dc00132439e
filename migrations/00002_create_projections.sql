-- +goose Up

-- What a subject has used within one window. app is '' for counters that all apps share. A window that never resets
-- (period total) starts at the epoch and has no end. version rises with every batch that changes the row: Redis takes a
-- row's values only when its version is newer.
CREATE TABLE budgets (
    app          text        COLLATE "C" NOT NULL,
    subject      text        COLLATE "C" NOT NULL,
    period       text        COLLATE "C" NOT NULL,
    window_start timestamptz NOT NULL,
    window_end   timestamptz,
    tier         text        NOT NULL,
    family       text        NOT NULL,
    name         text        NOT NULL,
    requests     bigint      NOT NULL,
    tokens       bigint      NOT NULL,
    nanousd      bigint      NOT NULL,
    version      bigint      NOT NULL,
    updated_at   timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT budgets_pkey PRIMARY KEY (app, subject, period, window_start),
    CONSTRAINT budgets_version_positive CHECK (version > 0),
    CONSTRAINT budgets_window_not_empty CHECK (window_end > window_start)
) WITH (fillfactor = 50); -- every batch updates its rows: room for HOT updates

-- What each producer's events prove to have arrived. seen holds the sequences as ranges; a hole between them is an event
-- that is late or lost. confirmed is the last sequence below which nothing is missing.
CREATE TABLE producers (
    producer   text           COLLATE "C" CONSTRAINT producers_pkey PRIMARY KEY,
    seen       int8multirange NOT NULL,
    confirmed  bigint         NOT NULL GENERATED ALWAYS AS (
        CASE WHEN seen @> 1::bigint
             THEN coalesce(lower(int8multirange(range_merge(seen)) - seen), upper(seen)) - 1
             ELSE 0 END) STORED,
    updated_at timestamptz    NOT NULL DEFAULT now()
);

-- What could not be settled, with the reason; a person looks at these.
CREATE TABLE parked_events (
    parked_id  bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT parked_events_pkey PRIMARY KEY,
    stream_seq bigint      NOT NULL,
    body_hash  bytea       NOT NULL,
    subject    text        NOT NULL,
    reason     text        NOT NULL,
    body       bytea       NOT NULL,
    parked_at  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT parked_events_key UNIQUE (stream_seq, body_hash)
);

CREATE TABLE policy_revisions (
    event_id    text        COLLATE "C" CONSTRAINT policy_revisions_pkey PRIMARY KEY,
    revision    text        NOT NULL,
    occurred_at timestamptz NOT NULL
);
CREATE INDEX policy_revisions_latest ON policy_revisions (occurred_at DESC, event_id DESC);

-- The budgets of a policy. name is '' for the limit itself, else the subject that an override names.
CREATE TABLE policy_limits (
    event_id    text    COLLATE "C" NOT NULL CONSTRAINT policy_limits_revision_fkey REFERENCES policy_revisions (event_id),
    limit_name  text    NOT NULL,
    name        text    NOT NULL,
    tier        text    NOT NULL,
    family      text    NOT NULL,
    unit        text    NOT NULL,
    period      text    NOT NULL,
    limit_value bigint  NOT NULL,
    hard        boolean NOT NULL,
    until       timestamptz,
    CONSTRAINT policy_limits_pkey PRIMARY KEY (event_id, limit_name, unit, name),
    CONSTRAINT policy_limits_unit_known CHECK (unit IN ('requests', 'tokens', 'usd')),
    CONSTRAINT policy_limits_value_not_negative CHECK (limit_value >= 0)
);

CREATE TABLE refusals (
    event_id   text        COLLATE "C" NOT NULL,
    line       integer     NOT NULL,
    from_at    timestamptz NOT NULL,
    until_at   timestamptz NOT NULL,
    layer      text        NOT NULL,
    reason     text        NOT NULL,
    limit_name text        NOT NULL,
    subject    text        NOT NULL,
    app        text        NOT NULL,
    endpoint   text        NOT NULL,
    refusals   bigint      NOT NULL,
    CONSTRAINT refusals_pkey PRIMARY KEY (event_id, line),
    CONSTRAINT refusals_positive CHECK (refusals > 0)
);
CREATE INDEX refusals_from_at ON refusals USING brin (from_at);

-- +goose Down
DROP TABLE refusals;
DROP TABLE policy_limits;
DROP TABLE policy_revisions;
DROP TABLE parked_events;
DROP TABLE producers;
DROP TABLE budgets;
