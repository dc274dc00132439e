package ledgertest

import (
	"time"

	"tollgate/ledger"
)

// Shared is the slot of the counters that all apps share.
const Shared = "shared"

// Reserve is one request with every limit it must pass.
type Reserve struct {
	ID, App, Generation string
	TTL                 time.Duration // until the reservation's deadline
	Need                ledger.Amounts
	Counters            []ledger.Counter // each once
	Budgets             []Budget
	Rates               []Rate
}

// Budget limits one unit of one counter.
type Budget struct {
	Counter int // index into Reserve.Counters
	Unit    ledger.Unit
	Limit   int64
	Soft    bool // never a reason to refuse
}

// Rate limits a speed, in requests or tokens, or how many requests are in flight.
type Rate struct {
	ledger.Rate
	Amount int64 // a window; of requests in flight, the most
	Window time.Duration
	Burst  int64 // capacity of a bucket
	Soft   bool  // never a reason to refuse, and not charged where it does not fit
}

// Outcome is what became of a Reserve.
type Outcome string

// The outcomes. Only Allowed and Refused come with figures.
const (
	Allowed Outcome = "allowed"
	Refused Outcome = "refused" // some limit has no room
	Lost    Outcome = "lost"    // a mark is missing or of another generation
	Stale   Outcome = "stale"   // a window is over or has not begun
	Ended   Outcome = "ended"   // the reservation has ended
	Held    Outcome = "held"    // the reservation is held already
)

// Decision is the answer to a Reserve: the figures before it.
type Decision struct {
	Outcome Outcome
	Budgets []BudgetFigures
	Rates   []RateFigures
}

// BudgetFigures are those of one budget, in its unit.
type BudgetFigures struct {
	Fits       bool
	Used, Held int64
}

// RateFigures are those of one rate, in its unit.
type RateFigures struct {
	Fits bool
	Used int64
	// Wait is how long until the same need would fit, were nothing else to come; 0 if it fits; meaningless if it is above the
	// limit. Requests in flight have 1 s, for nobody knows.
	Wait time.Duration
}

// Row is what the ledger says a counter has used.
type Row struct {
	Counter ledger.Counter
	Used    ledger.Amounts
	Version int64
}

// Open is a reservation that has not ended.
type Open struct {
	ID, App  string
	Held     ledger.Amounts
	Counters []ledger.Counter
	Deadline time.Time
	// ReservedAt is when it was reserved; zero where that is not known, or where it never was.
	ReservedAt time.Time
}

// Lease is the place of one reservation among those in flight under a rate.
type Lease struct {
	App  string
	Rate ledger.Rate
	ID   string
}

// Ending is one that has. Rates are those it was charged to.
type Ending struct {
	ID          string
	Counters    []ledger.Counter
	Rates       []ledger.Rate
	Held, Spent ledger.Amounts
}

// Settlement is what the ledger has committed for one app. Opens come before Endings.
type Settlement struct {
	App     string
	Rows    []Row
	Opens   []Open
	Endings []Ending
}

// Settled says what a Settlement changed.
type Settled struct {
	Applied                     bool // false: a mark is missing, nothing was changed
	Ended, Registered, Negative int64
}

// Rebuild is everything the ledger knows of one slot. For Shared, Opens are those of all apps.
type Rebuild struct {
	Slot, Generation string
	Rows             []Row
	Opens            []Open
	Active           bool // rates start as if just used up, instead of idle
}

// CounterID names a counter independently of how a store writes its key.
type CounterID struct {
	Slot    string
	Period  ledger.Period
	Start   int64 // Unix seconds; 0 for a total
	Subject string
}

// Figures are the state of one counter.
type Figures struct{ Used, Held ledger.Amounts }

// IDOf names the counter as a request of the app meets it.
func IDOf(app string, c ledger.Counter) CounterID {
	id := CounterID{Slot: slotOf(app, c.Tier), Period: c.Period, Subject: c.Subject}
	if !c.Start.IsZero() {
		id.Start = c.Start.Unix()
	}
	return id
}

func slotOf(app string, tier ledger.Tier) string {
	if tier.Shared() {
		return Shared
	}
	return app
}
