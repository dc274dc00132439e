package provider

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// formOf is a multipart body: a file, then fields as names and values in turn.
func formOf(t testing.TB, field, content string, fields ...string) Call {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	to, err := w.CreateFormFile(field, "a.bin")
	require.NoError(t, err)
	_, err = io.WriteString(to, content)
	require.NoError(t, err)
	for i := 0; i < len(fields); i += 2 {
		require.NoError(t, w.WriteField(fields[i], fields[i+1]))
	}
	require.NoError(t, w.Close())
	return Call{ContentType: w.FormDataContentType(), Body: b.Bytes()}
}

func TestParseMedia(t *testing.T) {
	t.Parallel()
	speech := strings.Repeat("x", 40*audioBytes) // forty seconds
	for name, c := range map[string]struct {
		endpoint Endpoint
		call     Call
		want     Estimate
		also     []ledger.Class
	}{
		"an image":      {Images, Call{Body: []byte(`{"model":"gpt-image-1","prompt":"Hello, world"}`)}, Estimate{Output: 6540, Bounded: true, Choices: 1}, []ledger.Class{ledger.ClassOutputImage}},
		"small images":  {Images, Call{Body: []byte(`{"model":"gpt-image-1","prompt":"Hello, world","n":3,"quality":"low"}`)}, Estimate{Output: 3 * 708, Bounded: true, Choices: 3}, []ledger.Class{ledger.ClassOutputImage}},
		"edited images": {ImageEdits, formOf(t, "image[]", "no image", "model", "gpt-image-1", "prompt", "Hello, world", "n", "2"), Estimate{Output: 2 * 6540, Bounded: true, Choices: 2}, []ledger.Class{ledger.ClassOutputImage, ledger.ClassInputImage}},
		"speech":        {Speech, Call{Body: []byte(`{"model":"gpt-4o-mini-tts","input":"Hello, world","voice":"x"}`)}, Estimate{Output: 25, Bounded: true, Choices: 1}, []ledger.Class{ledger.ClassOutputAudio}},
		"a transcript":  {Transcriptions, formOf(t, "file", speech, "model", "gpt-4o-transcribe"), Estimate{Output: 300, Bounded: true, Choices: 1}, []ledger.Class{ledger.ClassInputAudio}},
		"a translation": {Translations, formOf(t, "file", speech, "model", "gpt-4o-transcribe"), Estimate{Output: 300, Bounded: true, Choices: 1}, []ledger.Class{ledger.ClassInputAudio}},
		"a moderation":  {Moderations, Call{Body: []byte(`{"model":"omni-moderation-latest","input":["a","b"]}`)}, Estimate{}, nil},
	} {
		r, err := c.endpoint.Read(c.call)
		require.NoError(t, err, name)
		e := r.Estimate(r.Model)
		require.Positive(t, e.Input, name)
		c.want.Input, c.want.Exact = e.Input, e.Exact
		if name == "speech" {
			require.InDelta(t, float64(c.want.Output), float64(e.Output), 8, name)
			c.want.Output = e.Output
		}
		require.Equal(t, c.want, e, name)
		require.Equal(t, c.also, r.Also, name)
	}
	heard, err := Transcriptions.Read(formOf(t, "file", speech, "model", "gpt-4o-transcribe", "stream", "true"))
	require.NoError(t, err)
	require.True(t, heard.Stream)
	require.EqualValues(t, 40*openAIAudio, heard.Estimate("gpt-4o-transcribe").Input)
	for name, call := range map[string]Call{
		"no form":     {Body: []byte(`{"model":"m"}`), ContentType: "application/json"},
		"no boundary": {ContentType: "multipart/form-data"},
		"no model":    formOf(t, "file", "x"),
		"model twice": formOf(t, "file", "x", "model", "cheap", "model", "dear"),
		"cut":         {ContentType: "multipart/form-data; boundary=b", Body: []byte("--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm")},
	} {
		_, err := Transcriptions.Read(call)
		var bad *RequestError
		require.ErrorAs(t, err, &bad, name)
	}
}

// A form in which another reader may find another model, or more pictures, is refused: one that Go reads as without.
func TestFormsThatReadDifferently(t *testing.T) {
	t.Parallel()
	read := func(parts ...string) error {
		body := "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ncheap\r\n"
		for _, part := range parts {
			body += "--b\r\n" + part + "\r\n\r\ndear\r\n"
		}
		_, err := Transcriptions.Read(Call{ContentType: "multipart/form-data; boundary=b", Body: []byte(body + "--b--\r\n")})
		return err
	}
	const file = `Content-Disposition: form-data; name="file"; filename="a"`
	require.NoError(t, read(file))
	for name, part := range map[string]string{
		"no form data":        `Content-Disposition: attachment; name="model"`,
		"two names":           `Content-Disposition: form-data; name="x"; name="model"`,
		"two dispositions":    "Content-Disposition: form-data; name=\"x\"\r\nContent-Disposition: form-data; name=\"model\"",
		"a file":              `Content-Disposition: form-data; name="model"; filename*=utf-8''x`,
		"no disposition":      `Content-Type: text/plain`,
		"an open name":        `Content-Disposition: form-data; name="model`,
		"a name without text": `Content-Disposition: form-data; name=""`,
	} {
		var bad *RequestError
		require.ErrorAs(t, read(file, part), &bad, name)
	}
}

// Only the model's name changes in a form, whatever it carries.
func TestFormsAreSentOn(t *testing.T) {
	t.Parallel()
	call := formOf(t, "file", "\x00\xff--\r\n", "model", "fast", "language", "de")
	r, err := Transcriptions.Read(call)
	require.NoError(t, err)
	body, err := r.UpstreamBody("fast", "")
	require.NoError(t, err)
	require.Equal(t, string(call.Body), string(body))
	body, err = r.UpstreamBody("gpt-4o-transcribe", "")
	require.NoError(t, err)
	require.Equal(t, strings.Replace(string(call.Body), "\r\n\r\nfast\r\n", "\r\n\r\ngpt-4o-transcribe\r\n", 1), string(body))
}

func TestAnswersOfMedia(t *testing.T) {
	t.Parallel()
	const image = `{"input_tokens":50,"output_tokens":1056,"total_tokens":1106,"input_tokens_details":{"text_tokens":10,"image_tokens":40}}`
	const heard = `{"type":"tokens","input_tokens":14,"input_token_details":{"text_tokens":4,"audio_tokens":10},"output_tokens":45,"total_tokens":59}`
	reported := func(u ledger.Usage) Reading { return Reading{Usage: u, State: ledger.UsageReported} }
	images := reported(ledger.Usage{Input: 10, InputImage: 40, OutputImage: 1056})
	transcript := reported(ledger.Usage{Input: 4, InputAudio: 10, Output: 45})
	for name, c := range map[string]struct {
		endpoint Endpoint
		body     string
		want     Reading
	}{
		"image":               {Images, `{"data":[{"b64_json":"AA"}],"usage":` + image + `}`, images},
		"image without usage": {Images, `{"data":[{"url":"https://example.com/a"}]}`, Reading{}},
		"transcript":          {Transcriptions, `{"text":"Hello.","usage":` + heard + `}`, transcript},
		"seconds":             {Transcriptions, `{"text":"Hello.","usage":{"type":"duration","seconds":9}}`, Reading{}},
		"no JSON":             {Transcriptions, "1\n00:00:00,000 --> 00:00:01,000\nHello.\n", Reading{}},
		"moderation":          {Moderations, `{"id":"modr-1","model":"omni-moderation","results":[]}`, Reading{State: ledger.UsageReportedZero}},
	} {
		body, answer, err := c.endpoint.ReadAnswer(&http.Response{Body: io.NopCloser(strings.NewReader(c.body)), ContentLength: -1})
		require.NoError(t, err, name)
		require.Equal(t, c.body, string(body.Text), name)
		require.Equal(t, c.want, answer.Reading, name)
	}
	streamed := "data: {\"type\":\"image_generation.partial_image\"}\n\n" +
		"data: {\"type\":\"image_generation.completed\",\"usage\":" + image + "}\n\ndata: {\"type\":\"image_generation.completed\",\"usage\":" + image + "}\n\n"
	answer, err := Images.RelayStream(&sink{}, strings.NewReader(streamed), Passing{})
	require.NoError(t, err)
	require.Equal(t, reported(ledger.Usage{Input: 20, InputImage: 80, OutputImage: 2112}), answer.Reading)
	answer, err = Transcriptions.RelayStream(&sink{}, strings.NewReader("data: {\"type\":\"transcript.text.delta\",\"delta\":\"Hello.\"}\n\ndata: {\"type\":\"transcript.text.done\",\"usage\":"+heard+"}\n\n"), Passing{})
	require.NoError(t, err)
	require.Equal(t, transcript, answer.Reading)
	require.Positive(t, answer.Output)
}
