package provider

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"tollgate/ledger/policy"
)

// protocol is how the providers of one kind are asked.
type protocol struct {
	version     string // how the paths of its routes begin; a base URL has it already
	modelInPath bool   // its calls are "<model>:<method>"
	authorize   func(header http.Header, key string)
	// body is a caller's body for a provider that knows the model by this name.
	body func(r *Request, model string, api policy.API) ([]byte, error)
}

var protocols = map[policy.Protocol]protocol{
	policy.ProtocolOpenAI: {
		version: "/v1", body: (*Request).openAIBody,
		authorize: func(header http.Header, key string) { header.Set("Authorization", "Bearer "+key) },
	},
	policy.ProtocolAnthropic: {
		version: "/v1", body: (*Request).withModel,
		authorize: func(header http.Header, key string) { header.Set("X-Api-Key", key) },
	},
	policy.ProtocolGemini: {
		version: "/v1beta", modelInPath: true, body: (*Request).geminiBody,
		authorize: func(header http.Header, key string) { header.Set("X-Goog-Api-Key", key) },
	},
}

// api is how one kind of request is read and metered: a row that its file declares.
type api struct {
	Endpoint
	billing billing
	parse   func(Endpoint, Call) (*Request, error)
	input   func(e *estimator, r *Request) // adds up a request's input
	answer  func(body []byte, a *Answer)   // reads a plain answer, which is valid JSON
	meter   func() meter                   // of one stream
}

// billing says whether a request is in the books.
type billing uint8

const (
	billed   billing = iota
	unbilled         // in the books, without a price: its provider documents that it costs nothing
	free             // not in the books, and without limits
)

// meter learns from one stream what it used, event by event.
type meter interface {
	// event reads one event's data. withhold says that the event only answers what metering asked for; done, that all that came
	// until now is a complete answer, or that an error of the provider's has ended it, which a.Finish then says. What comes
	// behind that may be more of it: another candidate of Gemini's makes it incomplete again.
	event(data []byte, a *Answer) (withhold, done bool)
	// close is called once, after the last event that came.
	close(a *Answer)
}

// table is every kind of request. The rest of the package, and the gateway's routes, know no other list.
var table = slices.Concat(openAIAPIs, responsesAPIs, mediaAPIs, anthropicAPIs, geminiAPIs)

// apis is the table by the path of the endpoint.
var apis = func() map[string]api {
	rows := map[string]api{}
	for _, row := range table {
		if _, twice := rows[row.Path]; twice {
			panic("provider: two rows for " + row.Path)
		}
		rows[row.Path] = row
	}
	return rows
}()

// ofFields is an input that is all in the body's fields.
func ofFields(add func(e *estimator, found map[string]gjson.Result)) func(*estimator, *Request) {
	return func(e *estimator, r *Request) { add(e, r.found) }
}

// Endpoint is one route that callers use. It belongs to a protocol, the provider's and the caller's alike: nothing is
// translated.
type Endpoint struct {
	Path     string
	Kind     string // chat, completions, embeddings, …: what limits and upstream rates tell apart
	Protocol policy.Protocol
}

// The routes.
var (
	Chat        = Endpoint{"/v1/chat/completions", "chat", policy.ProtocolOpenAI}
	Completions = Endpoint{"/v1/completions", "completions", policy.ProtocolOpenAI}
	Embeddings  = Endpoint{"/v1/embeddings", "embeddings", policy.ProtocolOpenAI}
	Responses   = Endpoint{"/v1/responses", "responses", policy.ProtocolOpenAI}

	Images         = Endpoint{"/v1/images/generations", "images", policy.ProtocolOpenAI}
	ImageEdits     = Endpoint{"/v1/images/edits", "images", policy.ProtocolOpenAI}
	Speech         = Endpoint{"/v1/audio/speech", "speech", policy.ProtocolOpenAI}
	Transcriptions = Endpoint{"/v1/audio/transcriptions", "transcriptions", policy.ProtocolOpenAI}
	Translations   = Endpoint{"/v1/audio/translations", "transcriptions", policy.ProtocolOpenAI}
	Moderations    = Endpoint{"/v1/moderations", "moderations", policy.ProtocolOpenAI}

	Messages = Endpoint{"/v1/messages", "messages", policy.ProtocolAnthropic}

	// These tell how long a prompt is.
	CountTokens    = Endpoint{"/v1/messages/count_tokens", "messages", policy.ProtocolAnthropic}
	CountResponses = Endpoint{"/v1/responses/input_tokens", "responses", policy.ProtocolOpenAI}
	CountContent   = Endpoint{"/v1beta/models:countTokens", "generate", policy.ProtocolGemini}

	// Gemini's paths have the model before the method: /v1beta/models/<model>:generateContent.
	Generate       = Endpoint{"/v1beta/models:generateContent", "generate", policy.ProtocolGemini}
	StreamGenerate = Endpoint{"/v1beta/models:streamGenerateContent", "generate", policy.ProtocolGemini}
	EmbedContent   = Endpoint{"/v1beta/models:embedContent", "embed", policy.ProtocolGemini}
	BatchEmbed     = Endpoint{"/v1beta/models:batchEmbedContents", "embed", policy.ProtocolGemini}
)

// Endpoints lists every route, those that are free too.
func Endpoints() []Endpoint { return list(func(api) bool { return true }) }

// Metered lists the routes whose requests are in the books.
func Metered() []Endpoint { return list(func(row api) bool { return row.billing != free }) }

func list(which func(api) bool) (endpoints []Endpoint) {
	for _, row := range table {
		if which(row) {
			endpoints = append(endpoints, row.Endpoint)
		}
	}
	return endpoints
}

// Free reports whether the endpoint's requests are not metered, because their provider bills nothing for them.
func (e Endpoint) Free() bool { return apis[e.Path].billing == free }

// Unbilled reports whether the endpoint's requests have no price, because their provider documents that they cost nothing.
func (e Endpoint) Unbilled() bool { return apis[e.Path].billing == unbilled }

// ModelInPath reports whether the endpoint's path names the model, as "<model>:<method>".
func (e Endpoint) ModelInPath() bool { return protocols[e.Protocol].modelInPath }

// RoutesOf lists the paths of a protocol's metered routes, for people.
func RoutesOf(protocol policy.Protocol) string {
	var paths []string
	for _, e := range Metered() {
		if e.Protocol == protocol {
			paths = append(paths, e.Path)
		}
	}
	return strings.Join(paths, " or ")
}

// Call is a caller's request as it came.
type Call struct {
	Model       string // that the path names, "" where the body does
	Query       url.Values
	ContentType string // of the body
	Body        []byte // kept, not copied
}

// Read reads from a caller's request what admission and metering must know. Every error is a *RequestError.
func (e Endpoint) Read(call Call) (*Request, error) { return apis[e.Path].parse(e, call) }

// Parse reads a request that is all in its body.
func (e Endpoint) Parse(body []byte) (*Request, error) { return e.Read(Call{Body: body}) }
