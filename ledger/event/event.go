// Package event defines what happened: the events that gateways and settlers put on the stream, their subjects and their
// JSON encoding. An event says everything needed to settle it, so events of one reservation may arrive in any order.
package event

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"tollgate/ledger"
)

// Version is the schema version that this code writes and the only one it reads.
const Version = 1

// Stream is the JetStream stream that carries every event, Subjects the subjects it captures.
const (
	Stream   = "TOLLGATE_LEDGER"
	Subjects = "ledger.>"
)

// Kind is what happened.
type Kind string

// The kinds of events.
const (
	KindReserved Kind = "reserved" // amounts were set aside; the provider is about to be called
	KindExtended Kind = "extended" // its answer outgrows that, so more was
	KindUsed     Kind = "used"     // the provider was called; what it used
	KindReleased Kind = "released" // nothing was spent
	KindExpired  Kind = "expired"  // the outcome never arrived
	KindAdjusted Kind = "adjusted" // what a request was charged was corrected
	KindGranted  Kind = "granted"  // budget was added
	KindRefused  Kind = "refused"  // refusals, aggregated
	KindPolicy   Kind = "policy"   // a gateway took a policy into force
)

// Event is one fact. Exactly the part that belongs to its kind is set.
type Event struct {
	V          int       `json:"v"`
	ID         string    `json:"id"` // UUIDv7:kind, unique for ever; also Nats-Msg-Id, with #… behind it after the stream lost it
	Kind       Kind      `json:"kind"`
	App        string    `json:"app"`
	OccurredAt time.Time `json:"occurred_at"`        // by the producer's clock, calibrated against Redis
	Producer   string    `json:"producer"`           // gateway or settler id
	Sequence   uint64    `json:"sequence,omitempty"` // per producer, from 1 without gap; 0 for producers that do not number
	TraceID    string    `json:"trace_id,omitempty"`

	Reservation *Reservation `json:"reservation,omitempty"` // reserved, extended, used, released, expired, adjusted
	Outcome     *Outcome     `json:"outcome,omitempty"`     // used, adjusted
	Release     *Release     `json:"release,omitempty"`     // released
	Refusals    *Refusals    `json:"refusals,omitempty"`    // refused
	Policy      *Policy      `json:"policy,omitempty"`      // policy
	Grant       *Grant       `json:"grant,omitempty"`       // granted
	Adjustment  *Adjustment  `json:"adjustment,omitempty"`  // adjusted
}

// Reservation is what was set aside for one request, and for whom.
type Reservation struct {
	ID             string         `json:"id"` // UUIDv7; its time decides the partition of every row about it
	Key            string         `json:"key"`
	User           string         `json:"user,omitempty"`
	Plan           string         `json:"plan"`
	Provider       string         `json:"provider"`
	ProviderKey    string         `json:"provider_key,omitempty"` // name of the key that it is asked with, never the key
	ModelRequested string         `json:"model_requested"`
	ModelJudged    string         `json:"model_judged,omitempty"`  // as the limits name it, when that is not ModelRequested
	Model          string         `json:"model"`                   // asked of the provider
	Endpoint       string         `json:"endpoint"`                // route, e.g. /v1/chat/completions
	Attempt        int            `json:"attempt"`                 // of the same call, from 1; each has a reservation of its own
	FirstAttempt   string         `json:"first_attempt,omitempty"` // reservation id of the call's first, "" for that one itself
	Streamed       bool           `json:"streamed,omitempty"`
	Held           ledger.Amounts `json:"held"`                 // at first, and charged to rates
	Extended       ledger.Amounts `json:"extended,omitzero"`    // held besides, on counters alone, since the answer outgrew it
	Extensions     int            `json:"extensions,omitempty"` // how often that was raised
	Counters       Counters       `json:"counters,omitempty"`
	Rates          []Rate         `json:"rates,omitempty"`
	PriceRow       string         `json:"price_row,omitempty"` // "" when the model has no price and no money budget applied
	ReservedAt     time.Time      `json:"reserved_at"`
	Deadline       time.Time      `json:"deadline"` // after it, the reservation may be expired
	OnExpiry       OnExpiry       `json:"on_expiry"`
	PolicyRevision string         `json:"policy_revision"`
	Flags          []string       `json:"flags,omitempty"` // degraded, shadow, unpriced, …
}

// HeldInAll is what the reservation holds on its counters.
func (r *Reservation) HeldInAll() ledger.Amounts { return r.Held.Add(r.Extended) }

// Rate is a rate that a reservation was charged to, with what must be known to charge it anew after its state was lost: the
// window, and of a token bucket what it gives in it and holds. Zero where events of an earlier version do not say.
type Rate struct {
	ledger.Rate
	WindowMS int64 `json:"window_ms,omitempty"`
	Amount   int64 `json:"amount,omitempty"` // in the rate's unit, like Burst
	Burst    int64 `json:"burst,omitempty"`
}

// RateNames names the rates of the reservation.
func (r *Reservation) RateNames() []ledger.Rate {
	names := make([]ledger.Rate, len(r.Rates))
	for i := range r.Rates {
		names[i] = r.Rates[i].Rate
	}
	return names
}

// OnExpiry says what an expiry charges.
type OnExpiry string

// The choices of the policy's reservations.expired.
const (
	ExpiryCharge  OnExpiry = "charge"  // the estimate, marked unconfirmed
	ExpiryRelease OnExpiry = "release" // nothing
)

// Outcome is what the provider used.
type Outcome struct {
	ModelServed string            `json:"model_served"`
	Usage       ledger.Usage      `json:"usage"`
	UsageState  ledger.UsageState `json:"usage_state"`
	// Others is what other models of the provider used for the same answer. It is in Cost, and neither in Usage nor in Spent's tokens.
	Others      []ledger.ModelUsage `json:"others,omitempty"`
	ServiceTier ledger.ServiceTier  `json:"service_tier,omitempty"` // at which the provider served it
	Cost        ledger.NanoUSD      `json:"cost_nanousd"`
	Components  []Component         `json:"components,omitempty"` // sum to Cost
	PriceRow    string              `json:"price_row,omitempty"`
	// ProviderCost is what the provider said that the answer cost, nil where it did not. Nothing is charged by it.
	ProviderCost *ledger.NanoUSD `json:"provider_cost_nanousd,omitempty"`
	Status       int             `json:"status"`          // the provider's HTTP status
	Tries        int             `json:"tries,omitempty"` // connections that were tried for it, when more than one
	UpstreamID   string          `json:"upstream_id,omitempty"`
	Finish       ledger.Reason   `json:"finish"` // OK, CLIENT_GONE, UPSTREAM_CUT, …
	OnDisconnect string          `json:"on_disconnect,omitempty"`
	FirstByteMS  int64           `json:"first_byte_ms,omitempty"`
	DurationMS   int64           `json:"duration_ms,omitempty"`
}

// Spent is what the outcome takes from every budget: one request, its tokens, its cost.
func (o Outcome) Spent() ledger.Amounts {
	return ledger.Amounts{Requests: 1, Tokens: o.Usage.Total(), NanoUSD: o.Cost}
}

// Component is the cost of one class; Tokens counts calls where the class is one of calls.
type Component struct {
	Class  ledger.Class   `json:"class"`
	Tokens ledger.Tokens  `json:"tokens"`
	Price  ledger.NanoUSD `json:"nanousd_per_million"`
	Cost   ledger.NanoUSD `json:"nanousd"`
	// Model and PriceRow are set where another model used it than the one that answered.
	Model    string `json:"model,omitempty"`
	PriceRow string `json:"price_row,omitempty"`
}

// Release says why nothing was spent.
type Release struct {
	Reason ledger.Reason `json:"reason"`
	Status int           `json:"status,omitempty"` // the provider's HTTP status, when it answered
	Tries  int           `json:"tries,omitempty"`  // connections that were tried for it, when more than one
}

// Refusals counts refusals of one span of time, within one hour by UTC, by what refused them.
type Refusals struct {
	From   time.Time      `json:"from"`
	Until  time.Time      `json:"until"`
	Counts []RefusalCount `json:"counts"`
}

// RefusalCount is how often one limit was the final layer hit. Layer, Limit and Subject are "" where something else than a
// limit refused. A Subject, and an App with it, that begins with "…" stands for several.
type RefusalCount struct {
	Layer    ledger.Tier   `json:"layer"`
	Reason   ledger.Reason `json:"reason"`
	Limit    string        `json:"limit"`
	Subject  string        `json:"subject"`
	App      string        `json:"app"`
	Endpoint string        `json:"endpoint"`
	Count    int64         `json:"count"`
}

// Policy is the part of a policy that finance needs to read budgets against their limits.
type Policy struct {
	Revision string        `json:"revision"`
	Limits   []PolicyLimit `json:"limits"`
}

// PolicyLimit is one budget of the policy; its counters are those of Family and Period.
type PolicyLimit struct {
	Name      string           `json:"name"`
	Tier      ledger.Tier      `json:"tier"`
	Family    string           `json:"family"`
	Unit      ledger.Unit      `json:"unit"`
	Period    ledger.Period    `json:"period"`
	Limit     int64            `json:"limit"` // requests, tokens or nano-dollars
	Hard      bool             `json:"hard"`
	Overrides []PolicyOverride `json:"overrides,omitempty"`
}

// PolicyOverride is another limit for one named subject, until an instant or for good.
type PolicyOverride struct {
	Name  string    `json:"name"`
	Limit int64     `json:"limit"`
	Until time.Time `json:"until,omitzero"`
}

// Subject is the NATS subject of the event: ledger.<kind>.<app>.
func (e *Event) Subject() string { return "ledger." + string(e.Kind) + "." + e.App }

// ErrInvalid is wrapped by Decode for bytes that can never become a valid event, however often they are delivered.
var ErrInvalid = errors.New("invalid event")

// Check tells why the event could not be decoded again. Every error wraps ErrInvalid.
func (e *Event) Check() error {
	if err := e.check(); err != nil {
		return fmt.Errorf("%w %q: %w", ErrInvalid, e.ID, err)
	}
	return nil
}

func (e *Event) check() error {
	if e.V != Version {
		return fmt.Errorf("schema version %d, want %d", e.V, Version)
	}
	if _, err := PartitionTime(e.ID); err != nil {
		return err
	}
	switch {
	case e.App == "" || strings.ContainsAny(e.App, " .*>\t\r\n"):
		return fmt.Errorf("app %q cannot be part of a subject", e.App)
	case e.OccurredAt.IsZero():
		return errors.New("no occurred_at")
	}
	switch e.Kind {
	case KindReserved, KindExtended:
		return e.checkReservation()
	case KindUsed:
		return errors.Join(e.checkReservation(), e.checkOutcome())
	case KindReleased:
		if e.Release == nil {
			return errors.New("released without release")
		}
		return e.checkReservation()
	case KindExpired:
		return e.checkReservation()
	case KindRefused:
		return e.checkRefusals()
	case KindPolicy:
		if e.Policy == nil {
			return errors.New("policy without policy")
		}
	case KindGranted:
		return e.checkGrant()
	case KindAdjusted:
		return errors.Join(e.checkAdjustment(), e.checkReservation(), e.checkOutcome())
	default:
		return fmt.Errorf("unknown kind %q", e.Kind)
	}
	return nil
}

func (e *Event) checkReservation() error {
	r := e.Reservation
	switch {
	case r == nil:
		return fmt.Errorf("%s without reservation", e.Kind)
	case r.Held.Requests < 0 || r.Held.Tokens < 0 || r.Held.NanoUSD < 0:
		return fmt.Errorf("reservation %s holds a negative amount", r.ID)
	case r.Extended.Requests < 0 || r.Extended.Tokens < 0 || r.Extended.NanoUSD < 0 || r.Extensions < 0:
		return fmt.Errorf("reservation %s is extended by a negative amount", r.ID)
	case r.ReservedAt.IsZero() || r.Deadline.IsZero():
		return fmt.Errorf("reservation %s has no times", r.ID)
	case r.OnExpiry != ExpiryCharge && r.OnExpiry != ExpiryRelease:
		return fmt.Errorf("reservation %s: unknown on_expiry %q", r.ID, r.OnExpiry)
	}
	id := ID(r.ID, e.Kind)
	switch {
	case e.Kind == KindAdjusted && e.Adjustment != nil:
		id = AdjustedID(r.ID, e.Adjustment.Number)
	case e.Kind == KindExtended && r.Extensions > 0:
		id = ExtensionID(r.ID, r.Extensions)
	case e.Kind == KindExtended:
		return fmt.Errorf("reservation %s is extended for the %d-th time", r.ID, r.Extensions)
	}
	if e.ID != id {
		return fmt.Errorf("event %s is not the %s event of reservation %s", e.ID, e.Kind, r.ID)
	}
	return nil
}

func (e *Event) checkOutcome() error {
	o := e.Outcome
	if o == nil {
		return fmt.Errorf("%s without outcome", e.Kind)
	}
	negative := o.Usage.Negative() || o.Cost < 0
	for _, other := range o.Others {
		negative = negative || other.Usage.Negative()
	}
	if negative {
		return errors.New("outcome has a negative amount")
	}
	var sum ledger.NanoUSD
	for _, c := range o.Components {
		sum += c.Cost
	}
	if sum != o.Cost {
		return fmt.Errorf("components sum to %d, cost is %d", sum, o.Cost)
	}
	return nil
}

func (e *Event) checkRefusals() error {
	r := e.Refusals
	switch {
	case r == nil:
		return errors.New("refused without refusals")
	case r.From.IsZero() || r.Until.Before(r.From):
		return fmt.Errorf("refusals from %s until %s", r.From, r.Until)
	}
	for _, c := range r.Counts {
		if c.Count <= 0 {
			return fmt.Errorf("%d refusals with reason %s", c.Count, c.Reason)
		}
	}
	return nil
}

// Hash is the SHA-256 of the event's encoded bytes: the same id with another hash is a conflict.
func Hash(data []byte) [sha256.Size]byte { return sha256.Sum256(data) }
