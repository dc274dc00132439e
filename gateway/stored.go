package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tollgate/gateway/admission"
	"tollgate/gateway/provider"
	"tollgate/ledger"
)

const (
	// ownersBucket says whose each stored response is.
	ownersBucket = "tollgate_responses"
	// ownersKept is a little longer than OpenAI keeps a response.
	ownersKept = 31 * 24 * time.Hour
)

// owner is whose a stored response is, and where it lies.
type owner struct {
	App      string `json:"app"`
	Provider string `json:"provider"`
	Key      string `json:"key,omitempty"` // of the provider: keys of other projects do not see it
}

var errNoOwner = errors.New("no app is known to have made it")

func (g *Gateway) owners(ctx context.Context) (jetstream.KeyValue, error) {
	return g.bucket(ctx, jetstream.KeyValueConfig{
		Bucket: ownersBucket, Description: "whose stored responses are", TTL: ownersKept, Storage: jetstream.FileStorage,
	})
}

// ownerKey is the response's key in the bucket; its id is the provider's and may be anything.
func ownerKey(id string) string {
	digest := sha256.Sum256([]byte(id))
	return hex.EncodeToString(digest[:16])
}

// remember notes whose a response is that the provider may have stored. Where that fails nobody can read it through the
// gateway.
func (x *exchange) remember(id string) {
	if x.endpoint != provider.Responses || id == "" {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(x.r.Context()), x.g.waits.owners, errors.New("owners: NATS did not answer in time"))
	defer cancel()
	bucket, err := x.g.owners(ctx)
	if err == nil {
		data, _ := json.Marshal(owner{x.caller.App, x.verdict.Provider.Name, x.verdict.Reservation.ProviderKey}) // texts always encode
		_, err = bucket.Put(ctx, ownerKey(id), data)
	}
	if err != nil {
		x.g.log.Warn("stored response cannot be read again", "request_id", x.verdict.Reservation.ID, "error", err)
	}
}

// ownerOf finds whose a response is; errNoOwner when nobody's is known.
func (g *Gateway) ownerOf(ctx context.Context, id string) (o owner, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, g.waits.owners, errors.New("owners: NATS did not answer in time"))
	defer cancel()
	bucket, err := g.owners(ctx)
	if err != nil {
		return o, err
	}
	entry, err := bucket.Get(ctx, ownerKey(id))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return o, errNoOwner
	}
	if err != nil {
		return o, fmt.Errorf("owner of a response: %w", err)
	}
	if err := json.Unmarshal(entry.Value(), &o); err != nil {
		return o, fmt.Errorf("owner of a response: %w", err)
	}
	return o, nil
}

// continuesOwn refuses to go on from a response that another app is known to have made. Only the key that made it can go on.
func (x *exchange) continuesOwn() bool {
	if x.request.Previous == "" {
		return true
	}
	o, err := x.g.ownerOf(x.r.Context(), x.request.Previous)
	x.attempts.only = o.Key
	switch {
	case err == nil && o.App != x.caller.App:
		x.problem(problem{reason: ledger.ReasonUnknownObject, message: "no response " + x.request.Previous + " is stored here", param: "previous_response_id"})
		return false
	case err != nil && !errors.Is(err, errNoOwner):
		x.g.log.Warn("whose the earlier response is cannot be found out, the provider's own check stands", "error", err)
	}
	return true
}

// serveStored passes on a request about a stored response: to read it, to list what went into it, to delete or to cancel it.
// Nothing of that is billed, and only the app that made the response through this gateway's system may ask.
func (g *Gateway) serveStored(w http.ResponseWriter, r *http.Request, id string) {
	g.active.Add(1)
	defer g.active.Add(-1)
	x := g.exchange(w, r, provider.Responses, "")
	defer x.finishFree()
	if !x.identify() || !x.findStored(id) {
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(g.work, cancel)()
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, inlineBody))
	if err != nil {
		x.problem(bodyProblem(err))
		return
	}
	to := provider.Target{Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery}
	response, err := x.verdict.Upstream.Send(ctx, x.verdict.Key, to, provider.ForwardHeader(r.Header), provider.Bytes(body))
	if err != nil {
		x.noAnswer(err)
		return
	}
	defer response.Body.Close()
	if isMedia(response.Header, "text/event-stream") && response.StatusCode < http.StatusMultipleChoices {
		x.passStoredStream(response)
		return
	}
	x.passFree(response)
}

func (x *exchange) findStored(id string) bool {
	o, err := x.g.ownerOf(x.r.Context(), id)
	if err != nil && !errors.Is(err, errNoOwner) {
		x.g.log.Warn("owner of a stored response not found", "error", err)
		x.problem(problem{reason: ledger.ReasonLimiterDown, message: "it cannot be found out at the moment whose response it is"})
		return false
	}
	p, upstream, served := x.g.admission.Provider(o.Provider)
	if err != nil || o.App != x.caller.App || !served {
		x.problem(problem{reason: ledger.ReasonUnknownObject, message: "no response " + id + " is stored here"})
		return false
	}
	key, err := upstream.Choose(provider.Pick{Only: o.Key}, upstream.Now())
	if err != nil {
		x.g.log.Warn("stored response cannot be asked for", "provider", o.Provider, "error", err)
		x.problem(problem{reason: ledger.ReasonUpstreamDown, message: "the provider " + o.Provider + " does not serve at the moment"})
		return false
	}
	x.verdict = &admission.Verdict{Provider: p, Upstream: upstream, Key: key}
	return true
}

// passStoredStream passes on the events of a response as they come: of one in the background, as far as it has got.
func (x *exchange) passStoredStream(response *http.Response) {
	x.writeHeader(response)
	sink := &flushSink{ResponseWriter: x.w, start: x.start}
	sink.patience(x.g.config.CallerTimeout)
	answer, err := x.endpoint.RelayStream(sink, response.Body, provider.Passing{})
	sink.patience(0)
	if err == nil && answer.Finish != ledger.ReasonClientGone {
		return
	}
	x.reason = answer.Finish
	panic(http.ErrAbortHandler)
}
