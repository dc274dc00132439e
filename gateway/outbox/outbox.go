package outbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
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

// Config says where events are kept and how long the stream may take.
type Config struct {
	Dir          string        `env:"TOLLGATE_DATA_DIR" envDefault:".tollgate/gateway"` // one gateway's own folder
	AckTimeout   time.Duration `env:"TOLLGATE_PUBLISH_TIMEOUT" envDefault:"2s"`         // then the outbox is synced instead
	SyncEvery    time.Duration `env:"TOLLGATE_OUTBOX_SYNC" envDefault:"50ms"`
	SegmentBytes int64         `env:"TOLLGATE_OUTBOX_SEGMENT_BYTES" envDefault:"16777216"`
	// MaxBytes is the most that the segments may take on disk; beyond it the outbox refuses as a full disk does. The last
	// sixteenth is kept for what becomes of requests that were let in.
	MaxBytes int64 `env:"TOLLGATE_OUTBOX_MAX_BYTES" envDefault:"8589934592"`
}

// Validate joins every problem, each with its variable's name.
func (c Config) Validate() error {
	var problems []error
	if c.Dir == "" {
		problems = append(problems, errors.New("TOLLGATE_DATA_DIR: must name a folder"))
	}
	if c.AckTimeout <= 0 {
		problems = append(problems, errors.New("TOLLGATE_PUBLISH_TIMEOUT: must be above zero"))
	}
	if c.SyncEvery <= 0 {
		problems = append(problems, errors.New("TOLLGATE_OUTBOX_SYNC: must be above zero"))
	}
	if c.SegmentBytes < 1<<16 || c.SegmentBytes > 1<<30 {
		problems = append(problems, errors.New("TOLLGATE_OUTBOX_SEGMENT_BYTES: must be from 65536 to 1073741824"))
	}
	if c.MaxBytes < 4*c.SegmentBytes {
		problems = append(problems, errors.New("TOLLGATE_OUTBOX_MAX_BYTES: must be at least four times TOLLGATE_OUTBOX_SEGMENT_BYTES"))
	}
	return errors.Join(problems...)
}

// errFull is why an event is not kept when the segments have their most.
var errFull = errors.New("outbox has TOLLGATE_OUTBOX_MAX_BYTES")

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

	mu        sync.Mutex // guards what follows
	sequence  uint64     // of the last event
	segments  []*segment // oldest first; those at the end may have files open
	bytes     int64      // of the segments
	inFlight  map[uint64]struct{}
	confirmed confirmed
	dirty     bool // appended since the last sync
	created   bool // a segment was made since the last sync
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
	}
	if err := o.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("open outbox %s: %w", config.Dir, err), lock.Close())
	}
	o.metrics = newMetrics(reg)
	o.metrics.spool.Set(float64(o.Pending()))
	o.metrics.bytes.Set(float64(o.bytes))
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
	s := &segment{path: path, first: first, pending: map[uint64]struct{}{}}
	walked, err := frames(path, func(payload []byte) error {
		sequence := labelOf(payload).sequence
		if s.last == 0 {
			o.confirmed.began(sequence, time.UnixMilli(gjson.GetBytes(payload, "occurred_at").Time().UnixMilli()))
		}
		s.hold(sequence)
		s.pending[sequence] = struct{}{}
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

// writeDurably makes a file whole or not at all, also when the machine fails meanwhile.
func writeDurably(path string, data []byte) error {
	temporary, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	_, err = temporary.Write(data)
	if err := errors.Join(err, temporary.Sync(), temporary.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary.Name(), path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// Producer is the gateway's id in events: it names the sequence.
func (o *Outbox) Producer() string { return o.producer }

// Record appends the event and returns when it is durable: the stream has acknowledged it, or else this folder has been
// synced. It numbers the event and sets its producer. An error means that neither was possible; the event may still arrive.
func (o *Outbox) Record(ctx context.Context, e *event.Event) error {
	p, kept := o.put(e, true)
	if p != nil && o.awaitAck(ctx, p) {
		return nil
	}
	if kept != nil {
		return fmt.Errorf("record %s: no ack from the stream, and the outbox refused it: %w", e.ID, kept)
	}
	if err := o.sync(); err != nil {
		return fmt.Errorf("record %s: no ack from the stream, and the outbox cannot be synced: %w", e.ID, err)
	}
	o.metrics.events.WithLabelValues(string(e.Kind), "spooled").Inc()
	return nil
}

// Append keeps and publishes the event without waiting for either to be durable; a background sync follows. Where it cannot
// be appended, it waits for the stream's acknowledgement instead. An error means that there was none either, and nobody
// will publish the event again.
func (o *Outbox) Append(e *event.Event) error {
	p, kept := o.put(e, false)
	if kept != nil {
		if p != nil && o.awaitAck(context.Background(), p) {
			return nil
		}
		return fmt.Errorf("append %s: %w", e.ID, kept)
	}
	if p == nil {
		o.metrics.events.WithLabelValues(string(e.Kind), "spooled").Inc()
	}
	return nil
}

// put numbers, encodes, appends and queues the event for publication. p is nil when it cannot be published now; err says
// why the event is not in a segment. The sender of a publication that is waited for, or that is all there is of the event,
// must await it.
func (o *Outbox) put(e *event.Event, awaited bool) (p *publication, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil, errors.New("outbox is closed")
	}
	// What no settler can read must not take a number, nor stand in the way of what comes after it.
	if err := e.Check(); err != nil {
		return nil, err
	}
	e.Producer, e.Sequence = o.producer, o.sequence+1
	data, err := e.Encode()
	if err != nil {
		return nil, err
	}
	if len(data) > maxEvent {
		return nil, fmt.Errorf("event of %d bytes is larger than the stream takes (%d)", len(data), maxEvent)
	}
	if err := o.appendLocked(e.Sequence, data, awaited); err != nil {
		return o.queueUnkeptLocked(e, data), err
	}
	o.sequence++
	return o.queueLocked(e, data, awaited), nil
}

func (o *Outbox) appendLocked(sequence uint64, data []byte, awaited bool) error {
	room := o.config.MaxBytes - o.bytes
	if awaited {
		room -= o.config.MaxBytes / 16
	}
	if int64(headerSize+len(data)) > room {
		return errFull
	}
	current, err := o.currentLocked(sequence)
	if err != nil {
		return err
	}
	before := current.size
	if err := current.append(sequence, data); err != nil {
		return err
	}
	o.bytes += current.size - before
	o.confirmed.began(sequence, time.Now())
	o.dirty = true
	o.metrics.spool.Inc()
	o.metrics.bytes.Set(float64(o.bytes))
	return nil
}

func (o *Outbox) currentLocked(next uint64) (*segment, error) {
	if n := len(o.segments); n > 0 && o.segments[n-1].file != nil && !o.segments[n-1].sealed {
		current := o.segments[n-1]
		if current.size < o.config.SegmentBytes {
			return current, nil
		}
		current.sealed = true
	}
	created, err := createSegment(o.config.Dir, next)
	if err != nil {
		return nil, err
	}
	o.segments = append(o.segments, created)
	o.created = true
	return created, nil
}

func (o *Outbox) acknowledged(sequence uint64, kind event.Kind) {
	o.metrics.events.WithLabelValues(string(kind), "acknowledged").Inc()
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.inFlight, sequence)
	o.confirmed.acknowledged(sequence)
	for i := len(o.segments) - 1; i >= 0; i-- {
		if s := o.segments[i]; sequence >= s.first {
			if _, ok := s.pending[sequence]; ok {
				delete(s.pending, sequence)
				o.metrics.spool.Dec()
			}
			return
		}
	}
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
