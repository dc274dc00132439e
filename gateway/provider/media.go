package provider

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"tollgate/ledger"
)

// form is a multipart body, read as far as metering needs it.
type form struct {
	boundary string
	files    []file
}

// file is what is known of an uploaded file: its size and how it begins.
type file struct {
	field string
	size  int64
	head  []byte
}

// formHead is how much of a file is looked at.
const formHead = 64 << 10

// readForm finds the fields of a multipart body. One that stands twice is an error, as it is in JSON; lists of files are none.
func readForm(contentType string, body []byte) (*form, map[string]gjson.Result, error) {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return nil, nil, &RequestError{"", "the body must be multipart/form-data"}
	}
	f, found := &form{boundary: params["boundary"]}, map[string]gjson.Result{}
	parts := multipart.NewReader(bytes.NewReader(body), f.boundary)
	for {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			return f, found, nil
		}
		if err != nil {
			return nil, nil, &RequestError{"", "the body is not valid multipart/form-data"}
		}
		head, err := io.ReadAll(io.LimitReader(part, formHead))
		if err != nil {
			return nil, nil, &RequestError{"", "the body is not valid multipart/form-data"}
		}
		name := part.FormName()
		switch {
		case name == "" || len(part.Header["Content-Disposition"]) != 1:
			// Others read a name where Go finds none, such as in a part that is an attachment.
			return nil, nil, &RequestError{"", "a part of the body has no name, or more than one"}
		case part.FileName() != "" && name == "model":
			return nil, nil, &RequestError{name, "must be a text, not a file"}
		}
		if part.FileName() != "" {
			rest, err := io.Copy(io.Discard, part)
			if err != nil {
				return nil, nil, &RequestError{name, "the file is cut"}
			}
			f.files = append(f.files, file{strings.TrimSuffix(name, "[]"), int64(len(head)) + rest, head})
			continue
		}
		if _, twice := found[name]; twice && !strings.HasSuffix(name, "[]") {
			return nil, nil, &RequestError{name, "the field stands twice in the body"}
		}
		quoted, err := json.Marshal(string(head))
		if err != nil {
			return nil, nil, &RequestError{name, "must be a text"}
		}
		found[name] = gjson.ParseBytes(quoted)
	}
}

// withModel is the body with another name for the model, or with one at all; the rest is written as it was.
func (f *form) withModel(body []byte, model string) ([]byte, error) {
	var out bytes.Buffer
	w := multipart.NewWriter(&out)
	if err := w.SetBoundary(f.boundary); err != nil {
		return nil, fmt.Errorf("set model: %w", err)
	}
	named := false
	for parts := multipart.NewReader(bytes.NewReader(body), f.boundary); ; {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("set model: %w", err)
		}
		to, err := w.CreatePart(part.Header)
		if err != nil {
			return nil, fmt.Errorf("set model: %w", err)
		}
		from := io.Reader(part)
		if part.FormName() == "model" && part.FileName() == "" {
			from, named = strings.NewReader(model), true
		}
		if _, err := io.Copy(to, from); err != nil {
			return nil, fmt.Errorf("set model: %w", err)
		}
	}
	if !named {
		if err := w.WriteField("model", model); err != nil {
			return nil, fmt.Errorf("set model: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("set model: %w", err)
	}
	return out.Bytes(), nil
}

var mediaAPIs = []api{
	{Endpoint: Images, parse: parseImages, input: mediaInput, answer: answerImages, meter: newImageMeter},
	{Endpoint: ImageEdits, parse: parseImageEdits, input: editsInput, answer: answerImages, meter: newImageMeter},
	{Endpoint: Speech, parse: parseSpeech, input: mediaInput, answer: answerMedia, meter: newMediaMeter},
	{Endpoint: Transcriptions, parse: parseTranscript, input: heardInput, answer: answerMedia, meter: newMediaMeter},
	{Endpoint: Translations, parse: parseTranscript, input: heardInput, answer: answerMedia, meter: newMediaMeter},
	{Endpoint: Moderations, billing: unbilled, parse: parseMedia, input: mediaInput, answer: answerModeration, meter: newMediaMeter},
}

// parseMedia reads what requests without files have in common, and all of a moderation.
func parseMedia(endpoint Endpoint, call Call) (*Request, error) {
	found, err := fields(call.Body)
	if err != nil {
		return nil, err
	}
	return readMedia(&Request{Endpoint: endpoint, body: call.Body, found: found}, call)
}

// parseUpload reads what requests that carry files have in common: they are multipart.
func parseUpload(endpoint Endpoint, call Call) (*Request, error) {
	form, found, err := readForm(call.ContentType, call.Body)
	if err != nil {
		return nil, err
	}
	return readMedia(&Request{Endpoint: endpoint, body: call.Body, form: form, found: found}, call)
}

func readMedia(r *Request, call Call) (*Request, error) {
	r.UsageAsked = true // it comes unasked, where it comes
	if err := r.readNames(call); err != nil {
		return nil, err
	}
	stream := r.found["stream"]
	r.Stream = stream.IsBool() && stream.Bool() || stream.Str == "true" || r.found["stream_format"].Str == "sse"
	return r, nil
}

func parseImages(endpoint Endpoint, call Call) (*Request, error) {
	r, err := parseMedia(endpoint, call)
	if err != nil {
		return nil, err
	}
	r.Also = []ledger.Class{ledger.ClassOutputImage}
	return r, r.readImages()
}

func parseImageEdits(endpoint Endpoint, call Call) (*Request, error) {
	r, err := parseUpload(endpoint, call)
	if err != nil {
		return nil, err
	}
	r.Also = []ledger.Class{ledger.ClassOutputImage, ledger.ClassInputImage}
	return r, r.readImages()
}

func parseSpeech(endpoint Endpoint, call Call) (*Request, error) {
	r, err := parseMedia(endpoint, call)
	if err != nil {
		return nil, err
	}
	r.Also = []ledger.Class{ledger.ClassOutputAudio}
	r.choices, r.bound = 1, 1+speechPerToken*max(1, (estimateText(r.found["input"].Str)+99)/100)
	return r, nil
}

func parseTranscript(endpoint Endpoint, call Call) (*Request, error) {
	r, err := parseUpload(endpoint, call)
	if err != nil {
		return nil, err
	}
	r.Also = []ledger.Class{ledger.ClassInputAudio}
	r.choices, r.bound = 1, transcriptLeast+transcriptPerSecond*r.seconds()
	return r, nil
}

const (
	speechPerToken      = 8 // tokens of speech that a token of text becomes, at a slow pace
	transcriptPerSecond = 5
	transcriptLeast     = 100
)

// seconds is how long the uploaded audio is.
func (r *Request) seconds() (n int64) {
	for _, f := range r.form.files {
		n += audioSeconds(f.head, f.size)
	}
	return n
}

// readImages reads how many images are made, and what each has at most.
func (r *Request) readImages() error {
	r.choices = 1
	if n := r.found["n"]; given(n) {
		count, err := strconv.ParseInt(n.String(), 10, 64)
		if err != nil || count < 1 || count > maxChoices {
			return &RequestError{"n", fmt.Sprintf("must be a whole number from 1 to %d", maxChoices)}
		}
		r.choices = count
	}
	r.bound = imageTokens[r.found["quality"].Str]
	if r.bound == 0 {
		r.bound = imageTokens["high"]
	}
	return nil
}

// imageTokens is what an image has at most, by its quality, as OpenAI documents for its largest size; three partial images are
// in it.
var imageTokens = map[string]int64{"low": 408 + 300, "medium": 1584 + 300, "high": 6240 + 300}

// editedImage is the rule for images that are handed in to be edited.
var editedImage = tiles(65, 129)

// mediaInput adds up the texts of a request for images, speech, transcripts or moderations.
func mediaInput(e *estimator, r *Request) {
	for _, name := range []string{"prompt", "instructions"} {
		e.text(r.found[name].Str)
	}
	if input := r.found["input"]; input.Type == gjson.String {
		e.text(input.Str)
	} else if given(input) {
		e.value(input)
	}
}

// editsInput adds the images that are handed in.
func editsInput(e *estimator, r *Request) {
	mediaInput(e, r)
	for _, f := range r.form.files {
		w, h := imageSize(base64.StdEncoding.EncodeToString(f.head))
		e.guess(editedImage(w, h, ""))
		if r.found["input_fidelity"].Str == "high" {
			e.guess(imageTokens["high"])
		}
	}
}

// heardInput adds what is heard.
func heardInput(e *estimator, r *Request) {
	mediaInput(e, r)
	e.guess(r.seconds() * openAIAudio)
}

func answerMedia(body []byte, a *Answer) {
	found := gjson.GetManyBytes(body, "usage", "model", "id")
	a.Reading = readMediaUsage(found[0])
	a.Model, a.UpstreamID = name(found[1]), name(found[2])
}

// readMediaUsage reads a usage object that may tell seconds instead of tokens, which says nothing of tokens.
func readMediaUsage(usage gjson.Result) Reading {
	return readTotals(usage, "input_tokens", "output_tokens")
}

// answerImages takes what is made for images where nothing splits it.
func answerImages(body []byte, a *Answer) {
	answerMedia(body, a)
	a.Reading = asImages(a.Reading)
}

func asImages(r Reading) Reading {
	if r.State == ledger.UsageReported && r.Usage.OutputImage == 0 {
		r.Usage.OutputImage, r.Usage.Output = r.Usage.Output, 0
	}
	return r
}

// answerModeration is free, which its provider documents, and says nothing.
func answerModeration(body []byte, a *Answer) {
	answerMedia(body, a)
	a.Reading = Reading{State: ledger.UsageReportedZero}
}

// mediaMeter reads a stream of images, of speech or of a transcript.
type mediaMeter struct{ images, done bool }

func newMediaMeter() meter { return &mediaMeter{} }

func newImageMeter() meter { return &mediaMeter{images: true} }

// event takes the usage from the event that ends each image, the speech or the transcript.
func (m *mediaMeter) event(data []byte, a *Answer) (withhold, done bool) {
	if bytes.Equal(data, doneSentinel) {
		m.done = true
		return false, true
	}
	kind := gjson.GetBytes(data, "type").Str
	switch {
	case kind == "error":
		a.Finish, m.done = ledger.ReasonUpstreamFailed, true
	case strings.HasSuffix(kind, ".completed"), strings.HasSuffix(kind, ".done"):
		if r := readMediaUsage(gjson.GetBytes(data, "usage")); r.State != "" && wholeJSON(data) {
			if m.images {
				r = asImages(r)
			}
			a.Usage = a.Usage.Plus(r.Usage)
			// Zero is what each said; what one has wrong is wrong in the sum.
			if a.State == "" || a.State == ledger.UsageReportedZero || r.State == ledger.UsageInconsistent {
				a.State = r.State
			}
		}
		m.done = true
	case strings.HasSuffix(kind, deltaSuffix):
		a.Events++
		a.said.add(0, gjson.GetBytes(data, "delta").Str)
	}
	return false, m.done
}

func (*mediaMeter) close(*Answer) {}
