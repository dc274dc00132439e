package gateway

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
	"tollgate/ledger/event"
)

func answering(contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, body)
	}
}

// What another model used for an answer costs what that model costs, and a cost that the provider tells is kept, compared, and
// decides nothing (LiteLLM PR #39294).
func TestOtherModelsAndToldCost(t *testing.T) {
	t.Parallel()
	const body = `{"id":"resp_1","model":"gpt-4o-mini","status":"completed","output":[{"type":"image_generation_call","result":"AA"}],
		"tools":[{"type":"image_generation","model":"gpt-image-1"}],
		"tool_usage":{"image_gen":{"input_tokens":50,"output_tokens":272,"total_tokens":322}},
		"usage":{"input_tokens":12,"output_tokens":5,"total_tokens":17,"cost_in_usd_ticks":20000}}`
	w := begin(t, answering("application/json", body)).run(roomy)
	a := w.send(http.MethodPost, "/v1/responses", `{"model":"gpt-4o-mini","input":"Draw a cat."}`)
	require.Equal(t, body, a.body)
	o := w.outcome()
	drawn := ledger.Usage{Input: 50, OutputImage: 272}
	require.Equal(t, ledger.Usage{Input: 12, Output: 5}, o.Usage)
	require.Equal(t, []ledger.ModelUsage{{Model: "gpt-image-1", Usage: drawn}}, o.Others)
	require.EqualValues(t, 17, o.Spent().Tokens)
	require.EqualValues(t, 12*150+5*600+50*5000+272*40000, o.Cost)
	require.Len(t, o.Components, 4)
	for _, c := range o.Components[2:] {
		require.Equal(t, "gpt-image-1", c.Model)
		require.Contains(t, c.PriceRow, "gpt-image-1")
	}
	require.EqualValues(t, 2000, *o.ProviderCost)
	require.Contains(t, w.events(2)[event.KindUsed][0].Reservation.Flags, event.FlagCostDiffers)
}

// A stream that nobody asked for passes and is metered as one.
func TestAnswerThatIsStreamedUnasked(t *testing.T) {
	t.Parallel()
	const body = "data: {\"model\":\"gpt-4o-mini\",\"choices\":[{\"delta\":{\"content\":\"Hello.\"}}]}\n\n" +
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":5}}\n\ndata: [DONE]\n\n"
	w := begin(t, answering("text/event-stream;", body)).run(roomy)
	require.Equal(t, body, w.chat("").body, "nothing is withheld from it")
	o := w.outcome()
	require.Equal(t, ledger.Usage{Input: 12, Output: 5}, o.Usage)
	require.Equal(t, ledger.UsageReported, o.UsageState)
}

// An error that comes with status 200 is not charged like an answer: nobody says what it used, but nothing was made.
func TestErrorWithStatus200(t *testing.T) {
	t.Parallel()
	const body = `{"error":{"message":"Provider returned error","code":502}}`
	w := begin(t, answering("application/json", body)).run(roomy)
	require.Equal(t, body, w.chat("").body)
	o := w.outcome()
	require.Equal(t, []any{ledger.UsageEstimated, ledger.ReasonUpstreamFailed, ledger.Tokens(0)}, []any{o.UsageState, o.Finish, o.Usage.Output})
	require.Positive(t, o.Usage.Input)
}
