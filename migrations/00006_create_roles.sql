-- +goose Up

-- Roles belong to the whole cluster: another database may have made them already, or be making them now. They cannot log
-- in; a login is granted one of them.
-- +goose StatementBegin
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['tollgate_app', 'finance', 'grafana'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL; -- made by another database in between
            END;
        END IF;
    END LOOP;
END $$;
-- +goose StatementEnd

GRANT USAGE ON SCHEMA finance TO finance, grafana, tollgate_app;
GRANT SELECT ON ALL TABLES IN SCHEMA finance TO finance, grafana, tollgate_app;
GRANT EXECUTE ON FUNCTION finance.statement(text, date) TO finance, grafana, tollgate_app;

-- The services insert and read; they change projections, never the journal, and delete nothing.
GRANT USAGE ON SCHEMA public TO tollgate_app;
GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA public TO tollgate_app;
GRANT UPDATE ON reservations, budgets, producers, apps, api_keys, reconciliation_runs, reconciliation_breaks TO tollgate_app;
GRANT EXECUTE ON FUNCTION ensure_partitions(date, date) TO tollgate_app;

-- +goose Down
REVOKE ALL ON FUNCTION ensure_partitions(date, date) FROM tollgate_app;
REVOKE ALL ON ALL TABLES IN SCHEMA public FROM tollgate_app;
REVOKE ALL ON SCHEMA public FROM tollgate_app;
REVOKE ALL ON FUNCTION finance.statement(text, date) FROM finance, grafana, tollgate_app;
REVOKE ALL ON ALL TABLES IN SCHEMA finance FROM finance, grafana, tollgate_app;
REVOKE ALL ON SCHEMA finance FROM finance, grafana, tollgate_app;
