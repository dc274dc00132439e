-- +goose Up

-- How far this database is known to hold the stream: everything up to sequence of the stream that was made at the instant. It is
-- in every copy of the database, so a copy that is restored says itself from where it must be filled up. mark rises with each
-- note; the highest one is also kept beside the stream, where a database with a lower one is known to be an older copy.
CREATE TABLE ledger_position (
    only_row boolean     CONSTRAINT ledger_position_pkey PRIMARY KEY DEFAULT true,
    mark     bigint      NOT NULL,
    stream   timestamptz,
    sequence bigint      NOT NULL,
    noted_at timestamptz NOT NULL,
    CONSTRAINT ledger_position_one_row CHECK (only_row),
    CONSTRAINT ledger_position_sequence_not_negative CHECK (sequence >= 0)
);
INSERT INTO ledger_position (mark, sequence, noted_at) VALUES (0, 0, now());
GRANT SELECT, UPDATE ON ledger_position TO tollgate_app;

-- +goose Down
DROP TABLE ledger_position;
