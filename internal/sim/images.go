package sim

import "net/http"

const (
	tokensPerDrawn = 272 // of an image of low quality
	// onePixel is a PNG of one pixel, in base64.
	onePixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)

// serveImages answers with images, all of them the same.
func (s *Server) serveImages(w http.ResponseWriter, c *call) *apiError {
	body, refused := readBody(c.request)
	if refused != nil {
		return refused
	}
	f := readFields(body)
	a, refused := readAsk(&f, endpointImages)
	if refused != nil {
		return refused
	}
	if f.prompt.Str == "" {
		return missing("prompt")
	}
	if a.choices, refused = whole(f.n, "n", 1, 1, 10); refused != nil {
		return refused
	}
	b, refused := s.resolve(c, f.prompt.Str)
	if refused != nil {
		return refused
	}
	u, err := b.usage(usage{input: countText(f.prompt.Str), output: tokensPerDrawn * a.choices})
	if err != nil {
		return badRequest("simulator: "+err.Error(), "", "invalid_setting")
	}
	here := wait(c.request.Context(), c.started, b.latency)
	if b.status != 0 {
		return b.refusal()
	}
	outcome := complete
	if !here {
		outcome = clientLeft
	}
	s.bill(c, a.modelAt, endpointImages, newAnswerKey(), b.charged(u), outcome)
	dst := append(appendInt([]byte(`{"created":`), c.received.Unix()), `,"background":"opaque","output_format":"png","quality":"low","size":"1024x1024","data":[`...)
	for i := range a.choices {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"b64_json":"`+onePixel+`"}`...)
	}
	dst = append(dst, ']')
	if !b.noUsage {
		dst = b.charged(u).appendDrawn(append(dst, `,"usage":`...))
	}
	w.Header()["Content-Type"] = jsonType
	send(w, http.StatusOK, append(dst, "}\n"...))
	return nil
}

func (u usage) appendDrawn(dst []byte) []byte {
	dst = appendInt(append(dst, `{"input_tokens":`...), u.input)
	dst = appendInt(append(dst, `,"input_tokens_details":{"image_tokens":0,"text_tokens":`...), u.input)
	dst = appendInt(append(dst, `},"output_tokens":`...), u.output)
	return append(appendInt(append(dst, `,"total_tokens":`...), u.input+u.output), '}')
}
