package sim

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The envelope of all reports.
type reportPage struct {
	Object   string         `json:"object"`
	Data     []reportBucket `json:"data"`
	HasMore  bool           `json:"has_more"`
	NextPage *string        `json:"next_page"`
}

type reportBucket struct {
	Object    string `json:"object"`
	StartTime int64  `json:"start_time"`
	EndTime   int64  `json:"end_time"`
	Results   []any  `json:"results"`
}

// dimensionIDs are null unless the report is grouped by them.
type dimensionIDs struct {
	ProjectID *string `json:"project_id"`
	UserID    *string `json:"user_id"`
	APIKeyID  *string `json:"api_key_id"`
	APISource *string `json:"api_source"`
}

type embeddingsResult struct {
	Object           string `json:"object"`
	InputTokens      int64  `json:"input_tokens"`
	NumModelRequests int64  `json:"num_model_requests"`
	dimensionIDs
	Model *string `json:"model"`
}

// completionsResult counts cached tokens within input_tokens, as the provider does.
type completionsResult struct {
	Object                string `json:"object"`
	InputTokens           int64  `json:"input_tokens"`
	InputCachedTokens     int64  `json:"input_cached_tokens"`
	InputCacheWriteTokens int64  `json:"input_cache_write_tokens"`
	InputUncachedTokens   int64  `json:"input_uncached_tokens"`
	InputTextTokens       int64  `json:"input_text_tokens"`
	InputCachedTextTokens int64  `json:"input_cached_text_tokens"`
	InputAudioTokens      int64  `json:"input_audio_tokens"`
	InputImageTokens      int64  `json:"input_image_tokens"`
	OutputTokens          int64  `json:"output_tokens"`
	OutputTextTokens      int64  `json:"output_text_tokens"`
	OutputAudioTokens     int64  `json:"output_audio_tokens"`
	OutputImageTokens     int64  `json:"output_image_tokens"`
	NumModelRequests      int64  `json:"num_model_requests"`
	dimensionIDs
	Model       *string `json:"model"`
	Batch       *bool   `json:"batch"`
	ServiceTier *string `json:"service_tier"`
}

type costsResult struct {
	Object string `json:"object"`
	Amount struct {
		Value    json.Number `json:"value"`
		Currency string      `json:"currency"`
	} `json:"amount"`
	LineItem     *string `json:"line_item"`
	Quantity     *int64  `json:"quantity"`
	QuantityUnit *string `json:"quantity_unit"`
	dimensionIDs
	OrganizationID string `json:"organization_id"`
}

// group is one combination of the dimensions in which requests differ; those not grouped by are empty.
type group struct {
	project, key, model, lineItem string
}

func (g group) compare(h group) int {
	return cmp.Or(cmp.Compare(g.project, h.project), cmp.Compare(g.key, h.key), cmp.Compare(g.model, h.model),
		cmp.Compare(g.lineItem, h.lineItem))
}

type sums struct {
	input, cached, output, requests int64
	quantity, cost                  int64 // of line items
}

func (s *Server) serveCompletionsUsage(w http.ResponseWriter, r *http.Request) *apiError {
	return s.serveUsage(w, r, func(q *reportQuery, g group, t sums) any {
		return completionsResult{
			Object:      "organization.usage.completions.result",
			InputTokens: t.input, InputCachedTokens: t.cached, InputUncachedTokens: t.input - t.cached,
			InputTextTokens: t.input - t.cached, InputCachedTextTokens: t.cached,
			OutputTokens: t.output, OutputTextTokens: t.output, NumModelRequests: t.requests,
			dimensionIDs: q.ids(g), Model: only(q, "model", g.model), Batch: only(q, "batch", false),
			ServiceTier: only(q, "service_tier", onlyTier),
		}
	}, endpointChat, endpointCompletions, endpointResponses)
}

func (s *Server) serveEmbeddingsUsage(w http.ResponseWriter, r *http.Request) *apiError {
	return s.serveUsage(w, r, func(q *reportQuery, g group, t sums) any {
		return embeddingsResult{
			Object: "organization.usage.embeddings.result", InputTokens: t.input, NumModelRequests: t.requests,
			dimensionIDs: q.ids(g), Model: only(q, "model", g.model),
		}
	}, endpointEmbeddings)
}

func (s *Server) serveUsage(
	w http.ResponseWriter, r *http.Request, result func(*reportQuery, group, sums) any, does ...endpoint,
) *apiError {
	q, refused := readQuery(r, s.now(), usageWidths, usageLimits, usageGroups)
	if refused != nil {
		return refused
	}
	buckets := q.collect(s.books.view(), func(e *entry, g group, into map[group]sums) {
		if !slices.Contains(does, e.does) {
			return
		}
		t := into[g]
		t.input += int64(e.input)
		t.cached += int64(e.cached)
		t.output += int64(e.output)
		t.requests++
		into[g] = t
	})
	q.write(w, buckets, result)
	return nil
}

func (s *Server) serveCosts(w http.ResponseWriter, r *http.Request) *apiError {
	q, refused := readQuery(r, s.now(), costsWidths, costsLimits, costsGroups)
	if refused != nil {
		return refused
	}
	if q.grouped("api_key_id") && q.start < costsByKeySince {
		return badRequest("Grouping by 'api_key_id' is not available before 1764979200.", "group_by", "invalid_value")
	}
	byItem := q.grouped("line_item")
	buckets := q.collect(s.books.view(), func(e *entry, g group, into map[group]sums) {
		if e.does.manner().provider != openAI.provider {
			return // on another provider's bill
		}
		for _, item := range e.lineItems() {
			if item.tokens == 0 || len(q.lineItems) > 0 && !slices.Contains(q.lineItems, item.name(e)) {
				continue
			}
			g.lineItem = ""
			if byItem {
				g.lineItem = item.name(e)
			}
			t := into[g]
			t.quantity += item.tokens
			t.cost += item.tokens * item.price
			into[g] = t
		}
	})
	q.write(w, buckets, func(q *reportQuery, g group, t sums) any {
		c := costsResult{Object: "organization.costs.result", OrganizationID: organization, dimensionIDs: q.ids(g)}
		c.Amount.Value, c.Amount.Currency = dollars(t.cost), "usd"
		c.LineItem = only(q, "line_item", g.lineItem)
		c.Quantity = only(q, "line_item", t.quantity)
		c.QuantityUnit = only(q, "line_item", "tokens")
		return c
	})
	return nil
}

// lineItem is one line of a bill.
type lineItem struct {
	kind          string
	tokens, price int64 // nano-dollars a token
}

func (i lineItem) name(e *entry) string { return models[e.model].name + ", " + i.kind }

func (e *entry) lineItems() [3]lineItem {
	m := &models[e.model]
	return [...]lineItem{
		{"input_tokens", int64(e.input) - int64(e.cached), m.input},
		{"cached_input_tokens", int64(e.cached), m.cached},
		{"output_tokens", int64(e.output), m.output},
	}
}

// collect goes once over the books and hands every entry of this page that the filters let through to add, with its group
// and the sums of its bucket.
func (q *reportQuery) collect(v view, add func(e *entry, g group, into map[group]sums)) []map[group]sums {
	buckets := make([]map[group]sums, q.buckets)
	for i := range buckets {
		buckets[i] = map[group]sums{}
	}
	if q.nothing {
		return buckets
	}
	from := max(q.start, q.first) * int64(time.Second)
	to := min(q.end, q.first+int64(q.buckets)*q.width) * int64(time.Second)
	byProject, byKey, byModel := q.grouped("project_id"), q.grouped("api_key_id"), q.grouped("model")
	for _, block := range v.blocks {
		for i := range block {
			e := &block[i]
			if e.finished < from || e.finished >= to || !q.passes(v, e) {
				continue
			}
			var g group
			if byProject {
				g.project = v.names[e.project]
			}
			if byKey {
				g.key = v.names[e.key]
			}
			if byModel {
				g.model = models[e.model].name
			}
			add(e, g, buckets[(e.finished/int64(time.Second)-q.first)/q.width])
		}
	}
	return buckets
}

func (q *reportQuery) passes(v view, e *entry) bool {
	return (len(q.projects) == 0 || slices.Contains(q.projects, v.names[e.project])) &&
		(len(q.keys) == 0 || slices.Contains(q.keys, v.names[e.key])) &&
		(len(q.models) == 0 || slices.Contains(q.models, models[e.model].name))
}

func (q *reportQuery) ids(g group) dimensionIDs {
	return dimensionIDs{
		ProjectID: only(q, "project_id", g.project), UserID: only(q, "user_id", onlyUser),
		APIKeyID: only(q, "api_key_id", g.key), APISource: only(q, "api_source", onlySource),
	}
}

// write sends one page; empty buckets are part of it.
func (q *reportQuery) write(w http.ResponseWriter, buckets []map[group]sums, result func(*reportQuery, group, sums) any) {
	page := reportPage{Object: "page", Data: make([]reportBucket, len(buckets))}
	for i, groups := range buckets {
		start := q.first + int64(i)*q.width
		bucket := reportBucket{Object: "bucket", StartTime: start, EndTime: start + q.width, Results: []any{}}
		for _, g := range slices.SortedFunc(maps.Keys(groups), group.compare) {
			bucket.Results = append(bucket.Results, result(q, g, groups[g]))
		}
		page.Data[i] = bucket
	}
	if q.next != 0 {
		token := pageToken(q.next)
		page.HasMore, page.NextPage = true, &token
	}
	body, err := json.Marshal(page)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header()["Content-Type"] = jsonType
	send(w, http.StatusOK, append(body, '\n'))
}

// dollars writes nano-dollars as an exact decimal number of dollars, without needless zeros.
func dollars(nano int64) json.Number {
	digits := strconv.FormatInt(nano, 10)
	digits = strings.Repeat("0", max(0, 10-len(digits))) + digits
	point := len(digits) - 9
	return json.Number(strings.TrimSuffix(strings.TrimRight(digits[:point]+"."+digits[point:], "0"), "."))
}
