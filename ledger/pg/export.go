package pg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNoAccount is returned by Statement for an app that nothing was ever charged or granted to.
var ErrNoAccount = errors.New("the ledger has no account of this app")

// Statement is one month of one app, in dollars with nine decimals, exact: Closing = Opening + Grants - Spend - Adjustments.
type Statement struct {
	App         string `json:"app"`
	Month       string `json:"month"` // YYYY-MM, by UTC days
	Opening     string `json:"opening_usd"`
	Grants      string `json:"grants_usd"`
	Spend       string `json:"spend_usd"`
	Adjustments string `json:"adjustments_usd"`
	Closing     string `json:"closing_usd"`
}

// Statement reads the month that the instant lies in. It reads the schema finance only. Errors with ErrNoAccount.
func (s *Store) Statement(ctx context.Context, app string, month time.Time) (Statement, error) {
	const known = `SELECT EXISTS (SELECT FROM finance.accounts WHERE account = 'app:' || $1 || ':spend')`
	const query = `
SELECT opening_usd::text, grants_usd::text, spend_usd::text, adjustments_usd::text, closing_usd::text
FROM finance.statement($1, $2::date)`
	x := Statement{App: app, Month: month.UTC().Format("2006-01")}
	var exists bool
	if err := s.pool.QueryRow(ctx, known, clean(app)).Scan(&exists); err != nil {
		return x, fmt.Errorf("statement of app %q: %w", app, err)
	}
	if !exists {
		return x, fmt.Errorf("statement of app %q: %w", app, ErrNoAccount)
	}
	err := s.pool.QueryRow(ctx, query, clean(app), month.UTC()).Scan(&x.Opening, &x.Grants, &x.Spend, &x.Adjustments, &x.Closing)
	if err != nil {
		return x, fmt.Errorf("statement of app %q: %w", app, err)
	}
	return x, nil
}

// ExportKind is what an export has a row for.
type ExportKind string

// The kinds of exports.
const (
	ExportRequests  ExportKind = "requests"  // a request that has ended in the time
	ExportTransfers ExportKind = "transfers" // a transfer that counts for a day of the time
	ExportFOCUS     ExportKind = "focus"     // a day, app, provider, model and endpoint, with the columns of FOCUS 1.2
)

// utcText spells an instant as ISO 8601 does.
func utcText(column string) string {
	return `to_char(` + column + ` AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`
}

// exports have one query each: $1 and $2 are the first day and the day after the last, by UTC, $3 the app or ”. Every
// order is total, so the same ledger gives the same rows.
var exports = map[ExportKind]string{
	ExportRequests: `
SELECT request_id, ` + utcText("occurred_at") + ` AS occurred_at, ` + utcText("settled_at") + ` AS settled_at, state, app, api_key, end_user,
    plan, provider, model_requested, model, model_served, endpoint, attempt, streamed, input_tokens, cached_input_tokens, cache_write_tokens,
    input_audio_tokens, input_image_tokens, output_tokens, reasoning_tokens, output_audio_tokens, output_image_tokens, charged_tokens,
    reserved_usd, cost_usd, usage_state, finish, status, upstream_id, array_to_string(flags, ' ') AS flags, price_row, policy_revision,
    gateway, trace_id, input_video_tokens, cached_input_audio_tokens, cached_input_image_tokens, output_video_tokens, web_search_calls,
    file_search_calls, code_interpreter_calls, service_tier
FROM finance.requests
WHERE settled_at >= $1::timestamptz AND settled_at < $2::timestamptz AND ($3 = '' OR app = $3)
ORDER BY finance.requests.settled_at, request_id`,
	ExportTransfers: `
SELECT transfer_id, kind, debit_account, credit_account, amount_usd, request_id, event_id, price_row, components::text AS components,
    linked_transfer, ` + utcText("occurred_at") + ` AS occurred_at, utc_day, ` + utcText("recorded_at") + ` AS recorded_at
FROM finance.transfers
WHERE utc_day >= $1::timestamptz::date AND utc_day < $2::timestamptz::date
    AND ($3 = '' OR 'app:' || $3 || ':spend' IN (debit_account, credit_account))
ORDER BY utc_day, transfer_id`,
	ExportFOCUS: `
SELECT sum(cost_usd) AS "BilledCost", provider AS "BillingAccountId", provider AS "BillingAccountName", 'USD' AS "BillingCurrency",
    to_char(date_trunc('month', day) + interval '1 month', 'YYYY-MM-DD"T00:00:00Z"') AS "BillingPeriodEnd",
    to_char(date_trunc('month', day), 'YYYY-MM-DD"T00:00:00Z"') AS "BillingPeriodStart",
    'Usage' AS "ChargeCategory", NULL::text AS "ChargeClass", model || ' ' || endpoint AS "ChargeDescription",
    to_char(day + 1, 'YYYY-MM-DD"T00:00:00Z"') AS "ChargePeriodEnd", to_char(day, 'YYYY-MM-DD"T00:00:00Z"') AS "ChargePeriodStart",
    sum(charged_tokens) AS "ConsumedQuantity", 'Tokens' AS "ConsumedUnit", sum(cost_usd) AS "ContractedCost",
    sum(cost_usd) AS "EffectiveCost", provider AS "InvoiceIssuerName", sum(cost_usd) AS "ListCost",
    sum(charged_tokens) AS "PricingQuantity", 'Tokens' AS "PricingUnit", provider AS "ProviderName", provider AS "PublisherName",
    'AI and Machine Learning' AS "ServiceCategory", provider AS "ServiceName", model AS "SkuId", app AS "SubAccountId",
    app AS "SubAccountName", json_build_object('app', app, 'endpoint', endpoint, 'model', model)::text AS "Tags",
    sum(requests) AS "x_Requests", sum(unconfirmed_usd) AS "x_UnconfirmedCost"
FROM finance.spend_daily
WHERE day >= $1::timestamptz::date AND day < $2::timestamptz::date AND ($3 = '' OR app = $3)
GROUP BY day, app, provider, model, endpoint
ORDER BY day, app COLLATE "C", provider COLLATE "C", model COLLATE "C", endpoint COLLATE "C"`,
}

// Export hands the header and then every row of [from, to), whole UTC days, to write; app "" is all of them. The slice is
// reused. Amounts are exact decimals. Text of others that a spreadsheet would take for a formula begins with an apostrophe.
// It reads the schema finance only, as of one instant, and row by row: memory does not grow. It ends at an error of write.
func (s *Store) Export(ctx context.Context, kind ExportKind, from, to time.Time, app string, write func(row []string) error) error {
	query, ok := exports[kind]
	if !ok {
		return fmt.Errorf("export: unknown kind %q", kind)
	}
	// In text, as Postgres spells it: exact for every numeric, and independent of what Go would make of a type.
	rows, err := s.pool.Query(ctx, query, pgx.QueryResultFormats{pgx.TextFormatCode}, from.UTC(), to.UTC(), clean(app))
	if err != nil {
		return fmt.Errorf("export %s: %w", kind, err)
	}
	defer rows.Close()
	row := make([]string, len(rows.FieldDescriptions()))
	isText := make([]bool, len(row))
	for i, f := range rows.FieldDescriptions() {
		row[i], isText[i] = f.Name, f.DataTypeOID == 25 // text
	}
	if err := write(row); err != nil {
		return fmt.Errorf("export %s: %w", kind, err)
	}
	for rows.Next() {
		for i, value := range rows.RawValues() {
			row[i] = string(value)
			if isText[i] {
				row[i] = noFormula(row[i])
			}
		}
		if err := write(row); err != nil {
			return fmt.Errorf("export %s: %w", kind, err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("export %s: %w", kind, err)
	}
	return nil
}

// noFormula keeps spreadsheets from calculating what a caller named a user or a model.
func noFormula(cell string) string {
	if cell != "" && strings.ContainsRune("=+-@\t\r\n", rune(cell[0])) {
		return "'" + cell
	}
	return cell
}
