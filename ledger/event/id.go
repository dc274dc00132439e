package event

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// NewReservationID makes a reservation id: a UUIDv7 whose embedded time is at.
func NewReservationID(at time.Time) string {
	id := uuid.Must(uuid.NewRandom())
	ms := uint64(at.UnixMilli())
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	id[6] = id[6]&0x0f | 0x70
	return id.String()
}

// PartitionTime is the instant embedded in the UUIDv7 that a reservation or event id begins with, in UTC. It decides the
// partition that rows about it live in, so that the same event always meets the same unique index, whenever it is delivered.
func PartitionTime(id string) (time.Time, error) {
	text, _, _ := strings.Cut(id, ":")
	u, err := uuid.Parse(text)
	if err != nil || u.Version() != 7 || len(text) != 36 {
		return time.Time{}, fmt.Errorf("id %q does not begin with a UUIDv7", id)
	}
	var ms int64
	for i := range 6 {
		ms = ms<<8 | int64(u[i])
	}
	return time.UnixMilli(ms).UTC(), nil
}

// ID is the id of an event: the UUIDv7 of what it is about and its kind. A reservation has at most one event of each kind, but
// for its extensions and adjustments, see ExtensionID and AdjustedID; events about no reservation (refused, policy) take a fresh
// UUIDv7.
func ID(uuidv7 string, kind Kind) string { return uuidv7 + ":" + string(kind) }

// ExtensionID is the id of the event that tells of a reservation's n-th extension, from 1.
func ExtensionID(uuidv7 string, n int) string {
	return ID(uuidv7, KindExtended) + ":" + strconv.Itoa(n)
}

// What gateways and settlers agree on over NATS besides events.
const (
	ControlBucket  = "TOLLGATE_CONTROL"   // KV bucket
	GenerationKey  = "generation"         // its entry that names the generation that marks in Redis must have
	ConfirmSubject = "tollgate.confirmed" // request: a producer's id; the reply is a Confirmation
	RebuildSubject = "tollgate.rebuild"   // request: a slot whose mark is missing; the reply comes when it is rebuilt

	RebuiltKey = "rebuilt" // in ControlBucket: the last generation that marks were written for, and to which Redis
	LedgerKey  = "ledger"  // in ControlBucket: which Postgres was settled in, and the highest mark that was noted there
)

// HandRebuildSubject is where a rebuild is asked for although nothing is known to be missing. The request names an app, or is empty
// for everything; the reply is a Rebuilt in JSON.
const HandRebuildSubject = "tollgate.rebuild.now"

// Rebuilt says what was written to Redis.
type Rebuilt struct {
	Apps     int    `json:"apps"`
	Counters int    `json:"counters"`
	Open     int    `json:"open"`            // reservations
	Error    string `json:"error,omitempty"` // why nothing was
}

// PresenceBucket is the KV bucket in which every live gateway keeps an entry, its producer id, renewed every PresenceRenewal. One
// that is not renewed lapses after PresenceTTL: who is silent for so long is not waited for.
const (
	PresenceBucket  = "TOLLGATE_PRESENCE"
	PresenceTTL     = 10 * time.Second
	PresenceRenewal = 2 * time.Second
)

// BarrierSubject is where one gateway is asked to adopt a generation, the request's content. The reply is BarrierDone once
// nothing that the gateway admitted before is unknown to the stream, and else says what is in the way.
func BarrierSubject(producer string) string { return "tollgate.barrier." + producer }

// BarrierDone is the reply of a gateway that has passed the barrier.
const BarrierDone = "ok"

// Newer reports whether generation a was raised after b. Generations are decimal numbers that only grow; "" is none.
func Newer(a, b string) bool { return len(a) > len(b) || len(a) == len(b) && a > b }
