package outbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"tollgate/ledger/event"
)

const (
	segmentSuffix = ".events"
	headerSize    = 8
	maxFrame      = 1 << 20
	maxEvent      = 1<<20 - 4<<10 // the stream's own limit on a message, less room for its headers
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// segment is one file of frames. Its name is the sequence number of its first event.
type segment struct {
	path    string
	first   uint64
	last    uint64   // 0 while empty
	held    spans    // the sequences of its frames
	pending spans    // of these, what the stream has not acknowledged
	lost    spans    // of these, what it had acknowledged before
	round   string   // names the confirmation that lost was found out by last
	file    *os.File // nil when it is synced and closed
	sealed  bool     // not written to any more; the next sync closes it
	size    int64
	tail    []byte // its last bytes, that no sync has covered yet
	failed  bool   // a sync failed: what it was to write may be gone from memory, and the next one must write it again
	stuck   bool   // its removal failed, and that was said
}

func segmentPath(dir string, first uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%020d%s", first, segmentSuffix))
}

func createSegment(dir string, first uint64) (*segment, error) {
	path := segmentPath(dir, first)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &segment{path: path, first: first, file: file}, nil
}

// append writes one frame. A write that fails halfway is taken back, so that later frames stay readable; when even that
// fails the segment is sealed.
func (s *segment) append(sequence uint64, payload []byte) error {
	start := len(s.tail)
	s.tail = binary.LittleEndian.AppendUint32(s.tail, uint32(len(payload)))
	s.tail = binary.LittleEndian.AppendUint32(s.tail, crc32.Checksum(payload, castagnoli))
	s.tail = append(s.tail, payload...)
	if _, err := s.file.WriteAt(s.tail[start:], s.size); err != nil {
		s.tail = s.tail[:start]
		if undo := s.file.Truncate(s.size); undo != nil {
			s.sealed = true
			err = errors.Join(err, undo)
		}
		return err
	}
	s.size += int64(len(s.tail) - start)
	s.hold(sequence)
	return nil
}

// hold notes that the file has the event and the stream may not.
func (s *segment) hold(sequence uint64) {
	s.last = max(s.last, sequence)
	s.held.add(sequence)
	s.pending.add(sequence)
}

// rewrite writes again what a failed sync has left unsure: after a failure the system may take it for written.
func (s *segment) rewrite() error {
	if !s.failed {
		return nil
	}
	if _, err := s.file.WriteAt(s.tail, s.size-int64(len(s.tail))); err != nil {
		return err
	}
	s.failed = false
	return nil
}

// keptTail is how much memory a segment keeps for its tail between syncs.
const keptTail = 1 << 20

// synced notes that what the file had when it was size bytes long is on disk.
func (s *segment) synced(size int64) {
	rest := s.tail[int64(len(s.tail))-(s.size-size):]
	if cap(s.tail) > keptTail {
		s.tail = nil
	}
	s.tail = append(s.tail[:0], rest...)
}

// walk is what frames saw of a file.
type walk struct {
	end     int64 // behind the last whole frame
	skipped int64 // bytes before it that belong to no frame: damage
	torn    int64 // bytes behind it: a write that was cut short
}

// frames calls visit with every whole frame of the file, in order. Damage costs the frames it touches and no other: the
// walk goes on where the next frame is found. (None can be found inside an event: a frame's length has a zero byte, JSON
// text has none.)
func frames(path string, visit func(payload []byte) error) (walk, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return walk{}, err
	}
	return framesOf(data, visit)
}

func framesOf(data []byte, visit func(payload []byte) error) (walk, error) {
	var w walk
	for at := 0; at < len(data); {
		payload, ok := frameAt(data[at:])
		if !ok {
			at++
			continue
		}
		if err := visit(payload); err != nil {
			return w, err
		}
		w.skipped += int64(at) - w.end
		at += headerSize + len(payload)
		w.end = int64(at)
	}
	w.torn = int64(len(data)) - w.end
	return w, nil
}

// frameAt reads the frame that data begins with.
func frameAt(data []byte) (payload []byte, ok bool) {
	if len(data) < headerSize {
		return nil, false
	}
	size := int(binary.LittleEndian.Uint32(data))
	if size == 0 || size > maxFrame || size > len(data)-headerSize {
		return nil, false
	}
	payload = data[headerSize : headerSize+size : headerSize+size]
	return payload, crc32.Checksum(payload, castagnoli) == binary.LittleEndian.Uint32(data[4:])
}

// label is what the outbox itself needs of an event. It reads no more, so that an event of another version, or one that
// the settler will refuse, neither stops a start nor what stands behind it.
type label struct {
	sequence    uint64
	kind        event.Kind
	subject, id string
}

func labelOf(payload []byte) label {
	e := event.Event{
		ID: gjson.GetBytes(payload, "id").String(), Kind: event.Kind(gjson.GetBytes(payload, "kind").String()),
		App: gjson.GetBytes(payload, "app").String(), Sequence: gjson.GetBytes(payload, "sequence").Uint(),
	}
	return label{e.Sequence, e.Kind, e.Subject(), e.ID}
}

// unkeptMark is a file with the highest number of an event that was published although no segment could take it. The file
// keeps its size, so that it can be written on a full disk.
type unkeptMark struct {
	file     *os.File
	sequence uint64
}

const unkeptDigits = 20

func openUnkeptMark(dir string) (*unkeptMark, error) {
	path := filepath.Join(dir, "unkept")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		text = fmt.Appendf(nil, "%0*d", unkeptDigits, 0)
		err = writeDurably(path, text)
	}
	if err != nil {
		return nil, err
	}
	sequence, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &unkeptMark{file, sequence}, nil
}

func (u *unkeptMark) set(sequence uint64) error {
	_, err := u.file.WriteAt(fmt.Appendf(nil, "%0*d", unkeptDigits, sequence), 0)
	return err
}

// listSegments finds the segment files of dir, oldest first.
func listSegments(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), segmentSuffix) {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	sort.Strings(paths)
	return paths, nil
}

func firstSequence(path string) (uint64, error) {
	return strconv.ParseUint(strings.TrimSuffix(filepath.Base(path), segmentSuffix), 10, 64)
}
