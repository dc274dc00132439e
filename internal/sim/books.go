package sim

import (
	"sync"
	"time"
)

// endpoint is what a request was about.
type endpoint uint8

const (
	endpointChat endpoint = iota
	endpointCompletions
	endpointEmbeddings
	endpointMessages
	endpointResponses
	endpointGenerate // content of Gemini's
	endpointEmbed    // embeddings of Gemini's
	endpointImages
)

func (e endpoint) String() string {
	return [...]string{
		"chat/completions", "completions", "embeddings", "messages", "responses", "generateContent", "embedContent", "images/generations",
	}[e]
}

// Outcome is how an answer ended.
type Outcome string

// The outcomes of a billed request.
const (
	OutcomeComplete   Outcome = "complete"
	OutcomeClientLeft Outcome = "client_left" // the caller closed its connection before the end
	OutcomeCut        Outcome = "cut"         // the simulator closed the connection, because it was told to
	OutcomeFailed     Outcome = "failed"      // the simulator ended the stream with an error, because it was told to
)

var outcomes = [...]Outcome{OutcomeComplete, OutcomeClientLeft, OutcomeCut, OutcomeFailed}

const (
	complete uint8 = iota
	clientLeft
	cut
	failed
)

// Record is one billed request. What Anthropic counts beside its input is in InputTokens here, as OpenAI counts it.
type Record struct {
	Number          uint64    `json:"number"` // counts from 1, in the order of billing
	ID              string    `json:"id"`     // of the answer; empty where answers have none
	ReceivedAt      time.Time `json:"received_at"`
	FinishedAt      time.Time `json:"finished_at"`
	APIKeyID        string    `json:"api_key_id"`
	ProjectID       string    `json:"project_id"`
	Model           string    `json:"model"`         // dated name
	Endpoint        string    `json:"endpoint"`      // chat/completions, completions, embeddings, messages, …
	InputTokens     int64     `json:"input_tokens"`  // all of it
	CachedTokens    int64     `json:"cached_tokens"` // part of the input: read from a cache
	CacheWrite5m    int64     `json:"cache_write_5m_tokens"`
	CacheWrite1h    int64     `json:"cache_write_1h_tokens"` // parts of the input: written to a cache
	OutputTokens    int64     `json:"output_tokens"`         // reasoning included
	ReasoningTokens int64     `json:"reasoning_tokens"`
	CostNanoUSD     int64     `json:"cost_nanousd,string"` // exact, in billionths of a dollar
	Outcome         Outcome   `json:"outcome"`
	ClientLeft      bool      `json:"client_left"`
	// TollgateRequestID and ClientRequestID are the headers X-Tollgate-Request-Id and X-Client-Request-Id that came with the
	// request, each cut at 255 bytes.
	TollgateRequestID string `json:"tollgate_request_id"`
	ClientRequestID   string `json:"client_request_id"`
}

// Totals are the sums over all records. Calls also counts API requests that were answered with an error and not billed;
// PeakInFlight is the most that were being answered at the same time.
type Totals struct {
	Calls           int64 `json:"calls"`
	Requests        int64 `json:"requests"`
	InputTokens     int64 `json:"input_tokens"`
	CachedTokens    int64 `json:"cached_tokens"`
	CacheWrite5m    int64 `json:"cache_write_5m_tokens"`
	CacheWrite1h    int64 `json:"cache_write_1h_tokens"`
	OutputTokens    int64 `json:"output_tokens"`
	ReasoningTokens int64 `json:"reasoning_tokens"`
	CostNanoUSD     int64 `json:"cost_nanousd,string"`
	ClientLeft      int64 `json:"client_left"`
	Cut             int64 `json:"cut"`
	Failed          int64 `json:"failed"`
	PeakInFlight    int64 `json:"peak_in_flight"`
}

const (
	entriesPerBlock = 1 << 12
	bytesPerBlock   = 1 << 16
	maxHeaderText   = 255
)

// entry is a Record without pointers, so that a million of them (about 120 bytes each with their texts) cost the garbage
// collector nothing.
type entry struct {
	received, finished int64 // Unix nanoseconds
	id                 answerKey
	input, cached      uint32
	write5m, write1h   uint32
	output, reasoning  uint32
	cost               int64
	textBlock          uint32 // where the two header texts stand
	textStart          uint32
	tollgateLen        uint8
	clientLen          uint8
	model              uint8
	does               endpoint
	outcome            uint8
	key, project       uint32 // indexes of names
}

// books keeps every billed request in memory. Safe for concurrent use. What has been written is never changed, so readers
// work on a view outside the lock.
type books struct {
	mu     sync.Mutex
	blocks [][]entry
	texts  [][]byte
	names  []string
	byName map[string]uint32
	totals Totals
}

// view is the state of the books at one instant.
type view struct {
	blocks [][]entry
	texts  [][]byte
	names  []string
}

// bill is what is known of a request when it is billed.
type bill struct {
	received, finished   time.Time
	id                   answerKey
	keyID, project       string
	tollgateID, clientID string
	model                uint8
	does                 endpoint
	usage                usage
	outcome              uint8
}

func (b *books) add(e bill) {
	tollgateID, clientID := e.tollgateID, e.clientID
	cost := models[e.model].cost(e.usage)
	b.mu.Lock()
	defer b.mu.Unlock()
	block, start := b.storeLocked(tollgateID, clientID)
	last := len(b.blocks) - 1
	if last < 0 || len(b.blocks[last]) == entriesPerBlock {
		b.blocks = append(b.blocks, make([]entry, 0, entriesPerBlock))
		last++
	}
	b.blocks[last] = append(b.blocks[last], entry{
		received: e.received.UnixNano(), finished: e.finished.UnixNano(), id: e.id,
		input: uint32(e.usage.input), cached: uint32(e.usage.cached),
		write5m: uint32(e.usage.write5m), write1h: uint32(e.usage.write1h),
		output: uint32(e.usage.output), reasoning: uint32(e.usage.reasoning), cost: cost,
		textBlock: block, textStart: start, tollgateLen: uint8(len(tollgateID)), clientLen: uint8(len(clientID)),
		model: e.model, does: e.does, outcome: e.outcome, key: b.nameLocked(e.keyID), project: b.nameLocked(e.project),
	})
	t := &b.totals
	t.Requests++
	t.InputTokens += e.usage.input
	t.CachedTokens += e.usage.cached
	t.CacheWrite5m += e.usage.write5m
	t.CacheWrite1h += e.usage.write1h
	t.OutputTokens += e.usage.output
	t.ReasoningTokens += e.usage.reasoning
	t.CostNanoUSD += cost
	switch e.outcome {
	case clientLeft:
		t.ClientLeft++
	case cut:
		t.Cut++
	case failed:
		t.Failed++
	}
}

func (b *books) storeLocked(tollgateID, clientID string) (block, start uint32) {
	last := len(b.texts) - 1
	if last < 0 || len(b.texts[last])+len(tollgateID)+len(clientID) > bytesPerBlock {
		b.texts = append(b.texts, make([]byte, 0, bytesPerBlock))
		last++
	}
	start = uint32(len(b.texts[last]))
	b.texts[last] = append(append(b.texts[last], tollgateID...), clientID...)
	return uint32(last), start
}

func (b *books) nameLocked(name string) uint32 {
	if i, known := b.byName[name]; known {
		return i
	}
	if b.byName == nil {
		b.byName = map[string]uint32{}
	}
	i := uint32(len(b.names))
	b.names = append(b.names, name)
	b.byName[name] = i
	return i
}

func (b *books) view() view {
	b.mu.Lock()
	defer b.mu.Unlock()
	// The outer slices are copied because their last element grows in place.
	return view{append([][]entry(nil), b.blocks...), append([][]byte(nil), b.texts...), b.names}
}

func (b *books) sums() Totals {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.totals
}

func (b *books) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.blocks, b.texts, b.names, b.byName, b.totals = nil, nil, nil, nil, Totals{}
}

// len is the number of records.
func (v view) len() int {
	if len(v.blocks) == 0 {
		return 0
	}
	return (len(v.blocks)-1)*entriesPerBlock + len(v.blocks[len(v.blocks)-1])
}

// record writes out the i-th entry, counted from 0.
func (v view) record(i int) Record {
	e := &v.blocks[i/entriesPerBlock][i%entriesPerBlock]
	text := v.texts[e.textBlock][e.textStart:]
	r := Record{
		Number: uint64(i) + 1, ReceivedAt: time.Unix(0, e.received).UTC(), FinishedAt: time.Unix(0, e.finished).UTC(),
		APIKeyID: v.names[e.key], ProjectID: v.names[e.project],
		Model: models[e.model].name, Endpoint: e.does.String(),
		InputTokens: int64(e.input), CachedTokens: int64(e.cached), CacheWrite5m: int64(e.write5m), CacheWrite1h: int64(e.write1h),
		OutputTokens: int64(e.output), ReasoningTokens: int64(e.reasoning), CostNanoUSD: e.cost,
		Outcome: outcomes[e.outcome], ClientLeft: e.outcome == clientLeft,
		TollgateRequestID: string(text[:e.tollgateLen]),
		ClientRequestID:   string(text[e.tollgateLen:][:e.clientLen]),
	}
	r.ID = answerID(e.does, e.id)
	return r
}
