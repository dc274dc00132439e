package outbox

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func frame(payload []byte) []byte {
	data := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
	data = binary.LittleEndian.AppendUint32(data, crc32.Checksum(payload, castagnoli))
	return append(data, payload...)
}

// write makes a segment of three events and returns its bytes and where each frame begins, with the end as the last.
func write(t *testing.T) (data []byte, starts []int) {
	t.Helper()
	dir := t.TempDir()
	s, err := createSegment(dir, 1)
	require.NoError(t, err)
	for i := uint64(1); i <= 3; i++ {
		e := reserved(0)
		e.Sequence = i
		encoded, err := e.Encode()
		require.NoError(t, err)
		starts = append(starts, int(s.size))
		require.NoError(t, s.append(i, encoded))
	}
	require.NoError(t, s.file.Close())
	data, err = os.ReadFile(s.path)
	require.NoError(t, err)
	require.Len(t, data, int(s.size))
	return data, append(starts, len(data))
}

func read(t require.TestingT, data []byte) (payloads [][]byte, w walk) {
	w, err := framesOf(data, func(payload []byte) error {
		payloads = append(payloads, bytes.Clone(payload))
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, int64(len(data)), w.end+w.torn)
	return payloads, w
}

func TestFramesCutAtEveryByte(t *testing.T) {
	t.Parallel()
	data, starts := write(t)
	for size := range len(data) + 1 {
		payloads, w := read(t, data[:size])
		whole := 0
		for whole+1 < len(starts) && starts[whole+1] <= size {
			whole++
		}
		require.Len(t, payloads, whole, "cut at %d", size)
		require.Equal(t, walk{end: int64(starts[whole]), torn: int64(size - starts[whole])}, w, "cut at %d", size)
	}
}

func TestFramesDamagedAtEveryByte(t *testing.T) {
	t.Parallel()
	data, starts := write(t)
	for at := range data {
		broken := bytes.Clone(data)
		broken[at] ^= 0x55
		hit := 0
		for starts[hit+1] <= at {
			hit++
		}
		payloads, w := read(t, broken)
		require.Len(t, payloads, 2, "damaged at %d", at)
		if size := int64(starts[hit+1] - starts[hit]); hit < 2 {
			require.Equal(t, walk{end: int64(len(data)), skipped: size}, w, "damaged at %d", at)
		} else {
			require.Equal(t, walk{end: int64(starts[2]), torn: size}, w, "damaged at %d", at)
		}
	}
}

// Whatever bytes stand between frames, the frames are found, and nothing that is none.
func TestFramesBetweenGarbage(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 1, 200), 0, 8).Draw(t, "payloads")
		var data []byte
		for _, payload := range want {
			// A garbage byte may be zero or all ones: lengths of nothing, and of far too much.
			data = append(data, rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 9, '{', 0xff}), 0, 24).Draw(t, "garbage")...)
			data = append(data, frame(payload)...)
		}
		data = append(data, rapid.SliceOfN(rapid.Byte(), 0, headerSize).Draw(t, "tail")...)
		got, _ := read(t, data)
		require.Len(t, got, len(want))
		for i := range want {
			require.Equal(t, want[i], got[i])
		}
	})
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte{})
	f.Add(frame([]byte(`{"sequence":1}`)))
	f.Add(append([]byte{1, 2, 3}, frame([]byte(`{}`))...))
	f.Fuzz(func(t *testing.T, data []byte) {
		payloads, w := read(t, data)
		var size int64
		for _, payload := range payloads {
			size += headerSize + int64(len(payload))
			_ = labelOf(payload)
		}
		require.Equal(t, w.end, size+w.skipped)
	})
}

// An outbox that is opened on a torn segment goes on where the last whole event ended, anywhere in the last two frames.
func TestOpenTorn(t *testing.T) {
	t.Parallel()
	data, starts := write(t)
	nc := away(t)
	for size := starts[1]; size <= len(data); size += 41 {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			config := testConfig(t.TempDir())
			require.NoError(t, os.WriteFile(segmentPath(config.Dir, 1), data[:size], 0o600))
			whole := uint64(1)
			for int(whole)+1 < len(starts) && starts[whole+1] <= size {
				whole++
			}
			o := open(t, config, nc)
			e := reserved(0)
			require.NoError(t, o.Append(e))
			require.Equal(t, whole+1, e.Sequence)
			o.end()
			again := open(t, config, nc)
			require.Equal(t, int(whole)+1, again.Pending())
			require.NotContains(t, again.logs.String(), "segment")
			require.Equal(t, float64(whole+1), again.gauge("tollgate_spool_events"))
		})
	}
}

func TestOpenDamaged(t *testing.T) {
	t.Parallel()
	data, starts := write(t)
	config := testConfig(t.TempDir())
	data[starts[1]+headerSize+10] ^= 1
	require.NoError(t, os.WriteFile(segmentPath(config.Dir, 1), data, 0o600))
	o := open(t, config, away(t))
	require.Contains(t, o.logs.String(), "level=ERROR msg=\"outbox segment is damaged")
	require.Equal(t, 2, o.Pending())
	e := reserved(0)
	require.NoError(t, o.Append(e))
	require.Equal(t, uint64(4), e.Sequence, "the numbers behind the damage are taken")
}
