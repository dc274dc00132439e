package provider

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/tidwall/gjson"

	"tollgate/ledger"
)

// Bounds on a plain answer that is held whole to be metered. One that is larger, or that comes when all answers together hold too
// much (maxHeldBack), is passed on in pieces, unmetered. What a compressed answer becomes costs its provider nothing.
const (
	firstBuffer = 4 << 10
	maxAnswer   = 64 << 20
	maxInflated = 16 << 20
)

// Body is a plain answer on its way. Close it when nothing reads it any more: it has a share of the memory of all answers.
type Body struct {
	Text []byte    // the answer, or its beginning
	Rest io.Reader // what follows of an answer that could not be held whole; nil of one that is

	held int64
}

// ReadAnswer reads a plain answer and meters it, unless it is too large to be held whole: then it is not metered, and its rest is
// to be read. An error wraps ErrUpstreamCut; nothing has reached the caller then, and there is no body.
func (e Endpoint) ReadAnswer(response *http.Response) (*Body, Answer, error) {
	b := &Body{}
	if err := b.read(response); err != nil {
		b.Close()
		return nil, Answer{Finish: cutReason(err)}, fmt.Errorf("%w: %w", ErrUpstreamCut, err)
	}
	answer := Answer{Finish: ledger.ReasonOK}
	if text := bytes.TrimPrefix(b.Text, byteOrderMark); b.Rest == nil && wholeJSON(text) {
		apis[e.Path].answer(text, &answer)
		if onlyError(text) {
			answer.Finish = ledger.ReasonUpstreamFailed
		}
	}
	return b, answer, nil
}

// onlyError reports whether a plain answer is an error in spite of its status: nothing of an answer of any protocol stands beside it.
func onlyError(body []byte) bool {
	if !bytes.Contains(body, errorField) || !gjson.GetBytes(body, "error").IsObject() {
		return false
	}
	parts := gjson.GetManyBytes(body, "choices", "data", "output", "content", "candidates", "embedding", "embeddings", "results", "text")
	return !slices.ContainsFunc(parts, given)
}

// Close gives the memory back. It may be called more than once.
func (b *Body) Close() {
	heldBack.Add(-b.held)
	b.held, b.Text = 0, nil
}

func (b *Body) read(response *http.Response) error {
	most := mostHeld(response)
	for {
		if len(b.Text) == cap(b.Text) && !b.grow(most) {
			b.Rest = response.Body
			return nil
		}
		n, err := response.Body.Read(b.Text[len(b.Text):cap(b.Text)])
		b.Text = b.Text[:len(b.Text)+n]
		if err == io.EOF { //nolint:errorlint // readers give it bare
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// mostHeld is the largest buffer that an answer may need: of one whose length is told, a byte more, to see its end in. What is
// known to be too large is not held at all.
func mostHeld(response *http.Response) int {
	most := int64(maxAnswer)
	if response.Uncompressed {
		most = maxInflated
	}
	switch told := response.ContentLength; {
	case told >= most:
		return bufferSize
	case told >= 0:
		return int(told) + 1
	default:
		return int(most)
	}
}

// grow makes the buffer larger, as far as the answer needs it and all answers leave room.
func (b *Body) grow(most int) bool {
	size := min(max(2*cap(b.Text), firstBuffer), most)
	more := max(int64(size)-bufferSize, 0) - b.held
	if size == cap(b.Text) {
		return false
	}
	if more > 0 && heldBack.Add(more) > maxHeldBack {
		heldBack.Add(-more)
		return false
	}
	b.held += more
	b.Text = append(make([]byte, 0, size), b.Text...)
	return true
}
