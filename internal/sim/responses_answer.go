package sim

// responseStatus is how a response ended, and why where it is not complete.
func (g *generation) responseStatus() (status, reason string) {
	switch {
	case g.finish != "":
		return "incomplete", g.finish
	case g.usesTool():
		return "completed", ""
	case g.bounded:
		return "incomplete", "max_output_tokens"
	default:
		return "completed", ""
	}
}

// appendResponse writes a whole response as one JSON object.
func (g *generation) appendResponse(dst []byte) []byte {
	status, reason := g.responseStatus()
	return append(g.appendResponseObject(dst, status, reason), '\n')
}

// appendResponseObject writes the response in a state. One that is in progress has neither output nor usage.
func (g *generation) appendResponseObject(dst []byte, status, reason string) []byte {
	dst = append(append(append(dst, `{"id":"`...), answerID(g.does, g.key)...), `","object":"response","created_at":`...)
	dst = append(append(append(appendInt(dst, g.created), `,"status":"`...), status...), `","background":false,"error":`...)
	if status == "failed" {
		dst = append(dst, `{"code":"server_error","message":"The model failed to generate a response."}`...)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"incomplete_details":`...)
	if reason != "" {
		dst = append(append(append(dst, `{"reason":"`...), reason...), `"}`...)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"instructions":null,"max_output_tokens":null,"max_tool_calls":null,"model":"`...)
	dst = append(append(dst, models[g.modelAt].name...), `","output":[`...)
	ended := status == "completed" || status == "incomplete"
	if ended {
		dst = g.appendOutput(dst)
	}
	dst = append(dst, `],"parallel_tool_calls":true,"previous_response_id":`...)
	dst = appendOrNull(dst, g.previous)
	dst = append(dst, `,"prompt_cache_key":null,"reasoning":{"effort":null,"summary":null},"safety_identifier":null,"service_tier":"default","store":true,`...)
	dst = append(dst, `"temperature":1.0,"text":{"format":{"type":"text"},"verbosity":"medium"},"tool_choice":"auto","tools":[],"top_logprobs":0,`...)
	dst = append(dst, `"top_p":1.0,"truncation":"disabled","usage":`...)
	if ended && !g.noUsage {
		dst = g.appendResponseUsage(dst)
	} else {
		dst = append(dst, "null"...)
	}
	return append(dst, `,"user":null,"metadata":{}}`...)
}

func (g *generation) appendResponseUsage(dst []byte) []byte {
	u := g.usage
	dst = appendInt(append(dst, `{"input_tokens":`...), u.input)
	dst = appendInt(append(dst, `,"input_tokens_details":{"cached_tokens":`...), u.cached)
	dst = appendInt(append(dst, `},"output_tokens":`...), u.output)
	dst = appendInt(append(dst, `,"output_tokens_details":{"reasoning_tokens":`...), u.reasoning)
	return append(appendInt(append(dst, `},"total_tokens":`...), u.input+u.output), '}')
}

// appendOutput writes the items of a whole response: what was thought, which is not shown, the text, and the call of a function.
func (g *generation) appendOutput(dst []byte) []byte {
	if g.made.reasoning > 0 {
		dst = append(g.appendReasoning(dst), ',')
	}
	dst = g.appendTextItem(dst, true)
	if g.usesTool() {
		dst = g.appendFunctionItem(append(dst, ','), true)
	}
	return dst
}

func (g *generation) appendReasoning(dst []byte) []byte {
	return append(append(append(dst, `{"id":"rs_`...), g.key.String()...), `","type":"reasoning","summary":[]}`...)
}

// appendTextItem writes the item of the text: whole, or as it begins.
func (g *generation) appendTextItem(dst []byte, whole bool) []byte {
	dst = append(append(append(dst, `{"id":"`...), g.textID()...), `","type":"message","status":"`...)
	if !whole {
		return append(dst, `in_progress","content":[],"role":"assistant"}`...)
	}
	return append(g.appendTextPart(append(dst, `completed","content":[`...), g.made.output-g.made.reasoning), `],"role":"assistant"}`...)
}

func (g *generation) textID() string { return "msg_" + g.key.String() }

// appendTextPart writes the text of so many words.
func (g *generation) appendTextPart(dst []byte, words int64) []byte {
	dst = appendWords(append(dst, `{"type":"output_text","annotations":[],"logprobs":[],"text":"`...), 0, words)
	return append(dst, `"}`...)
}

func (g *generation) functionID() string { return "fc_" + g.key.String() }

// appendFunctionItem writes the item of a function's call: whole, or as it begins.
func (g *generation) appendFunctionItem(dst []byte, whole bool) []byte {
	status, arguments := "in_progress", ""
	if whole {
		status, arguments = "completed", toolArguments
	}
	dst = append(append(append(dst, `{"id":"`...), g.functionID()...), `","type":"function_call","status":"`...)
	dst = append(append(append(dst, status...), `","call_id":"call_`...), g.key.String()...)
	dst = appendQuoted(append(dst, `","name":`...), g.tool.name)
	return append(appendQuoted(append(dst, `,"arguments":`...), arguments), '}')
}

// responseEvents writes the server-sent events of one response, which are numbered.
type responseEvents struct {
	g        *generation
	sequence int64
}

// begin begins an event.
func (e *responseEvents) begin(dst []byte, name string) []byte {
	dst = appendInt(append(appendNamed(dst, name), `,"sequence_number":`...), e.sequence)
	e.sequence++
	return dst
}

// item begins an event about the item of an index.
func (e *responseEvents) item(dst []byte, name, id string, index int64) []byte {
	dst = appendInt(append(e.begin(dst, name), `,"output_index":`...), index)
	if id != "" {
		dst = append(append(append(dst, `,"item_id":"`...), id...), '"')
	}
	return dst
}

// text is the index of the item of the text.
func (e *responseEvents) text() int64 {
	if e.g.made.reasoning > 0 {
		return 1
	}
	return 0
}

// appendStart writes the response as it begins, what was thought, and the opening of the text.
func (e *responseEvents) appendStart(dst []byte) []byte {
	g := e.g
	for _, name := range []string{"response.created", "response.in_progress"} {
		dst = append(g.appendResponseObject(append(e.begin(dst, name), `,"response":`...), "in_progress", ""), "}\n\n"...)
	}
	if g.made.reasoning > 0 {
		for _, name := range []string{"response.output_item.added", "response.output_item.done"} {
			dst = append(g.appendReasoning(append(e.item(dst, name, "", 0), `,"item":`...)), "}\n\n"...)
		}
	}
	dst = append(g.appendTextItem(append(e.item(dst, "response.output_item.added", "", e.text()), `,"item":`...), false), "}\n\n"...)
	dst = append(e.item(dst, "response.content_part.added", g.textID(), e.text()), `,"content_index":0,"part":`...)
	return append(g.appendTextPart(dst, 0), "}\n\n"...)
}

func (e *responseEvents) appendPiece(dst []byte, _ int, from, to int64) []byte {
	dst = append(e.item(dst, "response.output_text.delta", e.g.textID(), e.text()), `,"content_index":0,"logprobs":[],"delta":"`...)
	return append(appendWords(dst, from, to), "\"}\n\n"...)
}

// appendEnd writes the text's end, the call of a function, and the whole response.
func (e *responseEvents) appendEnd(dst []byte) []byte {
	g, shown := e.g, e.g.made.output-e.g.made.reasoning
	dst = append(e.item(dst, "response.output_text.done", g.textID(), e.text()), `,"content_index":0,"logprobs":[],"text":"`...)
	dst = append(appendWords(dst, 0, shown), "\"}\n\n"...)
	dst = append(e.item(dst, "response.content_part.done", g.textID(), e.text()), `,"content_index":0,"part":`...)
	dst = append(g.appendTextPart(dst, shown), "}\n\n"...)
	dst = append(g.appendTextItem(append(e.item(dst, "response.output_item.done", "", e.text()), `,"item":`...), true), "}\n\n"...)
	if g.usesTool() {
		dst = e.appendFunction(dst, e.text()+1)
	}
	if g.noDone {
		return dst
	}
	status, reason := g.responseStatus()
	dst = append(e.begin(dst, "response."+status), `,"response":`...)
	return append(g.appendResponseObject(dst, status, reason), "}\n\n"...)
}

func (e *responseEvents) appendFunction(dst []byte, index int64) []byte {
	g := e.g
	dst = append(g.appendFunctionItem(append(e.item(dst, "response.output_item.added", "", index), `,"item":`...), false), "}\n\n"...)
	dst = append(e.item(dst, "response.function_call_arguments.delta", g.functionID(), index), `,"delta":`...)
	dst = append(appendQuoted(dst, toolArguments), "}\n\n"...)
	dst = append(e.item(dst, "response.function_call_arguments.done", g.functionID(), index), `,"arguments":`...)
	dst = append(appendQuoted(dst, toolArguments), "}\n\n"...)
	return append(g.appendFunctionItem(append(e.item(dst, "response.output_item.done", "", index), `,"item":`...), true), "}\n\n"...)
}

// appendError writes what ends a stream instead.
func (e *responseEvents) appendError(dst []byte) []byte {
	dst = append(e.begin(dst, "response.failed"), `,"response":`...)
	return append(e.g.appendResponseObject(dst, "failed", ""), "}\n\n"...)
}
