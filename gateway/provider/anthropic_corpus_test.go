package provider

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// recorded is one exchange with a real provider.
type recorded struct {
	ID       string          `json:"id"`
	Protocol string          `json:"protocol"`
	Request  json.RawMessage `json:"request"`
	Status   int             `json:"status"`
	Stream   bool            `json:"stream"`
	Response string          `json:"response"`
}

// recordedMessages are the recorded exchanges of Anthropic's messages, none where no folder is named.
func recordedMessages(t *testing.T) []recorded {
	t.Helper()
	dir := os.Getenv("TOLLGATE_CORPUS")
	if dir == "" {
		t.Log("TOLLGATE_CORPUS names no folder: nothing to compare with")
		return nil
	}
	file, err := os.Open(filepath.Join(dir, "exchanges.jsonl"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, file.Close()) })
	var found []recorded
	for lines := bufio.NewReader(file); ; {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e recorded
			require.NoError(t, json.Unmarshal(line, &e))
			if e.Protocol == "anthropic-messages" {
				found = append(found, e)
			}
		}
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
	}
	require.NotEmpty(t, found)
	return found
}

// toldUsage is a usage object, read by other means than the package's own.
type toldUsage struct {
	Input    *int64 `json:"input_tokens"`
	Cached   *int64 `json:"cache_read_input_tokens"`
	Written  *int64 `json:"cache_creation_input_tokens"`
	Creation struct {
		Short int64 `json:"ephemeral_5m_input_tokens"`
		Hour  int64 `json:"ephemeral_1h_input_tokens"`
	} `json:"cache_creation"`
	Output *int64 `json:"output_tokens"`
	Tools  struct {
		Searches int64 `json:"web_search_requests"`
	} `json:"server_tool_use"`
	Details struct {
		Thinking int64 `json:"thinking_tokens"`
	} `json:"output_tokens_details"`
}

// over lays a later object over an earlier one, as SDKs accumulate them.
func (u *toldUsage) over(later toldUsage) {
	for _, f := range []struct{ to, from **int64 }{{&u.Input, &later.Input}, {&u.Cached, &later.Cached}, {&u.Written, &later.Written}, {&u.Output, &later.Output}} {
		if *f.from != nil {
			*f.to = *f.from
		}
	}
	u.Details, u.Tools = later.Details, later.Tools
}

func (u *toldUsage) usage() ledger.Usage {
	n := func(p *int64) ledger.Tokens {
		if p == nil {
			return 0
		}
		return ledger.Tokens(*p)
	}
	hour, thinking := ledger.Tokens(u.Creation.Hour), ledger.Tokens(u.Details.Thinking)
	return ledger.Usage{
		Input: n(u.Input), CachedInput: n(u.Cached), CacheWrite5m: n(u.Written) - hour, CacheWrite1h: hour,
		Output: n(u.Output) - thinking, Reasoning: thinking,
		Calls: ledger.Calls{WebSearch: u.Tools.Searches},
	}
}

// told is what a recorded answer tells of itself.
func told(t *testing.T, e recorded) (model, id string, usage ledger.Usage) {
	t.Helper()
	type message struct {
		ID    string    `json:"id"`
		Model string    `json:"model"`
		Usage toldUsage `json:"usage"`
	}
	var m message
	if !e.Stream {
		require.NoError(t, json.Unmarshal([]byte(e.Response), &m))
		return m.Model, m.ID, m.Usage.usage()
	}
	for line := range strings.Lines(e.Response) {
		data, ok := strings.CutPrefix(line, "data:")
		if !ok {
			continue
		}
		var event struct {
			Type    string
			Message message
			Usage   toldUsage
		}
		require.NoError(t, json.Unmarshal([]byte(data), &event))
		switch event.Type {
		case "message_start":
			m = event.Message
		case "message_delta":
			m.Usage.over(event.Usage)
		}
	}
	return m.Model, m.ID, m.Usage.usage()
}

func TestRecordedMessages(t *testing.T) {
	t.Parallel()
	streams := 0
	exchanges := recordedMessages(t)
	for _, e := range exchanges {
		r, err := Messages.Parse(e.Request)
		require.NoError(t, err, e.ID)
		require.Equal(t, e.Stream, r.Stream, e.ID)
		require.Equal(t, policy.ProtocolAnthropic, r.Endpoint.Protocol)
		var asked struct {
			Model     string `json:"model"`
			MaxTokens int64  `json:"max_tokens"`
		}
		require.NoError(t, json.Unmarshal(e.Request, &asked), e.ID)
		require.Equal(t, asked.Model, r.Model, e.ID)
		require.Equal(t, ledger.Tokens(asked.MaxTokens), readOf(r).Output, e.ID)
		sent, err := r.UpstreamBody(r.Model, "")
		require.NoError(t, err, e.ID)
		require.Equal(t, string(e.Request), string(sent), e.ID)
		require.Equal(t, http.StatusOK, e.Status, e.ID)

		var answer Answer
		passed := ""
		if e.Stream {
			streams++
			passed, answer = relayMessage(t, e.Response)
		} else {
			var body *Body
			body, answer, err = Messages.ReadAnswer(&http.Response{Body: io.NopCloser(strings.NewReader(e.Response)), ContentLength: -1})
			require.NoError(t, err, e.ID)
			passed = string(body.Text)
		}
		require.Equal(t, e.Response, passed, e.ID)
		model, id, usage := told(t, e)
		require.Equal(t, Reading{Usage: usage, State: ledger.UsageReported}, answer.Reading, e.ID)
		require.Equal(t, model, answer.Model, e.ID)
		require.Equal(t, id, answer.UpstreamID, e.ID)
		require.Equal(t, ledger.ReasonOK, answer.Finish, e.ID)
		require.LessOrEqual(t, answer.Usage.OutputTotal(), readOf(r).Output, e.ID)
	}
	t.Logf("%d exchanges, %d of them streams", len(exchanges), streams)
}
