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
	version   string // how the paths of its routes begin; a base URL has it already
	authorize func(header http.Header, key string)
}

var protocols = map[policy.Protocol]protocol{
	policy.ProtocolOpenAI: {
		version:   "/v1",
		authorize: func(header http.Header, key string) { header.Set("Authorization", "Bearer "+key) },
	},
	policy.ProtocolAnthropic: {
		version:   "/v1",
		authorize: func(header http.Header, key string) { header.Set("X-Api-Key", key) },
	},
	policy.ProtocolGemini: {
		version:   "/v1beta",
		authorize: func(header http.Header, key string) { header.Set("X-Goog-Api-Key", key) },
	},
}

// api is how one kind of request is read and metered. Each is one file, and this table is all that the rest of the package
// knows of them.
type api struct {
	parse  func(Endpoint, Call) (*Request, error)
	input  func(e *estimator, r *Request) // adds up a request's input
	answer func(body []byte, a *Answer)   // reads a plain answer, which is valid JSON
	meter  func() meter                   // of one stream
}

// meter learns from one stream what it used, event by event.
type meter interface {
	// event reads one event's data. withhold says that the event only answers what metering asked for; last, that the answer
	// is complete, or that an error of the provider's has ended it, which a.Finish then says.
	event(data []byte, a *Answer) (withhold, last bool)
	// close is called once, after the last event that came.
	close(a *Answer)
}

// apis is by the path of the endpoint.
var apis = map[string]api{
	Chat.Path:           {parseOpenAI, ofFields((*estimator).chat), answerOpenAI, newOpenAIMeter},
	Completions.Path:    {parseOpenAI, ofFields((*estimator).completions), answerOpenAI, newOpenAIMeter},
	Embeddings.Path:     {parseOpenAI, ofFields((*estimator).embeddings), answerOpenAI, newOpenAIMeter},
	Responses.Path:      {parseResponses, ofFields((*estimator).responses), answerResponses, newResponsesMeter},
	Images.Path:         {parseMedia, mediaInput, answerImages, newImageMeter},
	ImageEdits.Path:     {parseMedia, mediaInput, answerImages, newImageMeter},
	Speech.Path:         {parseMedia, mediaInput, answerMedia, newMediaMeter},
	Transcriptions.Path: {parseMedia, mediaInput, answerMedia, newMediaMeter},
	Translations.Path:   {parseMedia, mediaInput, answerMedia, newMediaMeter},
	Moderations.Path:    {parseMedia, mediaInput, answerModeration, newMediaMeter},
	Messages.Path:       {parseAnthropic, ofFields((*estimator).messages), answerAnthropic, newAnthropicMeter},
	CountTokens.Path:    {parseAnthropic, ofFields((*estimator).messages), answerAnthropic, newAnthropicMeter},
	CountResponses.Path: {parseResponses, ofFields((*estimator).responses), answerResponses, newResponsesMeter},

	Generate.Path:       {parseGemini, ofFields((*estimator).generate), answerGemini, newGeminiMeter},
	StreamGenerate.Path: {parseGemini, ofFields((*estimator).generate), answerGemini, newGeminiMeter},
	CountContent.Path:   {parseGemini, ofFields((*estimator).generate), answerGemini, newGeminiMeter},
	EmbedContent.Path:   {parseGemini, ofFields((*estimator).embedContents), answerGemini, newGeminiMeter},
	BatchEmbed.Path:     {parseGemini, ofFields((*estimator).embedContents), answerGemini, newGeminiMeter},
}

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

// The metered routes.
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

	// Gemini's paths have the model before the method: /v1beta/models/<model>:generateContent.
	Generate       = Endpoint{"/v1beta/models:generateContent", "generate", policy.ProtocolGemini}
	StreamGenerate = Endpoint{"/v1beta/models:streamGenerateContent", "generate", policy.ProtocolGemini}
	EmbedContent   = Endpoint{"/v1beta/models:embedContent", "embed", policy.ProtocolGemini}
	BatchEmbed     = Endpoint{"/v1beta/models:batchEmbedContents", "embed", policy.ProtocolGemini}
)

// metered lists them.
var metered = []Endpoint{
	Chat, Completions, Embeddings, Responses, Images, ImageEdits, Speech, Transcriptions, Translations, Moderations,
	Messages, Generate, StreamGenerate, EmbedContent, BatchEmbed,
}

// Metered lists the metered routes.
func Metered() []Endpoint { return slices.Clone(metered) }

// RoutesOf lists the paths of a protocol's metered routes, for people.
func RoutesOf(protocol policy.Protocol) string {
	var paths []string
	for _, e := range metered {
		if e.Protocol == protocol {
			paths = append(paths, e.Path)
		}
	}
	return strings.Join(paths, " or ")
}

// CountTokens, CountResponses and CountContent tell how long a prompt is. Their providers bill nothing for that.
var (
	CountTokens    = Endpoint{"/v1/messages/count_tokens", "messages", policy.ProtocolAnthropic}
	CountResponses = Endpoint{"/v1/responses/input_tokens", "responses", policy.ProtocolOpenAI}
	CountContent   = Endpoint{"/v1beta/models:countTokens", "generate", policy.ProtocolGemini}
)

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
