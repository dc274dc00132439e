package sim

import (
	"strconv"
	"strings"
)

// vocabulary is what answers are made of: each word is one token by the package's count, and no word needs escaping.
var vocabulary = strings.Fields("The meter reads what the line has used and every unit finds a place in the books so that " +
	"a sum at night is the same sum we had at noon no more no less and who asks is told")

// maxWords bounds the text of an answer, not its usage: a test may ask for millions of tokens.
const maxWords = 4096

const fingerprint = "fp_5111111111"

func itoa(n int) string { return strconv.Itoa(n) }

// appendWords writes words from up to to, counted from the answer's first.
func appendWords(dst []byte, from, to int64) []byte {
	for i := from; i < min(to, maxWords); i++ {
		if i > 0 {
			dst = append(dst, ' ')
		}
		dst = append(dst, vocabulary[i%int64(len(vocabulary))]...)
	}
	return dst
}

// appendPlain writes the whole answer as one JSON object.
func (g *generation) appendPlain(dst []byte) []byte {
	chat := g.does == endpointChat
	object := "text_completion"
	if chat {
		object = "chat.completion"
	}
	dst = g.appendHead(append(dst, '{'), object)
	dst = append(dst, `,"choices":[`...)
	shown := g.made.output - g.made.reasoning
	for i := range g.choices {
		if i > 0 {
			dst = append(dst, ',')
		}
		// Every choice has its even share; it starts with the first word again.
		words := shown*int64(i+1)/int64(g.choices) - shown*int64(i)/int64(g.choices)
		dst = appendInt(append(dst, `{"index":`...), int64(i))
		if chat {
			dst = appendWords(append(dst, `,"message":{"role":"assistant","content":"`...), 0, words)
			dst = append(dst, `","refusal":null,"annotations":[]`...)
			if g.usesTool() {
				dst = append(g.appendCall(append(dst, `,"tool_calls":[{`...), i, toolArguments), "}]"...)
			}
			dst = append(dst, `},"logprobs":null,"finish_reason":"`...)
		} else {
			dst = appendWords(append(dst, `,"text":"`...), 0, words)
			dst = append(dst, `","logprobs":null,"finish_reason":"`...)
		}
		dst = append(append(dst, g.finishReason()...), `"}`...)
	}
	dst = append(dst, ']')
	if !g.noUsage {
		dst = g.appendUsage(append(dst, `,"usage":`...))
	}
	return append(dst, "}\n"...)
}

// appendCall writes the call of a function by a choice of a chat, without its braces.
func (g *generation) appendCall(dst []byte, choice int, arguments string) []byte {
	dst = append(append(append(dst, `"id":"call_`...), g.key.String()...), '_')
	dst = appendQuoted(append(appendInt(dst, int64(choice)), `","type":"function","function":{"name":`...), g.tool.name)
	return append(appendQuoted(append(dst, `,"arguments":`...), arguments), '}')
}

// appendHead writes the fields that an answer and each of its chunks begin with.
func (g *generation) appendHead(dst []byte, object string) []byte {
	dst = append(append(append(dst, `"id":"`...), answerID(g.does, g.key)...), `","object":"`...)
	dst = append(append(dst, object...), `","created":`...)
	dst = append(appendInt(dst, g.created), `,"model":"`...)
	dst = append(append(dst, models[g.modelAt].name...), '"')
	if g.does == endpointChat {
		dst = append(dst, `,"service_tier":"default","system_fingerprint":"`+fingerprint+`"`...)
	}
	return dst
}

func (g *generation) appendUsage(dst []byte) []byte {
	u := g.usage
	dst = appendInt(append(dst, `{"prompt_tokens":`...), u.input)
	dst = appendInt(append(dst, `,"completion_tokens":`...), u.output)
	dst = appendInt(append(dst, `,"total_tokens":`...), u.input+u.output)
	if g.does == endpointChat || u.cached > 0 || u.reasoning > 0 {
		dst = appendInt(append(dst, `,"prompt_tokens_details":{"cached_tokens":`...), u.cached)
		dst = appendInt(append(dst, `,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":`...), u.reasoning)
		dst = append(dst, `,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}`...)
	}
	return append(dst, '}')
}

// events writes the server-sent events of one answer. What all its chunks share is written once.
type events struct {
	g     *generation
	head  []byte // up to and including "choices":
	usage string // the usage field of a chunk that is not about usage
}

func newEvents(g *generation) *events {
	object := "text_completion"
	if g.does == endpointChat {
		object = "chat.completion.chunk"
	}
	e := &events{g: g}
	e.head = append(g.appendHead(append(make([]byte, 0, 320), "data: {"...), object), `,"choices":[`...)
	if g.includeUsage && !g.noUsage {
		e.usage = `,"usage":null`
	}
	return e
}

// appendStart writes what comes before the first text: in a chat, each choice's role.
func (e *events) appendStart(dst []byte) []byte {
	if e.g.does != endpointChat {
		return dst
	}
	for i := range e.g.choices {
		dst = appendInt(append(append(dst, e.head...), `{"index":`...), int64(i))
		dst = append(dst, `,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}]`...)
		dst = e.appendClose(dst)
	}
	return dst
}

// appendError writes what ends a stream instead.
func (e *events) appendError(dst []byte) []byte {
	return append(dst, `data: {"error":{"message":"The server had an error while processing your request.","type":"server_error","param":null,"code":null}}`+"\n\n"...)
}

// appendPiece writes one chunk of text for a choice.
func (e *events) appendPiece(dst []byte, choice int, from, to int64) []byte {
	dst = appendInt(append(append(dst, e.head...), `{"index":`...), int64(choice))
	if e.g.does == endpointChat {
		dst = appendWords(append(dst, `,"delta":{"content":"`...), from, to)
		dst = append(dst, `"},"logprobs":null,"finish_reason":null}]`...)
	} else {
		dst = appendWords(append(dst, `,"text":"`...), from, to)
		dst = append(dst, `","logprobs":null,"finish_reason":null}]`...)
	}
	return e.appendClose(dst)
}

// appendTool writes the call of a function in two chunks, as a chat that is streamed brings it.
func (e *events) appendTool(dst []byte, choice int) []byte {
	begin := func(dst []byte) []byte {
		dst = appendInt(append(append(dst, e.head...), `{"index":`...), int64(choice))
		return append(dst, `,"delta":{"tool_calls":[{"index":0,`...)
	}
	const end = `}]},"logprobs":null,"finish_reason":null}]`
	dst = e.appendClose(append(e.g.appendCall(begin(dst), choice, ""), end...))
	dst = appendQuoted(append(begin(dst), `"function":{"arguments":`...), toolArguments)
	return e.appendClose(append(dst, "}"+end...))
}

// appendEnd writes each choice's end, the usage where it was asked for, and [DONE].
func (e *events) appendEnd(dst []byte) []byte {
	for i := range e.g.choices {
		if e.g.does == endpointChat && e.g.usesTool() {
			dst = e.appendTool(dst, i)
		}
		dst = appendInt(append(append(dst, e.head...), `{"index":`...), int64(i))
		if e.g.does == endpointChat {
			dst = append(dst, `,"delta":{},"logprobs":null,"finish_reason":"`...)
		} else {
			dst = append(dst, `,"text":"","logprobs":null,"finish_reason":"`...)
		}
		dst = e.appendClose(append(append(dst, e.g.finishReason()...), `"}]`...))
	}
	if e.usage != "" {
		dst = append(append(dst, e.head...), `],"usage":`...)
		dst = append(e.g.appendUsage(dst), "}\n\n"...)
	}
	if !e.g.noDone {
		dst = append(dst, "data: [DONE]\n\n"...)
	}
	return dst
}

func (e *events) appendClose(dst []byte) []byte {
	return append(append(dst, e.usage...), "}\n\n"...)
}
