package sim

// messageFinish is why a message ended.
func (g *generation) messageFinish() string {
	switch {
	case g.behaviour.finish != "":
		return g.behaviour.finish
	case g.usesTool():
		return "tool_use"
	case g.bounded:
		return "max_tokens"
	default:
		return "end_turn"
	}
}

// appendMessage writes a whole message as one JSON object.
func (g *generation) appendMessage(dst []byte) []byte {
	dst = append(g.appendMessageHead(append(dst, '{')), `,"content":[`...)
	shown := g.made.output - g.made.reasoning
	if g.made.reasoning > 0 {
		dst = append(appendWords(append(dst, `{"type":"thinking","thinking":"`...), 0, g.made.reasoning), `","signature":"c2ln"},`...)
	}
	dst = append(appendWords(append(dst, `{"type":"text","text":"`...), 0, shown), `"}`...)
	if g.usesTool() {
		dst = append(g.appendTool(append(dst, ',')), `,"input":`+toolArguments+`}`...)
	}
	dst = append(append(append(dst, `],"stop_reason":"`...), g.messageFinish()...), `","stop_sequence":null`...)
	if !g.noUsage {
		dst = g.appendMessageUsage(append(dst, `,"usage":`...), g.usage, true)
	}
	return append(dst, "}\n"...)
}

func (g *generation) appendMessageHead(dst []byte) []byte {
	dst = append(append(append(dst, `"id":"`...), answerID(g.does, g.key)...), `","type":"message","role":"assistant","model":"`...)
	return append(append(dst, models[g.modelAt].name...), '"')
}

// appendTool begins the call of a tool.
func (g *generation) appendTool(dst []byte) []byte {
	dst = append(append(append(dst, `{"type":"tool_use","id":"toolu_`...), g.key.String()...), `","name":`...)
	return appendQuoted(dst, g.tool.name)
}

// appendMessageUsage writes a usage object: input is what no cache had to do with. The figures at the end of a stream do not
// split what was written to caches.
func (g *generation) appendMessageUsage(dst []byte, u usage, split bool) []byte {
	dst = appendInt(append(dst, `{"input_tokens":`...), u.plain())
	dst = appendInt(append(dst, `,"cache_creation_input_tokens":`...), u.write5m+u.write1h)
	dst = appendInt(append(dst, `,"cache_read_input_tokens":`...), u.cached)
	if split {
		dst = appendInt(append(dst, `,"cache_creation":{"ephemeral_5m_input_tokens":`...), u.write5m)
		dst = append(appendInt(append(dst, `,"ephemeral_1h_input_tokens":`...), u.write1h), '}')
	}
	dst = appendInt(append(dst, `,"output_tokens":`...), u.output)
	if u.reasoning > 0 {
		dst = append(appendInt(append(dst, `,"output_tokens_details":{"thinking_tokens":`...), u.reasoning), '}')
	}
	if split {
		dst = append(dst, `,"service_tier":"standard"`...)
	}
	return append(dst, '}')
}

// messageEvents writes the server-sent events of one message: thinking, text, and the call of a tool, a block each.
type messageEvents struct {
	g    *generation
	text int64 // index of the block of text
}

func newMessageEvents(g *generation) messageEvents {
	if g.made.reasoning > 0 {
		return messageEvents{g, 1}
	}
	return messageEvents{g, 0}
}

// appendNamed begins an event.
func appendNamed(dst []byte, name string) []byte {
	dst = append(append(append(dst, "event: "...), name...), "\ndata: {\"type\":\""...)
	return append(append(dst, name...), '"')
}

// appendBlock begins an event about the block of an index.
func appendBlock(dst []byte, name string, index int64) []byte {
	return appendInt(append(appendNamed(dst, name), `,"index":`...), index)
}

func appendStop(dst []byte, index int64) []byte {
	return append(appendBlock(dst, "content_block_stop", index), "}\n\n"...)
}

// appendStart writes the message's head, all of the thinking, and the opening of the text.
func (e messageEvents) appendStart(dst []byte) []byte {
	g := e.g
	dst = g.appendMessageHead(append(appendNamed(dst, "message_start"), `,"message":{`...))
	dst = append(dst, `,"content":[],"stop_reason":null,"stop_sequence":null`...)
	if !g.noUsage {
		first := g.usage
		first.output, first.reasoning = min(first.output, 1), 0
		dst = g.appendMessageUsage(append(dst, `,"usage":`...), first, true)
	}
	dst = append(dst, "}}\n\n"...)
	if g.made.reasoning > 0 {
		dst = append(appendBlock(dst, "content_block_start", 0), `,"content_block":{"type":"thinking","thinking":"","signature":""}}`+"\n\n"...)
		dst = append(appendBlock(dst, "content_block_delta", 0), `,"delta":{"type":"thinking_delta","thinking":"`...)
		dst = append(appendWords(dst, 0, g.made.reasoning), "\"}}\n\n"...)
		dst = append(appendBlock(dst, "content_block_delta", 0), `,"delta":{"type":"signature_delta","signature":"c2ln"}}`+"\n\n"...)
		dst = appendStop(dst, 0)
	}
	dst = append(appendBlock(dst, "content_block_start", e.text), `,"content_block":{"type":"text","text":""}}`+"\n\n"...)
	return append(appendNamed(dst, "ping"), "}\n\n"...)
}

func (e messageEvents) appendPiece(dst []byte, _ int, from, to int64) []byte {
	dst = append(appendBlock(dst, "content_block_delta", e.text), `,"delta":{"type":"text_delta","text":"`...)
	return append(appendWords(dst, from, to), "\"}}\n\n"...)
}

// appendEnd writes the call of a tool, and the final figures.
func (e messageEvents) appendEnd(dst []byte) []byte {
	g := e.g
	dst = appendStop(dst, e.text)
	if g.usesTool() {
		call := e.text + 1
		dst = g.appendTool(append(appendBlock(dst, "content_block_start", call), `,"content_block":`...))
		dst = append(dst, `,"input":{}}}`+"\n\n"...)
		dst = append(appendBlock(dst, "content_block_delta", call), `,"delta":{"type":"input_json_delta","partial_json":"{\"word\":\"meter\"}"}}`+"\n\n"...)
		dst = appendStop(dst, call)
	}
	dst = append(append(appendNamed(dst, "message_delta"), `,"delta":{"stop_reason":"`...), g.messageFinish()...)
	dst = append(dst, `","stop_sequence":null}`...)
	if !g.noUsage {
		dst = g.appendMessageUsage(append(dst, `,"usage":`...), g.usage, false)
	}
	dst = append(dst, "}\n\n"...)
	if !g.noDone {
		dst = append(appendNamed(dst, "message_stop"), "}\n\n"...)
	}
	return dst
}

// appendError writes what ends a stream instead.
func (e messageEvents) appendError(dst []byte) []byte {
	dst = append(dst, "event: error\ndata: "...)
	return append(appendAnthropicError(dst, overloaded, "Overloaded"), "}\n\n"...)
}
