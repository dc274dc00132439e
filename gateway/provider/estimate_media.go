package provider

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"strings"
)

// image counts an image. data is its base64 or a data: URL; of anything else the size is not known.
func (e *estimator) image(data, detail string) {
	w, h := imageSize(data)
	e.frame(e.rules.image(w, h, detail))
}

// document counts a file, given in base64 or as a data: URL; of anything else nothing is known.
func (e *estimator) document(mediaType, data string) {
	told, data, ok := payload(data)
	if told != "" {
		mediaType = told
	}
	switch kind, _, _ := strings.Cut(mediaType, "/"); {
	case !ok:
		e.guess(storedPages * e.rules.page)
	case kind == "image":
		e.image(data, "")
	case kind == "audio":
		e.audio(data)
	case kind == "video":
		e.video(data)
	case kind == "text", mediaType == "application/json":
		e.guess(parts(decodedLen(data), textBytes))
	default:
		e.guess(pages(data) * e.rules.page)
	}
}

// audio counts what the caller says, by its length.
func (e *estimator) audio(data string) {
	_, data, ok := payload(data)
	if !ok {
		e.guess(storedTokens)
		return
	}
	e.guess(audioSeconds(decodeHead(data, 48), decodedLen(data)) * e.rules.audio)
}

// video counts a film, by its size.
func (e *estimator) video(data string) {
	_, data, ok := payload(data)
	if !ok {
		e.guess(storedTokens)
		return
	}
	e.guess(parts(decodedLen(data), videoBytes) * videoPerSecond)
}

// payload gives the base64 of a data: URL or of what is no address at all.
func payload(s string) (mediaType, data string, ok bool) {
	if url, isData := strings.CutPrefix(s, "data:"); isData {
		head, data, ok := strings.Cut(url, ",")
		mediaType, _, _ = strings.Cut(head, ";")
		return mediaType, data, ok
	}
	if s == "" || strings.Contains(s[:min(len(s), 16)], ":") {
		return "", "", false
	}
	return "", s, true
}

func decodedLen(data string) int64 { return int64(base64.StdEncoding.DecodedLen(len(data))) }

// imageRule gives what an image costs by its size; both sides are 0 where the size is not known, and the rule then gives the
// most that an image can cost. detail is the caller's wish, "" for none.
type imageRule func(width, height int64, detail string) int64

func noImage(_, _ int64, _ string) int64 { return otherImage(0, 0, "") }

// tiles is the rule of gpt-4o and its like: an image is scaled down to 2048 a side, then to 768 on its shorter side, and each
// tile of 512 costs; low detail costs the base alone. See OpenAI's guide to images and vision.
func tiles(base, tile int64) imageRule {
	return func(w, h int64, detail string) int64 {
		if detail == "low" {
			return base
		}
		if w == 0 || h == 0 {
			return base + 8*tile // 2048 x 768
		}
		w, h = fit(w, h, max(w, h), 2048)
		w, h = fit(w, h, min(w, h), 768)
		return base + parts(w, 512)*parts(h, 512)*tile
	}
}

// patches is the rule of the small and the newer models: patches of 32 x 32, up to a most, each with a percentage of a token.
func patches(most, percent int64) imageRule {
	return func(w, h int64, detail string) int64 {
		most := most
		if most > wholePatches && (detail == "high" || detail == "low") {
			most = wholePatches
		}
		n := most
		if w > 0 && h > 0 {
			n = min(n, parts(w, 32)*parts(h, 32))
		}
		return (n*percent + 99) / 100
	}
}

// wholePatches is the most at high detail of models that take images of more at their own size.
const wholePatches = 2500

// claudeImage is the rule up to Claude 4.6: patches of 28 x 28, up to 1568 pixels a side and about as many tokens.
func claudeImage(w, h int64, _ string) int64 { return claudePatches(w, h, 1568, 1600) }

// claudeLargeImage is the rule since then.
func claudeLargeImage(w, h int64, _ string) int64 { return claudePatches(w, h, 2576, 4784) }

func claudePatches(w, h, side, most int64) int64 {
	if w == 0 || h == 0 {
		return most
	}
	w, h = fit(w, h, max(w, h), side)
	return min(most, parts(w, 28)*parts(h, 28)) + 4
}

// geminiImage is 258 tokens for a small image and for each tile of 768 of a larger one.
func geminiImage(w, h int64, _ string) int64 {
	switch {
	case w == 0 || h == 0:
		return 6 * 258
	case w <= 384 && h <= 384:
		return 258
	default:
		return min(16, parts(w, 768)*parts(h, 768)) * 258
	}
}

// gemini3Image costs the same for every size, unless the caller asks for less.
func gemini3Image(_, _ int64, _ string) int64 { return 1120 }

// llamaImage is Llama 4's: up to 16 tiles of 336, and the whole once more.
func llamaImage(w, h int64, _ string) int64 {
	n := int64(16)
	if w > 0 && h > 0 {
		n = min(n, parts(w, 336)*parts(h, 336))
	}
	if n > 1 {
		n++
	}
	return n * 145
}

// otherImage is for models whose rule is not known: a token for 750 pixels, at most as for a whole screen.
func otherImage(w, h int64, _ string) int64 {
	if w == 0 || h == 0 {
		return 1600
	}
	return min(1600, max(256, parts(min(w, 1<<16)*min(h, 1<<16), 750)))
}

// fit scales both sides down so that side, which is one of them, is at most most.
func fit(w, h, side, most int64) (int64, int64) {
	if side <= most {
		return w, h
	}
	return max(1, parts(w*most, side)), max(1, parts(h*most, side))
}

// parts is n / size, rounded up.
func parts(n, size int64) int64 { return (n + size - 1) / size }

// imageHead is how much of an image is looked at for its size. A JPEG may have a preview before it.
const imageHead = 64 << 10

// imageSize reads the size of a PNG, JPEG, GIF or WebP from the start of its base64, which may be a data: URL's. Zeros mean
// that it cannot be told.
func imageSize(data string) (width, height int64) {
	_, data, _ = payload(data)
	b := decodeHead(data, imageHead)
	switch {
	case len(b) >= 24 && string(b[:8]) == "\x89PNG\r\n\x1a\n":
		width, height = int64(binary.BigEndian.Uint32(b[16:])), int64(binary.BigEndian.Uint32(b[20:]))
	case len(b) >= 10 && string(b[:4]) == "GIF8":
		width, height = int64(binary.LittleEndian.Uint16(b[6:])), int64(binary.LittleEndian.Uint16(b[8:]))
	case len(b) >= 30 && string(b[:4]) == "RIFF" && string(b[8:12]) == "WEBP":
		width, height = webpSize(b)
	case len(b) >= 4 && b[0] == 0xff && b[1] == 0xd8:
		width, height = jpegSize(b)
	}
	const most = 1 << 20 // above it the header lies
	if width <= 0 || height <= 0 || width > most || height > most {
		return 0, 0
	}
	return width, height
}

// decodeHead decodes up to n bytes at the start of a base64.
func decodeHead(data string, n int) []byte {
	data = data[:min(len(data), n/3*4)&^3]
	b := make([]byte, base64.StdEncoding.DecodedLen(len(data)))
	k, _ := base64.StdEncoding.Decode(b, []byte(data)) // what stands before an error is enough
	return b[:k]
}

func webpSize(b []byte) (w, h int64) {
	switch string(b[12:16]) {
	case "VP8 ":
		return int64(binary.LittleEndian.Uint16(b[26:]) & 0x3fff), int64(binary.LittleEndian.Uint16(b[28:]) & 0x3fff)
	case "VP8L":
		n := binary.LittleEndian.Uint32(b[21:])
		return int64(n&0x3fff) + 1, int64(n>>14&0x3fff) + 1
	case "VP8X":
		return uint24(b[24:]) + 1, uint24(b[27:]) + 1
	}
	return 0, 0
}

func uint24(b []byte) int64 { return int64(b[0]) | int64(b[1])<<8 | int64(b[2])<<16 }

// jpegSize goes from segment to segment up to the frame's header.
func jpegSize(b []byte) (w, h int64) {
	for at := 2; at+9 <= len(b) && b[at] == 0xff; {
		marker := b[at+1]
		if marker == 0xff {
			at++
			continue
		}
		if marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc {
			return int64(binary.BigEndian.Uint16(b[at+7:])), int64(binary.BigEndian.Uint16(b[at+5:]))
		}
		at += 2 + int(binary.BigEndian.Uint16(b[at+2:]))
	}
	return 0, 0
}

// What files cost. Providers read a page of a document as text and as an image.
const (
	pageTokens   = 3000   // Anthropic names 1,500 to 3,000 for the text of a page; a page of text measures 2,100 to 2,500 in all
	pageBytes    = 20_000 // of a document that does not show its pages
	maxPages     = 600    // more are refused by the provider
	openAIPage   = 1500   // without the thousand pixels more
	storedPages  = 4      // of a file that is not in the body: nobody knows
	storedTokens = 10_000 // of an audio or a video that is not

	audioPerSecond = 32 // Gemini's
	openAIAudio    = 10 // a token is a tenth of a second
	geminiPage     = 600
	audioBytes     = 4000    // a second of compressed speech
	wavRate        = 400_000 // the most bytes a second that a WAV is believed
	videoPerSecond = 300
	videoBytes     = 64_000
	textBytes      = 3 // of a text in base64, a token
)

// pdfHead is how much of a PDF is searched for its pages.
const pdfHead = 3 << 20

// pages counts the pages of a PDF, given in base64: by the page objects it shows, else by its size.
func pages(data string) int64 {
	size := decodedLen(data)
	pdf := decodeHead(data, pdfHead)
	n := int64(0)
	for rest := pdf; ; {
		i := bytes.Index(rest, []byte("/Type"))
		if i < 0 {
			break
		}
		rest = rest[i+len("/Type"):]
		name := bytes.TrimLeft(rest[:min(len(rest), 16)], " \r\n\t")
		if page, ok := bytes.CutPrefix(name, []byte("/Page")); ok && (len(page) == 0 || page[0]|0x20 < 'a' || page[0]|0x20 > 'z') {
			n++
		}
	}
	switch {
	case n == 0:
		n = parts(size, pageBytes)
	case size > pdfHead:
		n = parts(n*size, pdfHead)
	}
	return min(max(1, n), maxPages)
}

// audioSeconds is how long an audio lasts: by the head of a WAV, else by its size, as if it were compressed speech.
func audioSeconds(head []byte, size int64) int64 {
	if len(head) >= 32 && string(head[:4]) == "RIFF" && string(head[8:12]) == "WAVE" {
		if rate := int64(binary.LittleEndian.Uint32(head[28:])); rate > 0 && rate <= wavRate {
			return parts(size, rate)
		}
	}
	return parts(size, audioBytes)
}
