package provider

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

func picture(w, h int) image.Image {
	return image.NewPaletted(image.Rect(0, 0, w, h), color.Palette{color.White, color.Black})
}

// pngOf is a PNG of a size, in base64.
func pngOf(w, h int) string {
	var b bytes.Buffer
	if err := png.Encode(&b, picture(w, h)); err != nil {
		panic(err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

func webp(chunk string, head ...byte) string {
	b := append([]byte("RIFF\x00\x00\x00\x00WEBP"+chunk+"\x00\x00\x00\x00"), head...)
	return base64.StdEncoding.EncodeToString(append(b, make([]byte, 30)...))
}

func TestImageSize(t *testing.T) {
	t.Parallel()
	var jpg, withPreview, anim bytes.Buffer
	require.NoError(t, jpeg.Encode(&jpg, picture(640, 480), nil))
	withPreview.Write(jpg.Bytes()[:2])
	withPreview.WriteString("\xff\xe1\x20\x02")
	withPreview.Write(bytes.Repeat(jpg.Bytes()[:64], 0x2000/64))
	withPreview.Write(jpg.Bytes()[2:])
	require.NoError(t, gif.Encode(&anim, picture(33, 44), nil))
	encode := base64.StdEncoding.EncodeToString
	for name, c := range map[string]struct {
		data string
		w, h int64
	}{
		"PNG":               {pngOf(1920, 1080), 1920, 1080},
		"data URL":          {"data:image/png;base64," + pngOf(7, 5), 7, 5},
		"JPEG":              {encode(jpg.Bytes()), 640, 480},
		"JPEG with preview": {encode(withPreview.Bytes()), 640, 480},
		"GIF":               {encode(anim.Bytes()), 33, 44},
		"WebP, lossy":       {webp("VP8 ", 0, 0, 0, 0x9d, 0x01, 0x2a, 0x80, 0x02, 0xe0, 0x01), 640, 480},
		"WebP, lossless":    {webp("VP8L", 0x2f, 0x7f, 0xc2, 0x77, 0x00), 640, 480},
		"WebP, extended":    {webp("VP8X", 0, 0, 0, 0, 0x7f, 0x02, 0x00, 0xdf, 0x01, 0x00), 640, 480},
		"nothing":           {"", 0, 0},
		"an address":        {"https://example.com/a.png", 0, 0},
		"no base64":         {"!!!!", 0, 0},
		"a cut PNG":         {pngOf(9, 9)[:20], 0, 0},
		"a PNG without end": {pngOf(9, 9)[:40], 9, 9},
		"no pixels":         {encode([]byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x00\x00\x00\x00\x09")), 0, 0},
		"too many pixels":   {encode([]byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\xff\xff\xff\xff\x00\x00\x00\x09")), 0, 0},
		"a JPEG of markers": {encode(bytes.Repeat([]byte{0xff, 0xd8, 0xff, 0xff}, 2000)), 0, 0},
		"another format":    {encode([]byte(strings.Repeat("BM", 50))), 0, 0},
	} {
		w, h := imageSize(c.data)
		require.Equal(t, [2]int64{c.w, c.h}, [2]int64{w, h}, name)
	}
}

func FuzzImageSize(f *testing.F) {
	f.Add([]byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x09\x00\x00\x00\x09"))
	f.Add([]byte("\xff\xd8\xff\xe0\x00\x02\xff\xc0\x00\x11\x08\x00\x01\x00\x01"))
	f.Add([]byte("RIFF\x00\x00\x00\x00WEBPVP8X\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		encoded := base64.StdEncoding.EncodeToString(data)
		w, h := imageSize(encoded)
		require.Equal(t, w == 0, h == 0)
		for _, family := range families {
			require.NotNil(t, family.rules.image)
			for _, detail := range []string{"", "low", "high"} {
				n := family.rules.image(w, h, detail)
				require.Positive(t, n)
				require.LessOrEqual(t, n, max(family.rules.image(0, 0, detail), 16*258, 4788), family.prefix)
			}
		}
		require.Positive(t, pages(encoded))
		require.GreaterOrEqual(t, audioSeconds(data, int64(len(data))), int64(0))
	})
}

// The examples of the providers' own guides.
func TestImagesAsDocumented(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		model  string
		w, h   int64
		detail string
		want   int64
	}{
		{"gpt-4o", 1024, 1024, "high", 765},
		{"gpt-4o", 2048, 4096, "high", 1105},
		{"gpt-4o", 4096, 8192, "low", 85},
		{"gpt-4o", 128, 64, "", 255},
		{"gpt-4o", 0, 0, "", 1445},
		{"gpt-4o-mini", 128, 64, "high", 8500},
		{"o1", 512, 512, "auto", 225},
		{"gpt-5", 1024, 1024, "", 630},
		{"gpt-4.1-mini", 1024, 1024, "", 1659}, // 1024 patches
		{"gpt-4.1-mini", 1800, 2400, "", 2489}, // scaled to at most 1536
		{"gpt-5.4", 1600, 1600, "high", 3000},
		{"gpt-5.6", 3840, 2160, "", 9792},
		{"gpt-5.6", 3840, 2160, "high", 3000},
		{"claude-sonnet-4-5", 1000, 1000, "", 36*36 + 4},
		{"claude-sonnet-4-5", 8000, 4000, "", 56*28 + 4},
		{"claude-opus-4-8", 1920, 1080, "", 69*39 + 4},
		{"claude-opus-4-8", 8000, 8000, "", 4788},
		{"gemini-2.5-flash", 384, 384, "", 258},
		{"gemini-2.5-flash", 1000, 1000, "", 4 * 258},
		{"gemini-3-flash-preview", 4000, 3000, "", 1120},
		{"llama-4-maverick", 400, 301, "", 3 * 145},
		{"in-house", 10, 10, "", 256},
		{"in-house", 3000, 3000, "", 1600},
	} {
		require.Equal(t, c.want, rulesOf(c.model).image(c.w, c.h, c.detail), "%s %d x %d %s", c.model, c.w, c.h, c.detail)
	}
}

func TestEstimateMedia(t *testing.T) {
	t.Parallel()
	const part = `{"type":"image_url","image_url":{"url":"`
	base := raw(t, Chat, "gpt-4o", user(`[]`))
	of := func(model, content string) int64 { return int64(raw(t, Chat, model, user(`[`+content+`]`)) - base) }
	require.EqualValues(t, 765, of("gpt-4o", part+"data:image/png;base64,"+pngOf(1024, 1024)+`"}}`))
	require.EqualValues(t, 85, of("gpt-4o", part+"data:image/png;base64,"+pngOf(1024, 1024)+`","detail":"low"}}`))
	require.EqualValues(t, 1445, of("gpt-4o", part+`https://example.com/a.png"}}`), "of an unknown size the most")
	require.EqualValues(t, 1445, of("gpt-4o", `{"type":"image_url","image_url":"https://example.com/a.png"}`))
	require.EqualValues(t, 1445, of("gpt-4o", part+"data:image/png;base64,"+strings.Repeat("A", 1e6)+`"}}`), "an image is no text")

	wav := append([]byte("RIFF\x00\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00"), make([]byte, 20)...)
	binary.LittleEndian.PutUint32(wav[24:], 16_000)
	binary.LittleEndian.PutUint32(wav[28:], 32_000)
	wav = append(wav, make([]byte, 320_000)...)
	audio := func(b []byte) string {
		return `{"type":"input_audio","input_audio":{"data":"` + base64.StdEncoding.EncodeToString(b) + `","format":"wav"}}`
	}
	require.EqualValues(t, 110, of("gpt-4o-audio-preview", audio(wav)), "eleven seconds begun")
	require.EqualValues(t, 10*80, of("gpt-4o-audio-preview", audio(wav[100:])), "compressed, as far as anybody knows")
	binary.LittleEndian.PutUint32(wav[28:], 1<<31)
	require.EqualValues(t, 10*81, of("gpt-4o-audio-preview", audio(wav)), "a head that lies is not believed")

	file := func(data string) string { return `{"type":"file","file":{"file_data":"` + data + `"}}` }
	pdf := func(b string) string {
		return "data:application/pdf;base64," + base64.StdEncoding.EncodeToString([]byte(b))
	}
	require.EqualValues(t, 3*openAIPage, of("gpt-4o", file(pdf("%PDF-1.4 /Type/Pages /Type /Page\n /Type/Page/Parent /Type /Page>> /Type /PageLabel"))))
	require.EqualValues(t, 4*openAIPage, of("gpt-4o", file(pdf("%PDF-1.7 "+strings.Repeat("x", 70_000)))), "by its size")
	require.EqualValues(t, maxPages*openAIPage, of("gpt-4o", file(pdf("%PDF-1.7 "+strings.Repeat("/Type /Page ", 700_000)))))
	require.EqualValues(t, storedPages*openAIPage, of("gpt-4o", `{"type":"file","file":{"file_id":"file-1"}}`))
	require.EqualValues(t, 765, of("gpt-4o", file("data:image/png;base64,"+pngOf(1024, 1024))))
	require.InDelta(t, 1000, of("gpt-4o", file("data:text/plain;base64,"+base64.StdEncoding.EncodeToString([]byte(strings.Repeat("abc", 1000))))), 2)
	require.EqualValues(t, videoPerSecond*2, of("gpt-4o", `{"type":"video_url","video_url":{"url":"data:video/mp4;base64,`+strings.Repeat("AAAA", 30_000)+`"}}`))
	require.EqualValues(t, storedTokens, of("gpt-4o", `{"type":"video_url","video_url":{"url":"https://example.com/a.mp4"}}`))
	require.Equal(t, int64(3000), int64(raw(t, Messages, "claude-sonnet-4-5", `"max_tokens":1,`+user(`[{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"`+
		base64.StdEncoding.EncodeToString([]byte("%PDF /Type /Page "))+`"}}]`))-raw(t, Messages, "claude-sonnet-4-5", `"max_tokens":1,`+user(`[]`))))
	require.Equal(t, ledger.Tokens(1), max(1, raw(t, Embeddings, "m", `"input":[]`)))
}
