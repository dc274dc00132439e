package sim

import "strings"

// contentFinish is why a candidate ended.
func (g *generation) contentFinish() string {
	switch {
	case g.finish != "":
		return strings.ToUpper(g.finish)
	case g.bounded:
		return "MAX_TOKENS"
	default:
		return "STOP"
	}
}

// appendContent writes generated content as one JSON object.
func (g *generation) appendContent(dst []byte) []byte {
	dst = append(dst, `{"candidates":[`...)
	shown := g.made.output - g.made.reasoning
	for i := range int64(g.choices) {
		if i > 0 {
			dst = append(dst, ',')
		}
		words := shown*(i+1)/int64(g.choices) - shown*i/int64(g.choices)
		dst = appendWords(append(dst, `{"content":{"parts":[{"text":"`...), 0, words)
		dst = append(dst, `"}`...)
		if g.usesTool() {
			dst = g.appendFunctionPart(append(dst, ','))
		}
		dst = append(append(dst, `],"role":"model"},"finishReason":"`...), g.contentFinish()...)
		dst = append(appendInt(append(dst, `","index":`...), i), '}')
	}
	return append(g.appendContentEnd(append(dst, ']'), true), '}')
}

func (g *generation) appendFunctionPart(dst []byte) []byte {
	dst = appendQuoted(append(dst, `{"functionCall":{"name":`...), g.tool.name)
	return append(dst, `,"args":`+toolArguments+`}}`...)
}

// appendContentEnd writes what stands beside the candidates. The figures of a stream that goes on are those of the prompt.
func (g *generation) appendContentEnd(dst []byte, whole bool) []byte {
	if !g.noUsage {
		u := g.usage
		dst = appendInt(append(dst, `,"usageMetadata":{"promptTokenCount":`...), u.input)
		total := u.input
		if whole {
			total += u.output
			dst = appendInt(append(dst, `,"candidatesTokenCount":`...), u.output-u.reasoning)
			if u.reasoning > 0 {
				dst = appendInt(append(dst, `,"thoughtsTokenCount":`...), u.reasoning)
			}
		}
		dst = appendInt(append(dst, `,"totalTokenCount":`...), total)
		dst = appendInt(append(dst, `,"promptTokensDetails":[{"modality":"TEXT","tokenCount":`...), u.input)
		dst = append(dst, "}]"...)
		if u.cached > 0 {
			dst = appendInt(append(dst, `,"cachedContentTokenCount":`...), u.cached)
			dst = append(appendInt(append(dst, `,"cacheTokensDetails":[{"modality":"TEXT","tokenCount":`...), u.cached), "}]"...)
		}
		dst = append(dst, '}')
	}
	dst = append(append(dst, `,"modelVersion":"`...), models[g.modelAt].name...)
	return append(append(append(dst, `","responseId":"`...), answerID(g.does, g.key)...), '"')
}

// contentEvents writes the events of generated content: server-sent ones, with the line ends that Google's servers use, or the
// elements of a list.
type contentEvents struct {
	g       *generation
	started bool // an element was written
}

func (e *contentEvents) begin(dst []byte) []byte {
	switch {
	case !e.g.list:
		return append(dst, "data: "...)
	case e.started:
		return append(dst, ",\r\n"...)
	default:
		e.started = true
		return append(dst, '[')
	}
}

func (e *contentEvents) close(dst []byte) []byte {
	if e.g.list {
		return append(dst, "}\n"...)
	}
	return append(dst, "}\r\n\r\n"...)
}

func (e *contentEvents) appendStart(dst []byte) []byte { return dst }

func (e *contentEvents) appendPiece(dst []byte, choice int, from, to int64) []byte {
	dst = appendWords(append(e.begin(dst), `{"candidates":[{"content":{"parts":[{"text":"`...), from, to)
	dst = append(appendInt(append(dst, `"}],"role":"model"},"index":`...), int64(choice)), "}]"...)
	return e.close(e.g.appendContentEnd(dst, false))
}

// appendEnd writes each candidate's end with the call of a function, and the final figures.
func (e *contentEvents) appendEnd(dst []byte) []byte {
	g := e.g
	if g.noDone {
		return dst
	}
	dst = append(e.begin(dst), `{"candidates":[`...)
	for i := range g.choices {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"content":{"parts":[`...)
		if g.usesTool() {
			dst = g.appendFunctionPart(dst)
		} else {
			dst = append(dst, `{"text":""}`...)
		}
		dst = append(append(dst, `],"role":"model"},"finishReason":"`...), g.contentFinish()...)
		dst = append(appendInt(append(dst, `","index":`...), int64(i)), '}')
	}
	dst = e.close(g.appendContentEnd(append(dst, ']'), true))
	if g.list {
		dst = append(dst, "]\n"...)
	}
	return dst
}

// appendError writes what ends a stream instead.
func (e *contentEvents) appendError(dst []byte) []byte {
	failed := &apiError{status: 503, message: "The model is overloaded. Please try again later."}
	dst = appendGeminiError(e.begin(dst), failed)
	if e.g.list {
		return append(dst, "]\n"...)
	}
	return append(dst, "\r\n\r\n"...)
}
