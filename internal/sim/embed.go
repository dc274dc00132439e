package sim

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// The lengths of the vectors of each model; the third generation can be asked for shorter ones.
var dimensions = map[string]int{
	"text-embedding-3-small": 1536, "text-embedding-3-large": 3072, "text-embedding-ada-002": 1536,
}

func (s *Server) serveEmbeddings(w http.ResponseWriter, c *call) *apiError {
	body, refused := readBody(c.request)
	if refused != nil {
		return refused
	}
	f := readFields(body)
	a, refused := readAsk(&f, endpointEmbeddings)
	if refused != nil {
		return refused
	}
	if refused = a.readEmbedding(&f); refused != nil {
		return refused
	}
	b, refused := s.resolve(c, a.inputs.last)
	if refused != nil {
		return refused
	}
	b.completion, b.reasoning = unset, unset // vectors are no tokens
	u, err := b.usage(usage{input: a.inputs.tokens})
	if err != nil {
		return badRequest("simulator: "+err.Error(), "", "invalid_setting")
	}
	here := wait(c.request.Context(), c.started, b.latency)
	if b.status != 0 {
		if !here {
			return nil
		}
		return b.refusal()
	}
	s.embed(w, c, &a, &b, b.charged(u), here)
	return nil
}

func (a *ask) readEmbedding(f *fields) *apiError {
	if !f.input.Exists() {
		return missing("input")
	}
	var ok bool
	if a.inputs, ok = readInputs(f.input); !ok || a.inputs.tokens == 0 {
		return badRequest("'$.input' is invalid. Please check the API reference: "+
			"https://platform.openai.com/docs/api-reference.", "", "")
	}
	if a.inputs.count > 2048 {
		return badRequest("'$.input' is invalid: at most 2048 inputs in one request.", "", "")
	}
	name := models[a.modelAt].name
	full := int64(dimensions[name])
	n, refused := whole(f.dimensions, "dimensions", full, 1, full)
	if refused != nil {
		return refused
	}
	if f.dimensions.Exists() && name == "text-embedding-ada-002" {
		return badRequest("This model does not support specifying dimensions.", "", "")
	}
	a.dimensions = int(n)
	switch f.encodingFormat.String() {
	case "base64":
		a.base64 = true
	case "", "float":
	default:
		return badRequest("Invalid 'encoding_format': expected 'float' or 'base64'.", "encoding_format", "invalid_value")
	}
	return nil
}

// embed bills and writes the vectors. As with any plain answer, it is billed as a whole whoever hears it.
func (s *Server) embed(w http.ResponseWriter, c *call, a *ask, b *behaviour, u usage, here bool) {
	outcome := complete
	switch {
	case !here:
		outcome = clientLeft
	case b.cutAfter != unset:
		outcome = cut
	}
	s.bill(c, a.modelAt, endpointEmbeddings, newAnswerKey(), u, outcome)
	if !here {
		return
	}
	if b.cutAfter == 0 {
		panic(http.ErrAbortHandler)
	}
	buffer := takeBuffer()
	defer giveBack(buffer)
	dst := append(*buffer, `{"object":"list","data":[`...)
	vector := s.vectors.text(a.dimensions, a.base64)
	for i := range a.inputs.count {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendInt(append(dst, `{"object":"embedding","index":`...), int64(i))
		dst = append(append(append(dst, `,"embedding":`...), vector...), '}')
	}
	dst = append(append(append(dst, `],"model":"`...), models[a.modelAt].name...), '"')
	if !b.noUsage {
		dst = appendInt(append(dst, `,"usage":{"prompt_tokens":`...), u.input)
		dst = append(appendInt(append(dst, `,"total_tokens":`...), u.input), '}')
	}
	*buffer = append(dst, "}\n"...)
	header := w.Header()
	header["Content-Type"] = jsonType
	describeOpenAI(header, c, u.input)
	if outcome == cut {
		sendHalf(w, *buffer)
	}
	send(w, http.StatusOK, *buffer)
}

// vectors keeps the JSON of the one vector that is served for each length, so that an answer costs a copy. Safe for
// concurrent use.
type vectors struct {
	mu    sync.Mutex
	texts map[vectorForm]string
}

type vectorForm struct {
	dimensions int
	base64     bool
}

func (v *vectors) text(dimensions int, asBase64 bool) string {
	form := vectorForm{dimensions, asBase64}
	v.mu.Lock()
	defer v.mu.Unlock()
	text, known := v.texts[form]
	if !known {
		if v.texts == nil {
			v.texts = map[vectorForm]string{}
		}
		text = vectorText(form)
		v.texts[form] = text
	}
	return text
}

// vectorText is a vector of length one whose components differ in sign alone.
func vectorText(form vectorForm) string {
	size := float32(1 / math.Sqrt(float64(form.dimensions)))
	if form.base64 {
		raw := make([]byte, 0, 4*form.dimensions)
		for i := range form.dimensions {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(signed(size, i)))
		}
		return `"` + base64.StdEncoding.EncodeToString(raw) + `"`
	}
	var b strings.Builder
	for i := range form.dimensions {
		b.WriteByte("[,"[min(i, 1)])
		b.WriteString(strconv.FormatFloat(float64(signed(size, i)), 'g', -1, 32))
	}
	b.WriteByte(']')
	return b.String()
}

func signed(size float32, i int) float32 {
	if i%3 == 1 {
		return -size
	}
	return size
}

// serveModels lists the models, or shows the one at the end of the path.
func (s *Server) serveModels(w http.ResponseWriter, c *call) *apiError {
	name, one := strings.CutPrefix(c.request.URL.Path, "/v1/models/")
	var body []byte
	if one {
		at, known := modelIndex[name]
		if !known || models[at].does.manner().provider != openAI.provider {
			return unknownModel(name)
		}
		body = appendModel(body, name, models[at].created)
	} else {
		body = append(body, `{"object":"list","data":[`...)
		for i, m := range models {
			if m.does.manner().provider != openAI.provider {
				continue
			}
			if i > 0 { // the first is OpenAI's
				body = append(body, ',')
			}
			body = appendModel(body, m.alias, m.created)
			if m.name != m.alias {
				body = appendModel(append(body, ','), m.name, m.created)
			}
		}
		body = append(body, "]}"...)
	}
	w.Header()["Content-Type"] = jsonType
	send(w, http.StatusOK, append(body, '\n'))
	return nil
}

func appendModel(dst []byte, name string, created int64) []byte {
	dst = append(append(append(dst, `{"id":"`...), name...), `","object":"model","created":`...)
	return append(appendInt(dst, created), `,"owned_by":"system"}`...)
}
