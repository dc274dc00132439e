package sim

import (
	"encoding/json"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/stretchr/testify/require"
)

// serveHandler serves a simulator that a test has filled itself.
func serveHandler(t *testing.T, s *Server) (*Server, string) {
	t.Helper()
	server := httptest.NewServer(s.Handler())
	t.Cleanup(server.Close)
	return s, server.URL
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// ledgerOfThreeDays has two keys, two projects and two models: day by day 1, 2 and 3 requests of 100 input (40 of them
// cached) and 10 output tokens on gpt-4o, and one embedding of 1,000 tokens at each midnight.
func ledgerOfThreeDays(t *testing.T) (*Server, string) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.AdminKey = "admin"
	cfg.Now = func() time.Time { return noon.AddDate(0, 0, 3) }
	s := New(cfg)
	for day := range 3 {
		at := noon.AddDate(0, 0, day)
		for i := range day + 1 {
			at := at.Add(time.Duration(i) * time.Hour)
			s.books.add(bill{
				received: at, finished: at, keyID: "key_" + strconv.Itoa(i%2), project: "proj_" + strconv.Itoa(i%2),
				model: modelIndex["gpt-4o"], does: endpointChat, usage: usage{input: 100, cached: 40, output: 10, reasoning: 3},
			})
		}
		s.books.add(bill{
			received: at, finished: at.Truncate(24 * time.Hour), keyID: "key_0", project: "proj_0",
			model: modelIndex["text-embedding-3-small"], does: endpointEmbeddings, usage: usage{input: 1000},
		})
	}
	return serveHandler(t, s)
}

func TestUsageReport(t *testing.T) {
	t.Parallel()
	_, url := ledgerOfThreeDays(t)
	client := sdk(t, url, "sk-a")
	start := noon.Truncate(24 * time.Hour)
	usage := client.Admin.Organization.Usage
	params := openai.AdminOrganizationUsageCompletionsParams{StartTime: start.Unix()}
	page, err := usage.Completions(t.Context(), params)
	require.NoError(t, err)
	require.Len(t, page.Data, 4, "to the present, empty days included")
	require.False(t, page.HasMore)
	require.True(t, page.JSON.NextPage.Raw() == "null")
	require.Empty(t, page.Data[3].Results)
	for day, bucket := range page.Data[:3] {
		require.Equal(t, start.AddDate(0, 0, day).Unix(), bucket.StartTime)
		require.Equal(t, start.AddDate(0, 0, day+1).Unix(), bucket.EndTime)
		require.Len(t, bucket.Results, 1)
		r := bucket.Results[0].AsOrganizationUsageCompletionsResult()
		n := int64(day + 1)
		require.Equal(t, []int64{100 * n, 40 * n, 60 * n, 10 * n, n},
			[]int64{r.InputTokens, r.InputCachedTokens, r.InputUncachedTokens, r.OutputTokens, r.NumModelRequests})
		for _, id := range []string{
			r.JSON.ProjectID.Raw(), r.JSON.APIKeyID.Raw(), r.JSON.Model.Raw(), r.JSON.UserID.Raw(), r.JSON.Batch.Raw(),
		} {
			require.Equal(t, "null", id, "ids are null unless grouped")
		}
	}

	params.GroupBy = []string{"api_key_id", "project_id", "model", "batch", "service_tier", "user_id"}
	page, err = usage.Completions(t.Context(), params)
	require.NoError(t, err)
	require.Len(t, page.Data[2].Results, 2)
	r := page.Data[2].Results[0].AsOrganizationUsageCompletionsResult()
	require.Equal(t, []string{"key_0", "proj_0", "gpt-4o-2024-08-06", "default", "user-sim"},
		[]string{r.APIKeyID, r.ProjectID, r.Model, r.ServiceTier, r.UserID})
	require.Equal(t, "false", r.JSON.Batch.Raw())
	require.EqualValues(t, 2, r.NumModelRequests)

	embeddings, err := usage.Embeddings(t.Context(), openai.AdminOrganizationUsageEmbeddingsParams{
		StartTime: start.Unix(), EndTime: openai.Int(start.AddDate(0, 0, 1).Unix()),
	})
	require.NoError(t, err)
	require.Len(t, embeddings.Data, 1)
	require.EqualValues(t, 1000, embeddings.Data[0].Results[0].InputTokens, "midnight belongs to the day it begins")
}

func TestUsagePaging(t *testing.T) {
	t.Parallel()
	_, url := ledgerOfThreeDays(t)
	usage := sdk(t, url, "sk-a").Admin.Organization.Usage
	for width, count := range map[string]int{"1h": 49, "1d": 3} {
		params := openai.AdminOrganizationUsageCompletionsParams{
			StartTime: noon.Unix(), EndTime: openai.Int(noon.AddDate(0, 0, 2).Add(time.Minute).Unix()), Limit: openai.Int(2),
			BucketWidth: openai.AdminOrganizationUsageCompletionsParamsBucketWidth(width),
		}
		requests, buckets, last := int64(0), 0, int64(0)
		for {
			page, err := usage.Completions(t.Context(), params)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page.Data), 2)
			for _, b := range page.Data {
				require.True(t, last == 0 || b.StartTime == last, "buckets meet without gap or overlap")
				last = b.EndTime
				buckets++
				for _, r := range b.Results {
					requests += r.NumModelRequests
				}
			}
			if !page.HasMore {
				break
			}
			params.Page = openai.String(page.NextPage)
		}
		require.Equal(t, count, buckets, width)
		require.EqualValues(t, 4, requests, "the last day's later requests are beyond the end")
	}
}

func TestUsageFilters(t *testing.T) {
	t.Parallel()
	_, url := ledgerOfThreeDays(t)
	base := url + "/v1/organization/usage/completions?start_time=" + strconv.FormatInt(noon.Unix()-1, 10)
	for filter, want := range map[string]int64{
		"": 6, "&project_ids=proj_1": 2, "&api_key_ids[]=key_0&api_key_ids[]=key_1": 6, "&models=gpt-4o-2024-08-06": 6,
		"&models=gpt-4o-mini": 0, "&batch=true": 0, "&batch=false": 6, "&user_ids=someone": 0, "&user_ids=user-sim": 6,
		"&api_key_ids=key_0&project_ids=proj_1": 0, "&bucket_width=1m&limit=1": 1,
	} {
		page := decode[openai.AdminOrganizationUsageCompletionsResponse](t,
			text(t, do(t, "GET", base+filter, "", "Authorization", "Bearer admin")))
		requests := int64(0)
		for _, b := range page.Data {
			for _, r := range b.Results {
				requests += r.NumModelRequests
			}
		}
		if strings.Contains(filter, "1m") {
			want = 0 // the minute before noon
		}
		require.Equal(t, want, requests, filter)
	}
}

func TestCostsReport(t *testing.T) {
	t.Parallel()
	s, url := ledgerOfThreeDays(t)
	base := url + "/v1/organization/costs?start_time=" + strconv.FormatInt(noon.Truncate(24*time.Hour).Unix(), 10)
	type result struct {
		Amount struct {
			Value    json.Number
			Currency string
		}
		LineItem     *string `json:"line_item"`
		ProjectID    *string `json:"project_id"`
		APIKeyID     *string `json:"api_key_id"`
		Quantity     *json.Number
		QuantityUnit *string `json:"quantity_unit"`
	}
	type page struct {
		Data []struct{ Results []result }
	}
	fetch := func(query string) page {
		return decode[page](t, text(t, do(t, "GET", base+query, "", "Authorization", "Bearer admin")))
	}
	// A request: 60 at 2,500 + 40 at 1,250 + 10 at 10,000 nano-dollars; an embedding: 1,000 at 20.
	days := fetch("").Data
	require.Len(t, days, 4)
	for day, want := range []json.Number{"0.00032", "0.00062", "0.00092"} {
		require.Len(t, days[day].Results, 1)
		require.Equal(t, want, days[day].Results[0].Amount.Value)
		require.Equal(t, "usd", days[day].Results[0].Amount.Currency)
		require.Nil(t, days[day].Results[0].LineItem)
		require.Nil(t, days[day].Results[0].Quantity)
	}
	require.EqualValues(t, 1_860_000, s.Totals().CostNanoUSD)

	lines := fetch("&group_by=line_item&group_by=project_id&limit=1").Data[0].Results
	require.Len(t, lines, 4)
	got := map[string]string{}
	for _, l := range lines {
		require.Equal(t, "proj_0", *l.ProjectID)
		require.Nil(t, l.APIKeyID)
		require.Equal(t, "tokens", *l.QuantityUnit)
		got[*l.LineItem] = l.Quantity.String() + " " + l.Amount.Value.String()
	}
	require.Equal(t, map[string]string{
		"gpt-4o-2024-08-06, input_tokens": "60 0.00015", "gpt-4o-2024-08-06, cached_input_tokens": "40 0.00005",
		"gpt-4o-2024-08-06, output_tokens": "10 0.0001", "text-embedding-3-small, input_tokens": "1000 0.00002",
	}, got)

	byKey := fetch("&group_by[]=api_key_id").Data[1].Results
	require.Len(t, byKey, 2)
	require.Equal(t, "key_1", *byKey[1].APIKeyID)
	require.Equal(t, json.Number("0.0003"), byKey[1].Amount.Value)
	filtered := fetch("&line_items=text-embedding-3-small%2C+input_tokens&api_key_ids=key_0").Data[0].Results
	require.Equal(t, json.Number("0.00002"), filtered[0].Amount.Value)
}

func TestReportsRefuse(t *testing.T) {
	t.Parallel()
	_, url := ledgerOfThreeDays(t)
	usage, costs := "/v1/organization/usage/completions", "/v1/organization/costs"
	for path, param := range map[string]string{
		usage: "start_time", usage + "?start_time=x": "start_time", usage + "?start_time=5&end_time=5": "end_time",
		usage + "?start_time=5&bucket_width=1w":     "bucket_width",
		usage + "?start_time=5&limit=32":            "limit",
		usage + "?start_time=5&group_by=line_item":  "group_by",
		usage + "?start_time=5&page=page_x":         "page",
		usage + "?start_time=5&batch=perhaps":       "batch",
		usage + "?start_time=99999999&page=page_MA": "page", // page_MA is the bucket at 0
		costs + "?start_time=5&bucket_width=1h":     "bucket_width",
		costs + "?start_time=5&limit=181":           "limit",
		costs + "?start_time=5&group_by=model":      "group_by",
		costs + "?start_time=5&group_by=api_key_id": "group_by",
	} {
		answer := do(t, "GET", url+path, "", "Authorization", "Bearer admin")
		require.Equal(t, 400, answer.StatusCode, path)
		require.Contains(t, text(t, answer), `"param": "`+param+`"`, path)
	}
	require.Equal(t, 401, do(t, "GET", url+usage+"?start_time=5", "", "Authorization", "Bearer sk-a").StatusCode)
}

func TestDollars(t *testing.T) {
	t.Parallel()
	for nano, want := range map[int64]json.Number{
		0: "0", 1: "0.000000001", 150_000: "0.00015", 1_000_000_000: "1", 12_000_000_010: "12.00000001",
		9_223_372_036_854_775_807: "9223372036.854775807",
	} {
		require.Equal(t, want, dollars(nano))
	}
}
