package outbox

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

const (
	segmentSuffix = ".events"
	headerSize    = 8
	maxFrame      = 1 << 20 // the stream's own message limit
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// segment is one file of frames. Its name is the sequence number of its first event.
type segment struct {
	path    string
	first   uint64
	last    uint64              // 0 while empty
	pending map[uint64]struct{} // appended, not acknowledged by the stream
	file    *os.File            // nil when it is no longer written to
	size    int64
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
	return &segment{path: path, first: first, pending: map[uint64]struct{}{}, file: file}, nil
}

// append writes one frame. A write that fails halfway is taken back, so that later frames stay readable; when even that
// fails the segment is closed for writing.
func (s *segment) append(sequence uint64, payload []byte) error {
	frame := make([]byte, headerSize+len(payload))
	binary.LittleEndian.PutUint32(frame, uint32(len(payload)))
	binary.LittleEndian.PutUint32(frame[4:], crc32.Checksum(payload, castagnoli))
	copy(frame[headerSize:], payload)
	if _, err := s.file.WriteAt(frame, s.size); err != nil {
		if undo := s.file.Truncate(s.size); undo != nil {
			err = errors.Join(err, undo, s.close())
		}
		return err
	}
	s.size += int64(len(frame))
	s.last = sequence
	s.pending[sequence] = struct{}{}
	return nil
}

func (s *segment) close() error {
	file := s.file
	s.file = nil
	return errors.Join(file.Sync(), file.Close())
}

// frames calls visit with every whole frame of the file, in order, and returns the offset behind the last one. A torn or
// damaged frame ends the walk: nothing behind it can be trusted.
func frames(path string, visit func(payload []byte) error) (int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	r := bufio.NewReaderSize(file, 1<<16)
	var offset int64
	for {
		var header [headerSize]byte
		if _, err := io.ReadFull(r, header[:]); err != nil {
			return offset, ignoreEOF(err)
		}
		size := binary.LittleEndian.Uint32(header[:])
		if size == 0 || size > maxFrame {
			return offset, nil
		}
		payload := make([]byte, size)
		if _, err := io.ReadFull(r, payload); err != nil {
			return offset, ignoreEOF(err)
		}
		if crc32.Checksum(payload, castagnoli) != binary.LittleEndian.Uint32(header[4:]) {
			return offset, nil
		}
		if err := visit(payload); err != nil {
			return offset, err
		}
		offset += headerSize + int64(size)
	}
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
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
