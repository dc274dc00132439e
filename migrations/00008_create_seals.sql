-- +goose Up

-- The journal's own proof: each row of events and transfers has a serial, and blocks of rows are sealed by a chain of hashes.
--
-- One sequence serves both tables, without a cache: a cached value is handed out long after the sequence's last value has
-- passed it, and sealing relies on that not being so. Rows that are there already are numbered now, which writes their tables
-- anew and keeps settlement waiting meanwhile: some seconds for each million rows.
CREATE SEQUENCE journal_serial CACHE 1;
ALTER TABLE events ADD COLUMN serial bigint NOT NULL DEFAULT nextval('journal_serial')
    CONSTRAINT events_serial_positive CHECK (serial > 0);
ALTER TABLE transfers ADD COLUMN serial bigint NOT NULL DEFAULT nextval('journal_serial')
    CONSTRAINT transfers_serial_positive CHECK (serial > 0);
CREATE INDEX events_serial ON events (serial);
CREATE INDEX transfers_serial ON transfers (serial);

-- A block covers every serial in [first_serial, last_serial]; content holds, for each row in it, its serial, table, digest and
-- id (see ledger/pg). hash covers all of it and the hash of the block before.
CREATE TABLE seals (
    block        bigint      CONSTRAINT seals_pkey PRIMARY KEY,
    first_serial bigint      NOT NULL,
    last_serial  bigint      NOT NULL,
    sealed_rows  integer     NOT NULL,
    sealed_at    timestamptz NOT NULL,
    previous     bytea       NOT NULL,
    hash         bytea       NOT NULL CONSTRAINT seals_hash_key UNIQUE,
    content      bytea       NOT NULL,
    CONSTRAINT seals_block_positive CHECK (block > 0),
    CONSTRAINT seals_not_empty CHECK (last_serial >= first_serial),
    CONSTRAINT seals_hashes_are_sha256 CHECK (length(previous) = 32 AND length(hash) = 32)
);
ALTER TABLE seals ALTER COLUMN content SET STORAGE EXTERNAL; -- digests do not compress

CREATE TRIGGER seals_append_only BEFORE UPDATE OR DELETE ON seals FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER seals_no_truncate BEFORE TRUNCATE ON seals FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
-- A transfer says nothing without the names of its accounts, so these stay as they are too.
CREATE TRIGGER accounts_append_only BEFORE UPDATE OR DELETE ON accounts FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER accounts_no_truncate BEFORE TRUNCATE ON accounts FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

GRANT USAGE, SELECT ON SEQUENCE journal_serial TO tollgate_app;
GRANT SELECT, INSERT ON seals TO tollgate_app;

-- +goose Down
REVOKE ALL ON seals FROM tollgate_app;
REVOKE ALL ON SEQUENCE journal_serial FROM tollgate_app;
DROP TRIGGER accounts_no_truncate ON accounts;
DROP TRIGGER accounts_append_only ON accounts;
DROP TABLE seals;
ALTER TABLE transfers DROP COLUMN serial;
ALTER TABLE events DROP COLUMN serial;
DROP SEQUENCE journal_serial;
