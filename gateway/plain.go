package gateway

import (
	"io"
	"net/http"
	"slices"

	"tollgate/gateway/provider"
	"tollgate/ledger"
)

// pieceSize is how much of a plain answer goes to its caller in one write.
const pieceSize = 64 << 10

// pass writes a plain answer. A caller that does not read a large one counts as gone after a while: it keeps memory that others
// need. An answer of which a part has been passed on and that breaks off, breaks off for the caller.
func (x *exchange) pass(body *provider.Body) {
	if body.Rest == nil && len(body.Text) <= pieceSize {
		if _, err := x.w.Write(body.Text); err != nil {
			x.reason = ledger.ReasonClientGone
		}
		return
	}
	sink := &flushSink{ResponseWriter: x.w}
	sink.patience(x.g.config.CallerTimeout)
	defer sink.patience(0)
	for piece := range slices.Chunk(body.Text, pieceSize) {
		if _, err := sink.Write(piece); err != nil {
			x.reason = ledger.ReasonClientGone
			return
		}
	}
	if body.Rest != nil {
		x.passRest(sink, body)
	}
}

func (x *exchange) passRest(sink io.Writer, body *provider.Body) {
	rest := body.Rest
	body.Close() // it has been written
	piece := make([]byte, pieceSize)
	for {
		n, err := rest.Read(piece)
		if _, failed := sink.Write(piece[:n]); failed != nil {
			x.reason = ledger.ReasonClientGone
			return
		}
		switch {
		case err == io.EOF: //nolint:errorlint // readers give it bare
			return
		case err != nil:
			x.reason = ledger.ReasonUpstreamCut
			x.g.log.Warn("the provider's answer broke off", "request_id", x.verdict.Reservation.ID, "error", err)
			panic(http.ErrAbortHandler)
		}
	}
}
