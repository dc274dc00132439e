package provider

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// An answer that is too large to be held passes in pieces, unmetered, and what all hold is given back.
func TestAnswersAreBounded(t *testing.T) { // not parallel: what all answers hold is one figure
	const usage = `{"usage":{"prompt_tokens":12,"completion_tokens":34},"pad":"`
	long := func(size int) io.Reader {
		return io.MultiReader(strings.NewReader(usage), io.LimitReader(xs{}, int64(size-len(usage)-2)), strings.NewReader(`"}`))
	}
	before := heldBack.Load()
	for name, c := range map[string]struct {
		size     int
		told     bool
		inflated bool
		whole    bool
	}{
		"small, inflated":     {1000, false, true, true},
		"of 20 MiB":           {20 << 20, false, false, true},
		"of 20 MiB, told":     {20 << 20, true, false, true},
		"of 20 MiB, inflated": {20 << 20, false, true, false},
		"of 65 MiB":           {65 << 20, false, false, false},
		"of 300 MiB, told":    {300 << 20, true, false, false},
	} {
		length := int64(-1)
		if c.told {
			length = int64(c.size)
		}
		body, answer, err := Chat.ReadAnswer(&http.Response{Body: io.NopCloser(long(c.size)), ContentLength: length, Uncompressed: c.inflated})
		require.NoError(t, err, name)
		require.Equal(t, ledger.ReasonOK, answer.Finish, name)
		require.Equal(t, c.whole, body.Rest == nil, name)
		require.Equal(t, c.whole, answer.State == ledger.UsageReported, name)
		require.LessOrEqual(t, body.held, int64(maxAnswer), name)
		if c.told {
			require.LessOrEqual(t, cap(body.Text), c.size+1, name)
		}
		n := int64(len(body.Text))
		if body.Rest != nil {
			rest, err := io.Copy(io.Discard, body.Rest)
			require.NoError(t, err, name)
			n += rest
		}
		require.Equal(t, int64(c.size), n, name)
		body.Close()
		body.Close()
		require.Equal(t, before, heldBack.Load(), name)
	}

	heldBack.Add(maxHeldBack)
	body, answer, err := Chat.ReadAnswer(&http.Response{Body: io.NopCloser(long(1 << 20)), ContentLength: -1})
	heldBack.Add(-maxHeldBack)
	require.NoError(t, err)
	require.NotNil(t, body.Rest, "others hold all there is")
	require.Len(t, body.Text, bufferSize)
	require.Empty(t, answer.State)
	body.Close()
	require.Equal(t, before, heldBack.Load())
}

// xs is an endless text.
type xs struct{}

func (xs) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}
