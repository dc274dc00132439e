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

	"tollgate/ledger/event"
)

// Config says where events are kept and how long the stream may take.
type Config struct {
	Dir          string        `env:"TOLLGATE_DATA_DIR" envDefault:".tollgate/gateway"` // one gateway's own folder
	AckTimeout   time.Duration `env:"TOLLGATE_PUBLISH_TIMEOUT" envDefault:"2s"`         // then the outbox is synced instead
	SyncEvery    time.Duration `env:"TOLLGATE_OUTBOX_SYNC" envDefault:"50ms"`
	SegmentBytes int64         `env:"TOLLGATE_OUTBOX_SEGMENT_BYTES" envDefault:"16777216"`
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
	if c.SegmentBytes < 1<<16 {
		problems = append(problems, errors.New("TOLLGATE_OUTBOX_SEGMENT_BYTES: must be at least 65536"))
	}
	return errors.Join(problems...)
}

// ErrLocked is returned by Open when another gateway uses the folder.
var ErrLocked = errors.New("outbox folder is in use by another gateway")

// Outbox numbers, keeps and publishes one gateway's events. It is safe for concurrent use. Run must be running for events
// to be synced, drained and removed; Close ends it.
type Outbox struct {
	config   Config
	js       jetstream.JetStream
	log      *slog.Logger
	metrics  *metrics
	producer string
	lock     *os.File
	acks     chan pendingAck
	drain    chan struct{}

	mu        sync.Mutex // guards what follows
	sequence  uint64     // of the last event
	segments  []*segment // oldest first; the last one may be open for writing
	inFlight  map[uint64]struct{}
	confirmed uint64
	dirty     bool // appended since the last sync
	closed    bool
}

// pendingAck is a publication whose acknowledgement nobody else waits for.
type pendingAck struct {
	sequence uint64
	kind     event.Kind
	deadline time.Time
	future   jetstream.PubAckFuture
}

// maxUnacknowledged is how many publications may wait for the stream at once; the outbox is what bounds memory beyond.
const maxUnacknowledged = 1 << 16

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
		config: config, js: js, log: log, lock: lock, metrics: newMetrics(reg),
		acks: make(chan pendingAck, 4096), drain: make(chan struct{}, 1), inFlight: map[uint64]struct{}{},
	}
	if err := o.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("open outbox %s: %w", config.Dir, err), lock.Close())
	}
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
	return nil
}

func (o *Outbox) loadSegment(path string) error {
	first, err := firstSequence(path)
	if err != nil {
		return fmt.Errorf("segment %s: %w", filepath.Base(path), err)
	}
	s := &segment{path: path, first: first, pending: map[uint64]struct{}{}}
	end, err := frames(path, func(payload []byte) error {
		e, err := event.Decode(payload)
		if err != nil {
			return err
		}
		s.last = e.Sequence
		s.pending[e.Sequence] = struct{}{}
		return nil
	})
	if err != nil {
		return fmt.Errorf("segment %s: %w", filepath.Base(path), err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if torn := info.Size() - end; torn > 0 {
		o.log.Warn("torn end of outbox segment cut off", "segment", filepath.Base(path), "bytes", torn)
		if err := os.Truncate(path, end); err != nil {
			return err
		}
	}
	// The number in an empty segment's name was never used, or used by a frame that was torn: it is used again.
	o.sequence = max(o.sequence, s.last, first-1)
	if s.last == 0 {
		return os.Remove(path)
	}
	o.segments = append(o.segments, s)
	return nil
}

// producerID is this outbox's name on the stream. It lives in the folder, because the numbering does.
func producerID(dir string) (string, error) {
	path := filepath.Join(dir, "id")
	text, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(text)), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	var random [6]byte
	rand.Read(random[:]) // never fails, see crypto/rand
	id := "gw-" + hex.EncodeToString(random[:])
	temporary := path + ".new"
	if err := os.WriteFile(temporary, []byte(id+"\n"), 0o600); err != nil {
		return "", err
	}
	return id, os.Rename(temporary, path)
}

// Producer is the gateway's id in events: it names the sequence.
func (o *Outbox) Producer() string { return o.producer }

// Record appends the event and returns when it is durable: the stream has acknowledged it, or else this folder has been
// synced. It numbers the event and sets its producer. An error means that neither was possible; the event may still arrive.
func (o *Outbox) Record(ctx context.Context, e *event.Event) error {
	future, kept := o.put(e)
	if future != nil {
		timer := time.NewTimer(o.config.AckTimeout)
		defer timer.Stop()
		select {
		case <-future.Ok():
			o.acknowledged(e.Sequence, e.Kind)
			return nil
		case err := <-future.Err():
			o.log.Debug("publication failed", "event", e.ID, "error", err)
		case <-timer.C:
		case <-ctx.Done():
		}
		o.unacknowledged(e.Sequence)
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

// Append keeps and publishes the event without waiting for either to be durable; a background sync follows. An error means
// that it could not be appended, and nobody will publish it again.
func (o *Outbox) Append(e *event.Event) error {
	future, err := o.put(e)
	if future != nil {
		// Kept or not, it is on its way. Without a segment its acknowledgement is all there is.
		o.await(e.Sequence, e.Kind, future)
		return nil
	}
	if err != nil {
		return fmt.Errorf("append %s: %w", e.ID, err)
	}
	o.metrics.events.WithLabelValues(string(e.Kind), "spooled").Inc()
	return nil
}

// await hands the publication to the collector; when that is far behind, the drainer will publish again instead.
func (o *Outbox) await(sequence uint64, kind event.Kind, future jetstream.PubAckFuture) {
	select {
	case o.acks <- pendingAck{sequence, kind, time.Now().Add(o.config.AckTimeout), future}:
	default:
		o.unacknowledged(sequence)
	}
}

// put numbers, encodes, appends and publishes. future is nil when the publication failed at once; err says why the event is
// not in a segment.
func (o *Outbox) put(e *event.Event) (future jetstream.PubAckFuture, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil, errors.New("outbox is closed")
	}
	e.Producer, e.Sequence = o.producer, o.sequence+1
	data, err := e.Encode()
	if err != nil {
		return nil, err
	}
	if len(data) > maxFrame {
		return nil, fmt.Errorf("event of %d bytes is larger than the stream takes (%d)", len(data), maxFrame)
	}
	o.sequence++
	err = o.appendLocked(e.Sequence, data)
	future, publishErr := o.publishLocked(e.Subject(), e.ID, e.Sequence, data)
	if publishErr != nil {
		return nil, err
	}
	return future, err
}

func (o *Outbox) appendLocked(sequence uint64, data []byte) error {
	current, err := o.currentLocked(sequence)
	if err != nil {
		return err
	}
	if err := current.append(sequence, data); err != nil {
		return err
	}
	o.dirty = true
	o.metrics.spool.Inc()
	return nil
}

func (o *Outbox) currentLocked(next uint64) (*segment, error) {
	if n := len(o.segments); n > 0 && o.segments[n-1].file != nil {
		current := o.segments[n-1]
		if current.size < o.config.SegmentBytes {
			return current, nil
		}
		if err := current.close(); err != nil {
			return nil, err
		}
	}
	created, err := createSegment(o.config.Dir, next)
	if err != nil {
		return nil, err
	}
	o.segments = append(o.segments, created)
	return created, nil
}

func (o *Outbox) publishLocked(subject, id string, sequence uint64, data []byte) (jetstream.PubAckFuture, error) {
	future, err := o.js.PublishMsgAsync(&nats.Msg{
		Subject: subject, Data: data, Header: nats.Header{jetstream.MsgIDHeader: []string{id}},
	})
	if err == nil {
		o.inFlight[sequence] = struct{}{}
	}
	return future, err
}

func (o *Outbox) acknowledged(sequence uint64, kind event.Kind) {
	o.metrics.events.WithLabelValues(string(kind), "acknowledged").Inc()
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.inFlight, sequence)
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
	select {
	case o.drain <- struct{}{}:
	default:
	}
}

// sync makes every event appended so far durable on this machine's disk.
func (o *Outbox) sync() error {
	o.mu.Lock()
	var file *os.File
	if n := len(o.segments); n > 0 && o.dirty {
		file = o.segments[n-1].file
	}
	o.dirty = false
	o.mu.Unlock()
	if file == nil {
		return nil
	}
	// A segment that was closed meanwhile was synced by its close.
	if err := file.Sync(); err != nil && !errors.Is(err, os.ErrClosed) {
		o.mu.Lock()
		o.dirty = true
		o.mu.Unlock()
		return err
	}
	return nil
}
