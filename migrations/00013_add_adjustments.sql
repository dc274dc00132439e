-- +goose Up

-- How often what a request was charged was corrected: the number of the adjustment that its row tells of, 0 for none. What it was
-- charged, and by which price row, is what the last adjustment says.
ALTER TABLE reservations
    ADD COLUMN adjustments integer NOT NULL DEFAULT 0
        CONSTRAINT reservations_adjusted_when_settled CHECK (adjustments = 0 OR adjustments > 0 AND state = 'settled');

CREATE VIEW finance.adjustments AS
SELECT
    t.event_id || '/' || t.kind AS transfer_id,
    t.reservation_id AS request_id,
    r.app AS app,
    r.api_key AS api_key,
    r.end_user AS end_user,
    r.provider AS provider,
    r.model AS model,
    r.endpoint AS endpoint,
    (CASE WHEN d.kind = 'spend' THEN t.amount_nanousd ELSE -t.amount_nanousd END::numeric / 1000000000)::numeric(30,9) AS difference_usd,
    t.price_row AS price_row,
    t.components AS components,
    t.linked_transfer AS linked_transfer,
    t.occurred_at AS occurred_at,
    t.utc_day AS utc_day,
    t.recorded_at AS recorded_at,
    t.day AS day
FROM transfers t
LEFT JOIN accounts d ON d.account_id = t.debit_account_id
LEFT JOIN reservations r ON r.reservation_id = t.reservation_id AND r.day = t.day
WHERE t.kind = 'adjust';

COMMENT ON VIEW finance.adjustments IS 'Corrections of what requests were charged; finance.requests shows the corrected cost.';
COMMENT ON COLUMN finance.adjustments.transfer_id IS 'Unique for ever';
COMMENT ON COLUMN finance.adjustments.request_id IS 'Request whose charge it corrects';
COMMENT ON COLUMN finance.adjustments.app IS 'App that was charged';
COMMENT ON COLUMN finance.adjustments.api_key IS 'Key id';
COMMENT ON COLUMN finance.adjustments.end_user IS 'End user named by the caller, or empty';
COMMENT ON COLUMN finance.adjustments.provider IS 'Provider of the policy file';
COMMENT ON COLUMN finance.adjustments.model IS 'Model asked of the provider';
COMMENT ON COLUMN finance.adjustments.endpoint IS 'Route';
COMMENT ON COLUMN finance.adjustments.difference_usd IS 'Dollars that the request costs more by it; negative for less';
COMMENT ON COLUMN finance.adjustments.price_row IS 'Price row of the corrected cost';
COMMENT ON COLUMN finance.adjustments.components IS 'Raw token classes with price and corrected cost';
COMMENT ON COLUMN finance.adjustments.linked_transfer IS 'Transfer that it corrects: the settlement, or the adjustment before';
COMMENT ON COLUMN finance.adjustments.occurred_at IS 'When the request was used';
COMMENT ON COLUMN finance.adjustments.utc_day IS 'UTC day that it counts for: that of the use';
COMMENT ON COLUMN finance.adjustments.recorded_at IS 'When it was posted';
COMMENT ON COLUMN finance.adjustments.day IS 'UTC day inside the id; a condition on it prunes partitions';
COMMENT ON COLUMN finance.transfers.linked_transfer IS 'Transfer that this one takes back or corrects';
COMMENT ON COLUMN finance.transfers.occurred_at IS 'When it happened; a correction or adjustment carries the time of what it corrects';
COMMENT ON COLUMN finance.requests.cost_usd IS 'Dollars that the budgets carry for the request: actual, with its adjustments, or the estimate when usage_state is unconfirmed';
COMMENT ON COLUMN finance.requests.price_row IS 'Price row that the cost was computed from, by the last adjustment if there is one';
GRANT SELECT ON finance.adjustments TO finance, grafana, tollgate_app;

-- +goose Down
DROP VIEW finance.adjustments;
ALTER TABLE reservations DROP COLUMN adjustments;
COMMENT ON COLUMN finance.transfers.linked_transfer IS 'Transfer that this one takes back';
COMMENT ON COLUMN finance.transfers.occurred_at IS 'When it happened; a correction carries the time of what it corrects';
COMMENT ON COLUMN finance.requests.cost_usd IS 'Dollars that the budgets carry for the request: actual, or the estimate when usage_state is unconfirmed';
COMMENT ON COLUMN finance.requests.price_row IS 'Price row that the cost was computed from';
