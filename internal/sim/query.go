package sim

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	minute = 60
	hour   = 60 * minute
	day    = 24 * hour
	// maxSeconds keeps a time in nanoseconds within an int64 (until the year 2255).
	maxSeconds = 9_000_000_000
	// costsByKeySince is when costs by API key begin, 2025-12-06: the provider refuses to group an earlier time by key.
	costsByKeySince = 1_764_979_200
)

// Everything the simulator knows of the dimensions that its requests do not differ in.
const (
	onlyUser   = "user-sim"
	onlyTier   = "default"
	onlySource = "unlabeled"
)

// reportQuery is what a report is asked for. Times are Unix seconds; buckets begin at multiples of width, in UTC.
type reportQuery struct {
	start, end int64 // [start, end) of the whole report
	width      int64
	first      int64 // start of the first bucket of this page
	buckets    int   // of this page
	next       int64 // start of the next page's first bucket; 0: there is none
	groupBy    []string
	projects   []string
	keys       []string
	models     []string
	lineItems  []string
	nothing    bool // a filter that no request of the simulator can meet
}

// bucketLimit is the default and the greatest number of buckets on a page.
type bucketLimit struct{ usual, most int64 }

var (
	usageWidths = map[string]int64{"1m": minute, "1h": hour, "1d": day}
	usageLimits = map[int64]bucketLimit{minute: {60, 1440}, hour: {24, 168}, day: {7, 31}}
	costsWidths = map[string]int64{"1d": day}
	costsLimits = map[int64]bucketLimit{day: {7, 180}}

	usageGroups = []string{"project_id", "user_id", "api_key_id", "model", "batch", "service_tier", "api_source"}
	costsGroups = []string{"project_id", "user_id", "line_item", "api_key_id", "api_source"}
)

// list reads a repeated parameter in either of the forms in use, a=1&a=2 and a[]=1&a[]=2.
func list(values url.Values, name string) []string {
	return slices.Concat(values[name], values[name+"[]"])
}

func number(values url.Values, name string, absent, least, most int64) (int64, *apiError) {
	text := values.Get(name)
	if text == "" {
		return absent, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		return 0, badRequest("Invalid '"+name+"': expected an integer between "+strconv.FormatInt(least, 10)+" and "+
			strconv.FormatInt(most, 10)+".", name, "invalid_value")
	}
	return n, nil
}

func readQuery(
	r *http.Request, now time.Time, widths map[string]int64, limits map[int64]bucketLimit, groups []string,
) (reportQuery, *apiError) {
	values := r.URL.Query()
	var q reportQuery
	if !values.Has("start_time") {
		return q, missing("start_time")
	}
	width, known := widths[values.Get("bucket_width")]
	if !known {
		if values.Has("bucket_width") {
			return q, badRequest("Invalid 'bucket_width'.", "bucket_width", "invalid_value")
		}
		width = day
	}
	q.width = width
	var refused *apiError
	if q.start, refused = number(values, "start_time", 0, 0, maxSeconds); refused != nil {
		return q, refused
	}
	// Without an end the report reaches to the present second, that second included.
	if q.end, refused = number(values, "end_time", max(now.Unix(), q.start)+1, 0, maxSeconds); refused != nil {
		return q, refused
	}
	if q.end <= q.start {
		return q, badRequest("'end_time' must be after 'start_time'.", "end_time", "invalid_value")
	}
	limit, refused := number(values, "limit", limits[width].usual, 1, limits[width].most)
	if refused != nil {
		return q, refused
	}
	q.first = q.start - q.start%width
	if page := values.Get("page"); page != "" {
		if q.first, refused = q.readPage(page); refused != nil {
			return q, refused
		}
	}
	q.cut(limit)
	return q, q.readDimensions(values, groups)
}

func (q *reportQuery) cut(limit int64) {
	q.buckets = int(min(limit, (q.end-q.first+q.width-1)/q.width))
	if next := q.first + int64(q.buckets)*q.width; next < q.end {
		q.next = next
	}
}

func (q *reportQuery) readDimensions(values url.Values, groups []string) *apiError {
	q.groupBy = list(values, "group_by")
	for _, g := range q.groupBy {
		if !slices.Contains(groups, g) {
			return badRequest("Invalid 'group_by': '"+g+"' is not one of "+strings.Join(groups, ", ")+".", "group_by", "invalid_value")
		}
	}
	q.projects, q.keys = list(values, "project_ids"), list(values, "api_key_ids")
	q.models, q.lineItems = list(values, "models"), list(values, "line_items")
	if users := list(values, "user_ids"); len(users) > 0 && !slices.Contains(users, onlyUser) {
		q.nothing = true
	}
	if text := values.Get("batch"); text != "" {
		batch, err := strconv.ParseBool(text)
		if err != nil {
			return badRequest("Invalid 'batch': expected a boolean.", "batch", "invalid_value")
		}
		q.nothing = q.nothing || batch
	}
	return nil
}

const pageMark = "page_"

// pageToken names a page by the start of its first bucket.
func pageToken(first int64) string {
	return pageMark + base64.RawURLEncoding.EncodeToString(strconv.AppendInt(nil, first, 10))
}

func (q *reportQuery) readPage(token string) (int64, *apiError) {
	invalid := badRequest("Invalid 'page'.", "page", "invalid_value")
	text, marked := strings.CutPrefix(token, pageMark)
	if !marked {
		return 0, invalid
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return 0, invalid
	}
	first, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || first%q.width != 0 || first < q.start-q.start%q.width || first >= q.end {
		return 0, invalid
	}
	return first, nil
}

func (q *reportQuery) grouped(by string) bool { return slices.Contains(q.groupBy, by) }

// only gives the value of a dimension that all requests share, if it is grouped by; else null.
func only[T any](q *reportQuery, by string, value T) *T {
	if !q.grouped(by) {
		return nil
	}
	return &value
}
