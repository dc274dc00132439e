package e2e

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"tollgate/e2e/system"
	"tollgate/ledger/policy"
)

// sdkCall is a call as a caller writes it, with whatever SDK. It goes out as the SDK's defaults say: retries, waits, timeouts.
type sdkCall struct {
	URL       string // of the gateway, without /v1
	Key       string
	Model     string
	User      string
	MaxTokens int64
	Header    map[string]string
	Stream    bool
	// Patience is when the call ends after its first answer, as a caller does that leaves; 0 is longer than any SDK should wait here.
	Patience time.Duration
	Answered <-chan struct{} // closed with the first answer
}

// sdkOutcome is what the caller got: a text, an error, or nothing because it left.
type sdkOutcome struct {
	Text  string
	Error *sdkError
	Left  bool
}

// sdkError is an error as the SDK parsed it. What an SDK does not have is "".
type sdkError struct {
	Classes   []string // in JavaScript: the error's class and those above it
	Status    int      // 0: no answer of the API
	Type      string
	Code      string
	Message   string
	RequestID string
}

// sdkClient is one SDK. call is safe for concurrent use.
type sdkClient struct {
	name     string
	protocol policy.Protocol
	classes  bool // its errors have a class for each kind
	call     func(context.Context, *sdkCall) sdkOutcome
}

// sdkClients are the official SDKs; what they stand on ends with the test.
func sdkClients(t *testing.T) []*sdkClient {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	web, node := &http.Client{Transport: transport}, startNode(t, "calls.mjs")
	return []*sdkClient{
		{"openai-go", policy.ProtocolOpenAI, false, patient(func(ctx context.Context, c *sdkCall) sdkOutcome {
			return callOpenAI(ctx, web, c)
		})},
		{"anthropic-go", policy.ProtocolAnthropic, false, patient(func(ctx context.Context, c *sdkCall) sdkOutcome {
			return callAnthropic(ctx, web, c)
		})},
		{"openai-node", policy.ProtocolOpenAI, true, patient(func(ctx context.Context, c *sdkCall) sdkOutcome {
			return node.call(ctx, "openai", c)
		})},
		{"anthropic-node", policy.ProtocolAnthropic, true, patient(func(ctx context.Context, c *sdkCall) sdkOutcome {
			return node.call(ctx, "anthropic", c)
		})},
	}
}

// longest is how long a call may take in all: longer than any SDK should wait here, however busy the computer is.
const longest = system.Patience

// patient ends a call when its patience does. It has no deadline before that: an SDK that knew it would not begin to wait.
func patient(call func(context.Context, *sdkCall) sdkOutcome) func(context.Context, *sdkCall) sdkOutcome {
	return func(ctx context.Context, c *sdkCall) sdkOutcome {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer time.AfterFunc(longest, cancel).Stop()
		if c.Patience > 0 {
			go func() {
				select {
				case <-c.Answered: // a script or a connection may take as long as it likes to begin
					time.AfterFunc(c.Patience, cancel)
				case <-ctx.Done():
				}
			}()
		}
		outcome := call(ctx, c)
		if ctx.Err() != nil {
			return sdkOutcome{Left: true}
		}
		return outcome
	}
}

func callOpenAI(ctx context.Context, web *http.Client, c *sdkCall) sdkOutcome {
	options := []option.RequestOption{option.WithBaseURL(c.URL + "/v1"), option.WithAPIKey(c.Key), option.WithHTTPClient(web)}
	for name, value := range c.Header {
		options = append(options, option.WithHeader(name, value))
	}
	client := openai.NewClient(options...)
	params := openai.ChatCompletionNewParams{
		Model: c.Model, Messages: message("Hello"), MaxTokens: openai.Int(c.MaxTokens), User: openai.String(c.User),
	}
	var text string
	var err error
	if c.Stream {
		stream := client.Chat.Completions.NewStreaming(ctx, params)
		for stream.Next() {
			for _, choice := range stream.Current().Choices {
				text += choice.Delta.Content
			}
		}
		err = errors.Join(stream.Err(), stream.Close())
	} else if answer, failed := client.Chat.Completions.New(ctx, params); failed != nil {
		err = failed
	} else {
		text = answer.Choices[0].Message.Content
	}
	if err == nil {
		return sdkOutcome{Text: text}
	}
	var e *openai.Error
	if !errors.As(err, &e) {
		return sdkOutcome{Error: &sdkError{Message: err.Error()}}
	}
	return sdkOutcome{Error: &sdkError{Status: e.StatusCode, Type: e.Type, Code: e.Code, Message: e.Message}}
}

func callAnthropic(ctx context.Context, web *http.Client, c *sdkCall) sdkOutcome {
	options := []anthropicoption.RequestOption{
		anthropicoption.WithBaseURL(c.URL + "/"), anthropicoption.WithAPIKey(c.Key), anthropicoption.WithHTTPClient(web),
	}
	for name, value := range c.Header {
		options = append(options, anthropicoption.WithHeader(name, value))
	}
	client := anthropic.NewClient(options...)
	params := anthropic.MessageNewParams{
		Model: anthropic.Model(c.Model), MaxTokens: c.MaxTokens, Metadata: anthropic.MetadataParam{UserID: anthropic.String(c.User)},
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("Hello"))},
	}
	var answer anthropic.Message
	var err error
	if c.Stream {
		stream := client.Messages.NewStreaming(ctx, params)
		for err == nil && stream.Next() {
			err = answer.Accumulate(stream.Current())
		}
		err = errors.Join(err, stream.Err(), stream.Close())
	} else if whole, failed := client.Messages.New(ctx, params); failed != nil {
		err = failed
	} else {
		answer = *whole
	}
	if err == nil {
		return sdkOutcome{Text: answer.Content[0].Text}
	}
	var e *anthropic.Error
	if !errors.As(err, &e) {
		return sdkOutcome{Error: &sdkError{Message: err.Error()}}
	}
	told := sdkError{Status: e.StatusCode, Type: string(e.Type()), RequestID: e.RequestID}
	told.Message, told.Code = anthropicDetail(e.RawJSON())
	return sdkOutcome{Error: &told}
}
