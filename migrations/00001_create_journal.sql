-- +goose Up

-- The journal: what happened (events) and what it moved (transfers). Both only ever grow.
--
-- Every row about a reservation lives in the partition of the instant inside its UUIDv7 (column day), never of its arrival:
-- the same event therefore always meets the same unique index, however late it is delivered again.

CREATE TABLE events (
    event_id    text        COLLATE "C" NOT NULL,
    day         date        NOT NULL,
    kind        text        NOT NULL,
    app         text        NOT NULL,
    producer    text        NOT NULL,
    sequence    bigint      NOT NULL,
    occurred_at timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    body_hash   bytea       NOT NULL,
    body        bytea       NOT NULL,
    CONSTRAINT events_pkey PRIMARY KEY (event_id, day),
    CONSTRAINT events_sequence_not_negative CHECK (sequence >= 0),
    CONSTRAINT events_body_hash_is_sha256 CHECK (length(body_hash) = 32)
) PARTITION BY RANGE (day);
-- A body of two kilobytes is not worth compressing, nor a row of its own in another table: both cost more than the insert.
ALTER TABLE events ALTER COLUMN body SET STORAGE EXTERNAL; -- and see toast_tuple_target below

CREATE TABLE accounts (
    account_id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT accounts_pkey PRIMARY KEY,
    name       text        NOT NULL CONSTRAINT accounts_name_key UNIQUE,
    kind       text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT accounts_kind_known CHECK (kind IN ('spend', 'payable', 'unconfirmed', 'grant', 'rounding', 'suspense'))
);

-- No foreign keys to accounts: every insert would lock the same few account rows, for all settlers at once.
-- `ledger verify` proves instead that every account exists.
CREATE TABLE transfers (
    event_id          text        COLLATE "C" NOT NULL,
    kind              text        NOT NULL,
    day               date        NOT NULL,
    debit_account_id  bigint      NOT NULL,
    credit_account_id bigint      NOT NULL,
    amount_nanousd    bigint      NOT NULL,
    reservation_id    text        COLLATE "C",
    price_row         text        NOT NULL DEFAULT '',
    components        json,
    linked_transfer   text        COLLATE "C",
    occurred_at       timestamptz NOT NULL,
    utc_day           date        NOT NULL,
    recorded_at       timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT transfers_pkey PRIMARY KEY (event_id, kind, day),
    CONSTRAINT transfers_amount_not_negative CHECK (amount_nanousd >= 0),
    CONSTRAINT transfers_two_accounts CHECK (debit_account_id <> credit_account_id),
    CONSTRAINT transfers_kind_known CHECK (kind IN ('settle', 'expire', 'correct', 'adjust', 'grant'))
) PARTITION BY RANGE (day);

CREATE TABLE reservations (
    reservation_id        text        COLLATE "C" NOT NULL,
    day                   date        NOT NULL,
    state                 text        NOT NULL,
    app                   text        NOT NULL,
    api_key               text        NOT NULL,
    end_user              text        NOT NULL,
    plan                  text        NOT NULL,
    provider              text        NOT NULL,
    model_requested       text        NOT NULL,
    model                 text        NOT NULL,
    model_served          text        NOT NULL,
    endpoint              text        NOT NULL,
    attempt               integer     NOT NULL,
    streamed              boolean     NOT NULL,
    producer              text        NOT NULL,
    trace_id              text        NOT NULL,
    policy_revision       text        NOT NULL,
    price_row             text        NOT NULL,
    on_expiry             text        NOT NULL,
    held_requests         bigint      NOT NULL,
    held_tokens           bigint      NOT NULL,
    held_nanousd          bigint      NOT NULL,
    charged_requests      bigint      NOT NULL,
    charged_tokens        bigint      NOT NULL,
    charged_nanousd       bigint      NOT NULL,
    input_tokens          bigint      NOT NULL,
    cached_input_tokens   bigint      NOT NULL,
    cache_write_5m_tokens bigint      NOT NULL,
    cache_write_1h_tokens bigint      NOT NULL,
    input_audio_tokens    bigint      NOT NULL,
    input_image_tokens    bigint      NOT NULL,
    output_tokens         bigint      NOT NULL,
    reasoning_tokens      bigint      NOT NULL,
    output_audio_tokens   bigint      NOT NULL,
    output_image_tokens   bigint      NOT NULL,
    usage_state           text        NOT NULL,
    finish                text        NOT NULL,
    status                integer     NOT NULL,
    upstream_id           text        NOT NULL,
    flags                 text[]      NOT NULL,
    first_byte_ms         bigint      NOT NULL,
    duration_ms           bigint      NOT NULL,
    reserved_at           timestamptz NOT NULL,
    deadline              timestamptz NOT NULL,
    ended_at              timestamptz,
    CONSTRAINT reservations_pkey PRIMARY KEY (reservation_id, day),
    CONSTRAINT reservations_state_known CHECK (state IN ('pending', 'settled', 'released', 'expired')),
    CONSTRAINT reservations_ended_when_final CHECK ((state = 'pending') = (ended_at IS NULL)),
    CONSTRAINT reservations_pending_charges_nothing
        CHECK (state NOT IN ('pending', 'released') OR (charged_requests = 0 AND charged_tokens = 0 AND charged_nanousd = 0)),
    CONSTRAINT reservations_held_not_negative CHECK (held_requests >= 0 AND held_tokens >= 0 AND held_nanousd >= 0),
    CONSTRAINT reservations_charged_not_negative CHECK (charged_requests >= 0 AND charged_tokens >= 0 AND charged_nanousd >= 0)
) PARTITION BY RANGE (day);

-- The open ones are few; the sweeper and a rebuild find them here.
CREATE INDEX reservations_open ON reservations (deadline) WHERE state = 'pending';
CREATE INDEX reservations_reserved_at ON reservations USING brin (reserved_at);

-- The default partitions catch ids of a month that nobody has made a partition for; nothing is refused for its date.
CREATE TABLE events_default PARTITION OF events DEFAULT;
CREATE TABLE transfers_default PARTITION OF transfers DEFAULT;
CREATE TABLE reservations_default PARTITION OF reservations DEFAULT;

-- +goose StatementBegin
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% on % refused: the journal is append-only', TG_OP, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END $$;
-- +goose StatementEnd

CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE ON events FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER transfers_append_only BEFORE UPDATE OR DELETE ON transfers FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON events FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER transfers_no_truncate BEFORE TRUNCATE ON transfers FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
-- TRUNCATE triggers are not inherited: each partition needs its own.
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON events_default FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER transfers_no_truncate BEFORE TRUNCATE ON transfers_default FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Makes the monthly partitions that cover [first, last]. Idempotent, and safe when several call it at once. A month whose
-- rows already sit in a default partition stays there. It runs with its owner's rights, so the settler needs none to create.
-- +goose StatementBegin
CREATE FUNCTION ensure_partitions(first date, last date) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    base   text;
    month  date;
    part   text;
    strays boolean;
    made   integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('tollgate.ensure_partitions', 0));
    FOREACH base IN ARRAY ARRAY['events', 'transfers', 'reservations'] LOOP
        month := date_trunc('month', first)::date;
        WHILE month <= last LOOP
            part := base || to_char(month, '_YYYY_MM');
            IF to_regclass(part) IS NULL THEN
                EXECUTE format('SELECT EXISTS (SELECT FROM %I WHERE day >= %L AND day < %L)',
                    base || '_default', month, (month + interval '1 month')::date) INTO strays;
                IF NOT strays THEN
                    EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)',
                        part, base, month, (month + interval '1 month')::date);
                    IF base = 'events' THEN
                        EXECUTE format('ALTER TABLE %I SET (toast_tuple_target = 8160)', part);
                    END IF;
                    IF base <> 'reservations' THEN
                        EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON %I FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()',
                            base || '_no_truncate', part);
                    END IF;
                    made := made + 1;
                END IF;
            END IF;
            month := (month + interval '1 month')::date;
        END LOOP;
    END LOOP;
    RETURN made;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION ensure_partitions(date, date) FROM PUBLIC;

SELECT ensure_partitions(current_date - 7, current_date + 45);

-- +goose Down
DROP FUNCTION ensure_partitions(date, date);
DROP TABLE reservations;
DROP TABLE transfers;
DROP TABLE accounts;
DROP TABLE events;
DROP FUNCTION refuse_change();
