package gateway

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/policy"
	"tollgate/ledger/price"
)

// Prices that are published come into force below the policy's own, also where the gateway follows no pushed policy; what makes no
// book changes nothing.
func TestPublishedPricesAreFollowed(t *testing.T) {
	t.Parallel()
	w := begin(t, plain)
	w.run(roomy)
	bucket, err := PolicyBucket(t.Context(), w.js)
	require.NoError(t, err)
	at := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	publish := func(row price.Row) {
		text, err := (&price.Sheet{Rows: []price.Row{row}}).Encode()
		require.NoError(t, err)
		_, err = bucket.Put(t.Context(), policy.PricesKey, text)
		require.NoError(t, err)
	}
	row := price.Row{
		Provider: "groq", Model: "new", Match: price.Match{Equals: "new"}, From: at,
		Prices: price.Prices{ledger.ClassInput: price.Flat(7), ledger.ClassOutput: price.Flat(9)},
	}
	for _, input := range []ledger.NanoUSD{7, 8} {
		row.Prices[ledger.ClassInput] = price.Flat(input)
		publish(row)
		stack.Eventually(t, func() error {
			if found, ok := w.gateway.admission.Prices().Find("groq", "new", at); !ok || found.Prices[ledger.ClassInput].Base != input {
				return fmt.Errorf("%v is in force", found)
			}
			return nil
		})
		_, before := w.gateway.admission.Prices().Find("groq", "new", at.Add(-1))
		require.False(t, before, "a change begins at its from")
		_, err := bucket.PutString(t.Context(), policy.PricesKey, `{"format":"?"}`)
		require.NoError(t, err)
	}
	require.NoError(t, w.gateway.setPolicy(w.rules(roomy)))
	_, still := w.gateway.admission.Prices().Find("groq", "new", at)
	require.True(t, still, "another policy leaves what is published")
}
