package sim

import (
	"net/http"
	"strconv"
	"time"
)

// generation is one text answer, of chat or of a legacy completion, with all that is settled before its first byte.
type generation struct {
	ask
	behaviour
	call    *call
	key     answerKey
	made    usage // what it takes if nobody interrupts it
	usage   usage // what of that is told and billed
	choices int   // all of them, over all prompts
	pieces  int   // chunks with text over all choices
	bounded bool  // the request allows no more
	created int64
}

// finishReason is why a choice ended.
func (g *generation) finishReason() string {
	switch {
	case g.finish != "":
		return g.finish
	case g.usesTool():
		return "tool_calls"
	case g.bounded:
		return "length"
	default:
		return "stop"
	}
}

// whole is the answer as one JSON object.
func (g *generation) appendWhole(dst []byte) []byte {
	switch g.does {
	case endpointMessages:
		return g.appendMessage(dst)
	case endpointResponses:
		return g.appendResponse(dst)
	case endpointGenerate:
		return append(g.appendContent(dst), '\n')
	default:
		return g.appendPlain(dst)
	}
}

// narration writes the events of a stream.
type narration interface {
	appendStart(dst []byte) []byte
	appendPiece(dst []byte, choice int, from, to int64) []byte // a chunk of text
	appendEnd(dst []byte) []byte
	appendError(dst []byte) []byte // instead of the end
}

func (g *generation) narration() narration {
	switch g.does {
	case endpointMessages:
		return newMessageEvents(g)
	case endpointResponses:
		return &responseEvents{g: g}
	case endpointGenerate:
		return &contentEvents{g: g}
	default:
		return newEvents(g)
	}
}

func (s *Server) serveChat(w http.ResponseWriter, c *call) *apiError {
	body, refused := readBody(c.request)
	if refused != nil {
		return refused
	}
	f := readFields(body)
	a, refused := readAsk(&f, endpointChat)
	if refused != nil {
		return refused
	}
	if refused = a.readMessages(f.messages, f.counted); refused != nil {
		return refused
	}
	if refused = a.readGeneration(&f); refused != nil {
		return refused
	}
	a.tool = chatTool(body)
	return s.generate(w, c, a, int(a.choices))
}

func (s *Server) serveCompletions(w http.ResponseWriter, c *call) *apiError {
	body, refused := readBody(c.request)
	if refused != nil {
		return refused
	}
	f := readFields(body)
	a, refused := readAsk(&f, endpointCompletions)
	if refused != nil {
		return refused
	}
	if !f.prompt.Exists() {
		return missing("prompt")
	}
	var ok bool
	if a.inputs, ok = readInputs(f.prompt); !ok {
		return badRequest("Invalid type for 'prompt'.", "prompt", "invalid_type")
	}
	a.tokens = a.inputs.tokens
	if refused = a.readGeneration(&f); refused != nil {
		return refused
	}
	return s.generate(w, c, a, int(a.choices)*a.inputs.count)
}

// generate answers a request that is in order.
func (s *Server) generate(w http.ResponseWriter, c *call, a ask, choices int) *apiError {
	b, refused := s.resolve(c, a.inputs.last)
	if refused != nil {
		return refused
	}
	perChoice, bounded := s.cfg.OutputTokens, false
	if a.maxOutput != unset && a.maxOutput < perChoice {
		perChoice, bounded = a.maxOutput, true
	}
	u, err := b.usage(usage{input: a.tokens, output: perChoice * int64(choices)})
	if err != nil {
		return badRequest("simulator: "+err.Error(), "", "invalid_setting")
	}
	if a.thinks && b.reasoning == unset {
		u.reasoning = u.output / 4
	}
	g := generation{
		ask: a, behaviour: b, call: c, key: newAnswerKey(), made: u, usage: b.charged(u), choices: choices, pieces: choices * b.chunks,
		bounded: bounded, created: c.received.Unix(),
	}
	here := wait(c.request.Context(), c.started, b.latency)
	if a.keep && b.status == 0 {
		s.kept.add(&g)
	}
	switch {
	case b.status != 0:
		if !here {
			return nil // nobody to tell, nothing to bill
		}
		return b.refusal()
	case a.stream:
		s.stream(w, &g, here)
	default:
		s.plain(w, &g, here)
	}
	return nil
}

// after is what has been used once so many chunks with text were written: all input, and of the output nothing before the
// first chunk, then all reasoning and an even share of the text.
func (g *generation) after(written int) usage {
	u := g.made
	if written == 0 {
		u.output, u.reasoning = 0, 0
	} else {
		u.output = u.reasoning + g.shownAfter(written)
	}
	return g.charged(u)
}

// shownAfter is how many tokens of text the first so many chunks hold together.
func (g *generation) shownAfter(written int) int64 {
	return (g.made.output - g.made.reasoning) * int64(written) / int64(g.pieces)
}

func (s *Server) plain(w http.ResponseWriter, g *generation, here bool) {
	outcome := complete
	switch {
	case !here:
		outcome = clientLeft
	case g.cutAfter != unset:
		outcome = cut
	}
	s.bill(g.call, g.modelAt, g.does, g.key, g.usage, outcome)
	if !here {
		return
	}
	if g.cutAfter == 0 {
		panic(http.ErrAbortHandler)
	}
	buffer := takeBuffer()
	defer giveBack(buffer)
	*buffer = g.appendWhole(*buffer)
	header := w.Header()
	header["Content-Type"] = jsonType
	g.does.manner().describe(header, g.call, g.usage.input+g.usage.output)
	if outcome == cut {
		sendHalf(w, *buffer)
	}
	send(w, http.StatusOK, *buffer)
}

// sendHalf announces a body, sends half of it and closes the connection.
func sendHalf(w http.ResponseWriter, body []byte) {
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body[:len(body)/2])
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler) // net/http then closes the connection without an end of the body
}

// stream writes the answer as server-sent events, one flush for each chunk.
func (s *Server) stream(w http.ResponseWriter, g *generation, here bool) {
	if !here {
		s.bill(g.call, g.modelAt, g.does, g.key, g.after(0), clientLeft)
		return
	}
	if g.cutAfter == 0 {
		s.bill(g.call, g.modelAt, g.does, g.key, g.after(0), cut)
		panic(http.ErrAbortHandler)
	}
	header := w.Header()
	header["Content-Type"] = streamType
	if g.list {
		header["Content-Type"] = jsonType
	}
	header["Cache-Control"] = noCache
	g.does.manner().describe(header, g.call, g.usage.input+g.usage.output)
	w.WriteHeader(http.StatusOK)

	buffer := takeBuffer()
	defer giveBack(buffer)
	out := eventWriter{w: w, flush: http.NewResponseController(w)}
	events := g.narration()
	written, outcome := out.run(g, events, buffer)
	if outcome != complete {
		s.bill(g.call, g.modelAt, g.does, g.key, g.after(written), outcome)
		switch outcome {
		case cut:
			panic(http.ErrAbortHandler)
		case failed:
			*buffer = events.appendError((*buffer)[:0])
			_ = out.write(*buffer) // billed already: a reader that left now changes nothing
		}
		return
	}
	if g.call.request.Context().Err() != nil {
		outcome = clientLeft // all of it was generated, its end was not heard
	}
	s.bill(g.call, g.modelAt, g.does, g.key, g.usage, outcome)
	*buffer = events.appendEnd((*buffer)[:0])
	_ = out.write(*buffer) // billed as a whole: a reader that left now changes nothing
}

type eventWriter struct {
	w     http.ResponseWriter
	flush *http.ResponseController
}

func (o *eventWriter) write(event []byte) error {
	if _, err := o.w.Write(event); err != nil {
		return err
	}
	return o.flush.Flush()
}

// run writes everything up to the last chunk with text. It returns how many of those were written.
func (o *eventWriter) run(g *generation, events narration, buffer *[]byte) (written int, outcome uint8) {
	ctx := g.call.request.Context()
	*buffer = events.appendStart((*buffer)[:0])
	if len(*buffer) > 0 {
		if o.write(*buffer) != nil {
			return 0, clientLeft
		}
	}
	for written < g.pieces {
		if written == g.errorAfter {
			return written, failed
		}
		if written > 0 && !wait(ctx, time.Now(), g.chunkDelay) || ctx.Err() != nil {
			return written, clientLeft
		}
		from, to := g.shownAfter(written), g.shownAfter(written+1)
		*buffer = events.appendPiece((*buffer)[:0], written%g.choices, from, to)
		if o.write(*buffer) != nil {
			return written, clientLeft
		}
		written++
		if written == g.cutAfter {
			return written, cut
		}
	}
	return written, complete
}
