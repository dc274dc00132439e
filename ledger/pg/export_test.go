package pg_test

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
)

// exported reads an export back, a map per row.
func exported(t *testing.T, store *pg.Store, kind pg.ExportKind, app string) []map[string]string {
	t.Helper()
	var file [2]bytes.Buffer
	day := start.Truncate(24 * time.Hour)
	for i := range file {
		w := csv.NewWriter(&file[i])
		w.UseCRLF = true
		require.NoError(t, store.Export(t.Context(), kind, day, day.AddDate(0, 0, 1), app, w.Write))
		w.Flush()
	}
	require.Equal(t, file[0].String(), file[1].String())
	all, err := csv.NewReader(&file[0]).ReadAll()
	require.NoError(t, err)
	rows := make([]map[string]string, 0, len(all))
	for _, cells := range all[1:] {
		row := map[string]string{}
		for i, cell := range cells {
			row[all[0][i]] = cell
		}
		rows = append(rows, row)
	}
	return rows
}

// sum adds a column up, exactly.
func sum(t *testing.T, rows []map[string]string, column string) string {
	t.Helper()
	total := new(big.Rat)
	for _, row := range rows {
		value, ok := new(big.Rat).SetString(row[column])
		require.True(t, ok, "%s: %q", column, row[column])
		total.Add(total, value)
	}
	return total.FloatString(9)
}

func TestExport(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	store := openAt(t, url)
	users := []string{"=1+1", "+1", "-1", "@a", "\tx", `say "hi", ok`, "two\nlines", "plain", "ö,ü"}
	var total ledger.NanoUSD
	for i, user := range users {
		r := reservation([]string{"checkout", "search"}[i%2], int64(i), start)
		r.User = user
		used := newEvent(event.KindUsed, []string{"checkout", "search"}[i%2], r, uint64(i+1))
		used.Outcome.Cost = ledger.NanoUSD(9_007_199_254_740_993 + i) // no float holds it
		used.Outcome.Components[0].Cost = used.Outcome.Cost
		total += used.Outcome.Cost
		mustPost(t, store, used)
	}
	other := reservation("checkout", 99, start.AddDate(0, 0, 1)) // of the day after
	mustPost(t, store, newEvent(event.KindUsed, "checkout", other, 100))
	want := new(big.Rat).SetFrac64(int64(total), 1_000_000_000).FloatString(9)

	requests := exported(t, store, pg.ExportRequests, "")
	require.Equal(t, want, sum(t, requests, "cost_usd"))
	var found []string
	for _, row := range requests {
		found = append(found, row["end_user"])
	}
	slices.Sort(found)
	require.Equal(t, []string{"'\tx", "'+1", "'-1", "'=1+1", "'@a", "plain", `say "hi", ok`, "two\nlines", "ö,ü"}, found)
	require.Equal(t, want, sum(t, exported(t, store, pg.ExportTransfers, ""), "amount_usd"))
	require.Len(t, exported(t, store, pg.ExportRequests, "search"), 4)
	require.Len(t, exported(t, store, pg.ExportTransfers, "search"), 4)

	focus := exported(t, store, pg.ExportFOCUS, "")
	require.Len(t, focus, 2)
	for _, column := range []string{"BilledCost", "ContractedCost", "EffectiveCost", "ListCost"} {
		require.Equal(t, want, sum(t, focus, column))
	}
	require.Equal(t, "2026-11-29T00:00:00Z 2026-11-30T00:00:00Z 2026-11-01T00:00:00Z 2026-12-01T00:00:00Z", fmt.Sprint(
		focus[0]["ChargePeriodStart"], " ", focus[0]["ChargePeriodEnd"], " ", focus[0]["BillingPeriodStart"], " ", focus[0]["BillingPeriodEnd"]))
	require.Equal(t, "checkout USD Usage Tokens 5", fmt.Sprint(
		focus[0]["SubAccountId"], " ", focus[0]["BillingCurrency"], " ", focus[0]["ChargeCategory"], " ", focus[0]["PricingUnit"], " ", focus[0]["x_Requests"]))
}

// TestFinanceRoleReadsExports does what a person with the role finance does.
func TestFinanceRoleReadsExports(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	mustPost(t, openAt(t, url), newEvent(event.KindUsed, "checkout", reservation("checkout", 2, start), 1))
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	query := config.ConnString() + "&options=-c%20role%3Dfinance"
	store := openAt(t, query)
	for _, kind := range []pg.ExportKind{pg.ExportRequests, pg.ExportTransfers, pg.ExportFOCUS} {
		require.Len(t, exported(t, store, kind, "checkout"), 1)
	}
	statement, err := store.Statement(t.Context(), "checkout", start)
	require.NoError(t, err)
	require.Equal(t, pg.Statement{
		App: "checkout", Month: "2026-11", Opening: "0.000000000", Grants: "0.000000000", Spend: "0.000000501", Adjustments: "0.000000000", Closing: "-0.000000501",
	}, statement)
	_, err = store.Statement(t.Context(), "chekcout", start)
	require.ErrorIs(t, err, pg.ErrNoAccount)
	_, err = store.Apps(t.Context())
	require.ErrorContains(t, err, "permission denied", "the connection has no more rights than the role")
}
