package outbox

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/tidwall/gjson"

	"tollgate/ledger/event"
)

// ErrLocked is returned by Open when another gateway uses the folder.
var ErrLocked = errors.New("outbox folder is in use by another gateway")

// Outbox numbers, keeps and publishes one gateway's events. It is safe for concurrent use. Run must be running for events
// to be published, synced and removed; Close ends it.
type Outbox struct {
	config   Config
	js       jetstream.JetStream
	log      *slog.Logger
	metrics  *metrics
	producer string
	lock     *os.File
	unkept   *unkeptMark
	queue    chan *publication
	acks     chan *publication
	again    chan struct{} // holds one for each repeated publication that waits for the stream
	drain    chan struct{}

	// syncing is held while files are synced, and taken before mu: whoever then finds nothing left to sync knows that it is
	// on disk, not merely on its way there.
	syncing sync.Mutex
	fsync   func(*os.File) error

	mu        sync.Mutex // guards what follows
	sequence  uint64     // of the last event
	segments  []*segment // oldest first; those at the end may have files open
	bytes     int64      // of the segments
	inFlight  map[uint64]struct{}
	confirmed confirmed
	trusted   trusted
	acked     time.Time // when the stream last acknowledged an event
	away      bool      // an event that needs the acknowledgement had none since it was queued, nor had any other
	dirty     bool      // appended since the last sync
	created   bool      // a segment was made since the last sync
	unsynced  error     // of the last sync; nil when it was well
	durable   uint64    // the last event that a sync has covered
	closed    bool
}

// maxUnacknowledged is how many publications may wait for the stream at once; the outbox is what bounds memory beyond.
const maxUnacknowledged = 1 << 14

// Open takes the folder, reads what an earlier run left and continues its numbering. Events of unfinished segments count as
// unacknowledged and are published again by Run. Publications on nc should fail at once while it is disconnected
// (nats.ReconnectBufSize(-1)): waiting is the outbox's work. nc stays the caller's.
func Open(config Config, nc *nats.Conn, log *slog.Logger, reg prometheus.Registerer) (*Outbox, error) {
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(maxUnacknowledged),
		jetstream.WithPublishAsyncTimeout(config.AckTimeout))
	if err != nil {
		return nil, fmt.Errorf("open outbox: %w", err)
	}
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open outbox: %w", err)
	}
	lock, err := lockFolder(config.Dir)
	if err != nil {
		return nil, err
	}
	o := &Outbox{
		config: config, js: js, log: log, lock: lock, queue: make(chan *publication, maxUnacknowledged),
		acks: make(chan *publication, maxUnacknowledged), again: make(chan struct{}, maxAgain), drain: make(chan struct{}, 1), inFlight: map[uint64]struct{}{},
		fsync: (*os.File).Sync,
	}
	if err := o.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("open outbox %s: %w", config.Dir, err), lock.Close())
	}
	o.metrics = newMetrics(reg)
	o.metrics.spool.Set(float64(o.Pending()))
	o.metrics.bytes.Set(float64(o.bytes))
	o.metrics.limit.Set(float64(config.MaxBytes))
	return o, nil
}

func lockFolder(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open outbox: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s (TOLLGATE_DATA_DIR must be each gateway's own)", ErrLocked, dir), lock.Close())
	}
	return lock, nil
}

func (o *Outbox) load() error {
	producer, err := producerID(o.config.Dir)
	if err != nil {
		return err
	}
	o.producer = producer
	paths, err := listSegments(o.config.Dir)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if err := o.loadSegment(path); err != nil {
			return err
		}
	}
	if o.unkept, err = openUnkeptMark(o.config.Dir); err != nil {
		return err
	}
	o.sequence = max(o.sequence, o.unkept.sequence)
	return nil
}

func (o *Outbox) loadSegment(path string) error {
	name := filepath.Base(path)
	first, err := firstSequence(path)
	if err != nil {
		return fmt.Errorf("segment %s: %w", name, err)
	}
	s := &segment{path: path, first: first}
	walked, err := frames(path, func(payload []byte) error {
		sequence := labelOf(payload).sequence
		if s.last == 0 {
			o.confirmed.began(sequence, time.UnixMilli(gjson.GetBytes(payload, "occurred_at").Time().UnixMilli()))
		}
		s.hold(sequence)
		return nil
	})
	if err != nil {
		return fmt.Errorf("segment %s: %w", name, err)
	}
	if walked.skipped > 0 {
		o.log.Error("outbox segment is damaged, events in it are lost", "segment", name, "bytes", walked.skipped)
	}
	if walked.torn > 0 {
		o.log.Warn("torn end of outbox segment cut off", "segment", name, "bytes", walked.torn)
		if err := os.Truncate(path, walked.end); err != nil {
			return err
		}
	}
	// The number in an empty segment's name was never used, or used by a frame that was torn: it is used again.
	o.sequence = max(o.sequence, s.last, first-1)
	if s.last == 0 {
		return os.Remove(path)
	}
	s.size = walked.end
	o.bytes += s.size
	o.segments = append(o.segments, s)
	return nil
}

// producerID is this outbox's name on the stream. It lives in the folder, because the numbering does.
func producerID(dir string) (string, error) {
	path := filepath.Join(dir, "id")
	text, err := os.ReadFile(path)
	if err == nil {
		id := strings.TrimSpace(string(text))
		if id == "" {
			return "", fmt.Errorf("%s is empty: write the producer id of this folder's events into it", path)
		}
		return id, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	var random [6]byte
	rand.Read(random[:]) // never fails, see crypto/rand
	id := "gw-" + hex.EncodeToString(random[:])
	return id, writeDurably(path, []byte(id+"\n"))
}

// Producer is the gateway's id in events: it names the sequence.
func (o *Outbox) Producer() string { return o.producer }

// acknowledged notes that the stream has the event, under a number of its own.
func (o *Outbox) acknowledged(sequence uint64, kind event.Kind, number uint64) {
	o.metrics.events.WithLabelValues(string(kind), "acknowledged").Inc()
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.inFlight, sequence)
	o.confirmed.acknowledged(sequence)
	o.trusted.last = max(o.trusted.last, number)
	o.acked, o.away = time.Now(), false
	if s := o.segmentLocked(sequence); s != nil && s.pending.remove(sequence) {
		s.lost.remove(sequence)
		o.metrics.spool.Dec()
	}
}

// segmentLocked is the segment that has the event if any has.
func (o *Outbox) segmentLocked(sequence uint64) *segment {
	i := sort.Search(len(o.segments), func(i int) bool { return o.segments[i].first > sequence })
	if i == 0 {
		return nil
	}
	return o.segments[i-1]
}

func (o *Outbox) unacknowledged(sequence uint64) {
	o.mu.Lock()
	delete(o.inFlight, sequence)
	o.mu.Unlock()
	o.wakeDrain()
}

func (o *Outbox) wakeDrain() {
	select {
	case o.drain <- struct{}{}:
	default:
	}
}
