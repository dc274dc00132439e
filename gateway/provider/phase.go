package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"tollgate/ledger"
)

// Timeouts bound the phases of one upstream call. Zero bounds nothing.
type Timeouts struct {
	Dial   time.Duration // until a connection stands
	TLS    time.Duration // until it is encrypted
	Header time.Duration // from the request's last byte to the answer's first
	Idle   time.Duration // between two pieces of the answer
	Total  time.Duration // the whole, answer included
	Down   time.Duration // how long failures in a row go on before a key rests
}

// Phase is a part of an upstream call.
type Phase string

// The phases.
const (
	PhaseConnect   Phase = "connect"
	PhaseTLS       Phase = "tls"
	PhaseFirstByte Phase = "first byte"
	PhaseIdle      Phase = "next piece of the answer"
	PhaseTotal     Phase = "whole answer"
)

// TimeoutError is a phase that took too long.
type TimeoutError struct {
	Phase Phase
	After time.Duration
}

func (e *TimeoutError) Error() string {
	switch e.Phase {
	case PhaseConnect:
		return fmt.Sprintf("no connection to it within %s", e.After)
	case PhaseTLS:
		return fmt.Sprintf("no TLS handshake with it within %s", e.After)
	default:
		return fmt.Sprintf("no %s from it within %s", e.Phase, e.After)
	}
}

// Timeout is true, as errors of package net have it.
func (e *TimeoutError) Timeout() bool { return true }

// SendError is a call that brought no answer.
type SendError struct {
	Err error
	// Sent says that the provider may have received the request, so what it spent is unknown.
	Sent bool
}

func (e *SendError) Error() string { return e.Err.Error() }

// Unwrap gives the transport's error, or the *TimeoutError that stands for it.
func (e *SendError) Unwrap() error { return e.Err }

// Timeout reports whether the provider did not answer in time.
func (e *SendError) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.Err, &t) && t.Timeout()
}

// Again reports whether the same request may be sent once more: not a byte of it was taken, and nobody waited in vain.
func (e *SendError) Again() bool {
	return !e.Sent && !e.Timeout() && !errors.Is(e.Err, context.Canceled)
}

// timed names the phase of an error of the transport that is a timeout.
func (t Timeouts) timed(err error, phase Phase) error {
	var known *TimeoutError
	var other interface{ Timeout() bool }
	if errors.As(err, &known) || !errors.As(err, &other) || !other.Timeout() {
		return err
	}
	after := map[Phase]time.Duration{PhaseConnect: t.Dial, PhaseTLS: t.TLS, PhaseFirstByte: t.Header}[phase]
	return &TimeoutError{phase, after}
}

// cutReason tells an answer that took too long from one that broke off.
func cutReason(err error) ledger.Reason {
	var late *TimeoutError
	if errors.As(err, &late) {
		return ledger.ReasonUpstreamTimeout
	}
	return ledger.ReasonUpstreamCut
}

// answerBody is an answer's body whose pieces must follow each other in time. It ends its call when it is closed.
type answerBody struct {
	io.ReadCloser
	ctx   context.Context //nolint:containedctx // the call's, which the body is a part of
	idle  time.Duration
	late  *time.Timer // cancels the call
	close func()
}

// Read gives a *TimeoutError when the provider was silent for too long, or the whole took too long.
func (b *answerBody) Read(p []byte) (int, error) {
	if b.late != nil {
		b.late.Reset(b.idle)
		defer b.late.Stop()
	}
	n, err := b.ReadCloser.Read(p)
	var timeout *TimeoutError
	if err != nil && err != io.EOF && errors.As(context.Cause(b.ctx), &timeout) { //nolint:errorlint // readers give it bare
		err = timeout
	}
	return n, err
}

// Close ends the call. It may be called more than once.
func (b *answerBody) Close() error {
	err := b.ReadCloser.Close()
	b.close()
	return err
}

// RetryAfter is how long a provider tells to wait, false when it does not: in milliseconds, in seconds, or until a date. 0 is at
// once, as is what lies in the past.
func RetryAfter(header http.Header, now time.Time) (time.Duration, bool) {
	if ms, err := strconv.ParseFloat(strings.TrimSpace(header.Get("Retry-After-Ms")), 64); err == nil && ms < 1e12 {
		return time.Duration(max(0, ms) * float64(time.Millisecond)), true
	}
	text := strings.TrimSpace(header.Get("Retry-After"))
	if s, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(s) {
		return time.Duration(min(max(0, s), 1e9) * float64(time.Second)), true
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	return max(0, at.Sub(now)), true
}
