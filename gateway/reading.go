package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"tollgate/gateway/provider"
	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// parse takes the body whole: it is parsed anyway, and an upstream that answers before it has taken all of a body that is
// still being read would cut the answer.
func (x *exchange) parse() bool {
	var err error
	if x.body, err = x.takeBody(); err == nil {
		err = x.withRequest(x.r.Context(), x.keep)
	}
	if err == nil {
		err = provider.CheckUser(userHeader, x.r.Header.Get(userHeader))
	}
	if err == nil {
		return true
	}
	if errors.Is(err, errBodiesFull) {
		x.g.log.Error("large body not kept", "error", err)
	}
	x.problem(bodyProblem(err))
	return false
}

// takeBody reads the body of a caller that sends it: one that stops would keep what has come of it for ever.
func (x *exchange) takeBody() (*body, error) {
	if x.r.Body == http.NoBody {
		return &body{}, nil
	}
	sent := &pacedBody{ReadCloser: x.r.Body, reader: http.NewResponseController(x.w), wait: x.g.config.CallerTimeout}
	sent.renew()
	taken, err := x.g.bodies.read(x.w, sent, x.r.ContentLength, x.g.config.MaxBody)
	switch {
	case err == nil:
		sent.end()
	case errors.Is(err, os.ErrDeadlineExceeded):
		x.w.Header().Set("Connection", "close")
		err = fmt.Errorf("%w within %s", errBodyLate, x.g.config.CallerTimeout)
	}
	return taken, err
}

// errBodyLate is wrapped by errors for a body that stopped coming.
var errBodyLate = errors.New("the body did not go on")

// pacedBody is a body whose pieces must follow each other in time.
type pacedBody struct {
	io.ReadCloser
	reader *http.ResponseController
	wait   time.Duration // 0: the connection has no deadlines
	until  time.Time     // the deadline that is set
}

// Read puts the deadline off when half of the time has passed.
func (b *pacedBody) Read(p []byte) (int, error) {
	b.renew()
	return b.ReadCloser.Read(p)
}

func (b *pacedBody) renew() {
	if now := time.Now(); b.wait > 0 && b.until.Sub(now) < b.wait/2 {
		b.until = now.Add(b.wait)
		if err := b.reader.SetReadDeadline(b.until); err != nil {
			b.wait = 0
		}
	}
}

// end takes the deadline back: the server watches the connection for its caller's leaving from now on.
func (b *pacedBody) end() {
	if b.wait > 0 {
		_ = b.reader.SetReadDeadline(time.Time{}) // it took one before
	}
}

// bodyProblem is what the caller is told of a body that cannot be taken, read or sent on.
func bodyProblem(err error) problem {
	var tooLarge *http.MaxBytesError
	var bad *provider.RequestError
	switch {
	case errors.As(err, &tooLarge):
		return problem{reason: ledger.ReasonBodyTooLarge, message: "the body is larger than the gateway accepts"}
	case errors.Is(err, errBodyLate):
		return problem{reason: ledger.ReasonBodyTimeout, message: err.Error() + ", nothing was spent"}
	case errors.Is(err, errBodiesFull):
		return problem{reason: ledger.ReasonBodiesFull, message: "there is no room for large bodies at the moment, nothing was spent"}
	case errors.As(err, &bad):
		return problem{reason: ledger.ReasonBadRequest, message: bad.Error(), param: bad.Param}
	default:
		return problem{reason: ledger.ReasonBadRequest, message: "the body could not be read: " + err.Error()}
	}
}

// withRequest hands on the request with its body, which of a large one is there for that moment only.
func (x *exchange) withRequest(ctx context.Context, use func(*provider.Request) error) error {
	if x.request != nil && !x.body.large() {
		return use(x.request)
	}
	return x.body.load(ctx, func(whole []byte) error {
		request, err := x.endpoint.Read(provider.Call{
			Model: x.model, Query: x.r.URL.Query(), ContentType: x.r.Header.Get("Content-Type"), Body: whole,
		})
		if err != nil {
			return err
		}
		return use(request)
	})
}

// keep keeps the request; of a large one what will be asked of it, so that its body need not be read again.
func (x *exchange) keep(request *provider.Request) error {
	x.request = request
	if !x.body.large() {
		return nil
	}
	x.request = request.Digest()
	for _, model := range x.g.admission.Servable(x.request.Model, x.caller.App) {
		x.noteEstimate(model, request)
	}
	return nil
}

func (x *exchange) noteEstimate(model string, request *provider.Request) {
	if x.estimates == nil {
		x.estimates = map[string]provider.Estimate{}
	}
	x.estimates[model] = request.Estimate(model)
}

// rawEstimate reads the body for a model once, however often its request is judged.
func (x *exchange) rawEstimate(model string) provider.Estimate {
	if e, known := x.estimates[model]; known {
		return e
	}
	err := x.withRequest(context.WithoutCancel(x.r.Context()), func(request *provider.Request) error {
		x.noteEstimate(model, request)
		return nil
	})
	if err != nil {
		x.g.log.Error("large body cannot be read again, its size is taken for its tokens", "error", err)
		return provider.Estimate{Input: ledger.Tokens(x.body.size), Output: provider.DefaultOutput}
	}
	return x.estimates[model]
}

// payload is the body to send: the caller's own, or a changed copy, which is kept for as long as the request is.
func (x *exchange) payload(ctx context.Context, model string, api policy.API) (provider.Payload, error) {
	if x.request.Unchanged(model, api) {
		return x.body.payload(), nil
	}
	var changed provider.Payload
	err := x.withRequest(ctx, func(request *provider.Request) error {
		text, err := request.UpstreamBody(model, api)
		if err != nil || !x.body.large() {
			changed = provider.Bytes(text)
			return err
		}
		copied, err := x.g.bodies.store(nil, bytes.NewReader(text))
		if err != nil {
			return err
		}
		x.copies = append(x.copies, copied)
		changed = copied.payload()
		return nil
	})
	return changed, err
}

// closeBody gives back what the body takes on disk. Nothing is sent any more.
func (x *exchange) closeBody() {
	err := x.body.close()
	for _, c := range x.copies {
		err = errors.Join(err, c.close())
	}
	if err != nil {
		x.g.log.Warn("large body not closed", "error", err)
	}
}
