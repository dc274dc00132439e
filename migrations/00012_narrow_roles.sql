-- +goose Up

-- The services reach partitions through their parents, and only read which migrations were applied. "All tables" had given them
-- both directly, for the partitions that were there at the time.
-- +goose StatementBegin
DO $$
DECLARE
    part regclass;
BEGIN
    FOR part IN SELECT inhrelid::regclass FROM pg_inherits
        WHERE inhparent IN ('events'::regclass, 'transfers'::regclass, 'reservations'::regclass)
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM tollgate_app', part);
    END LOOP;
END $$;
-- +goose StatementEnd
REVOKE INSERT ON goose_db_version FROM tollgate_app;
REVOKE ALL ON FUNCTION refuse_change() FROM PUBLIC;

-- +goose Down
GRANT EXECUTE ON FUNCTION refuse_change() TO PUBLIC;
GRANT INSERT ON goose_db_version TO tollgate_app;
