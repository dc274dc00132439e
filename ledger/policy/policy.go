package policy

import (
	"slices"
	"time"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/price"
)

// DefaultPlan is the plan of a key and app that name none. Every Policy has it, declared or not.
const DefaultPlan = "default"

// Policy is one policy file, checked. It must not be changed after Parse; then it is safe for concurrent use.
type Policy struct {
	Revision     string // the first 12 hexadecimal digits of the SHA-256 of the file
	Timezone     string // IANA name, "UTC" when the file says nothing
	Calendar     ledger.Calendar
	Providers    map[string]*Provider
	Models       map[string]*Model // by the name callers ask for
	Prices       []PriceRow        // in the order of the file
	Plans        map[string]*Plan  // DefaultPlan is always there
	Apps         map[string]*App   // only those that the file says something about
	Limits       []*Limit          // in the order of the file
	Degraded     Degraded
	Reservations Reservations

	judged   []*Limit // in the order of judging
	warnings Problems
}

// Provider is an upstream that models are served by.
type Provider struct {
	Name         string
	Protocol     Protocol
	BaseURL      string        // without a trailing slash
	Keys         []ProviderKey // at least one, in the order of the file
	Retries      int           // further attempts at a request that spent nothing, 0 to 5
	OnDisconnect OnDisconnect
	API          API    // how it differs from its protocol
	APIVersion   string // of Azure's dated routes, "" for the others
	Line         int
}

// API is a provider that speaks a protocol with differences that matter to a gateway.
type API string

// The APIs of the policy file. A provider that bears such a name has that API without saying so.
const (
	APIAzure   API = "azure"   // its own addresses and header for the key
	APIMistral API = "mistral" // refuses to be asked for a stream's usage, and tells it unasked
)

// Protocol is the API that a provider speaks.
type Protocol string

// The protocols of the policy file.
const (
	ProtocolOpenAI    Protocol = "openai"
	ProtocolAnthropic Protocol = "anthropic"
	ProtocolGemini    Protocol = "gemini"
)

// OnDisconnect is what becomes of the upstream request when its caller leaves.
type OnDisconnect string

// The choices of on_disconnect. OnDisconnectCancel is the default.
const (
	OnDisconnectCancel OnDisconnect = "cancel" // close the upstream request
	OnDisconnectDrain  OnDisconnect = "drain"  // read it to its end, to learn the usage
)

// Model is a name that callers may ask for.
type Model struct {
	Name     string
	Provider string // a key of Policy.Providers
	Upstream string // the model asked of the provider; Name when the file says nothing
	Line     int
}

// PriceRow is one row laid over the price book, for exactly the upstream model that it names, from From on. It takes the place of the
// book's row as a whole.
type PriceRow struct {
	price.Row
	Line int
}

// Plan is a class of callers.
type Plan struct {
	Name     string
	OnExceed OnExceed
	Line     int // 0 when DefaultPlan is not declared
}

// App is what the file says about one app. Apps that it does not name take DefaultPlan and no fallback.
type App struct {
	Name     string
	Plan     string            // a key of Policy.Plans; DefaultPlan when the file says nothing
	Fallback map[string]string // requested model → cheaper model that may be served instead
	Line     int
}

// OnExceed is what happens to a request that a limit has no room for.
type OnExceed struct {
	Action   Action
	MaxWait  time.Duration // ActionThrottle: longest time in the queue
	MaxDepth int           // ActionThrottle: most requests in the queue
}

// Action is the kind of an OnExceed.
type Action string

// The actions of the policy file. ActionReject is the default.
const (
	ActionReject   Action = "reject"
	ActionThrottle Action = "throttle"
	ActionFallback Action = "fallback"
	ActionFlag     Action = "flag"
)

// Limit is one rule of the policy. Exactly one of Budget, Rate and Concurrency is set.
type Limit struct {
	Name        string // unique within the policy
	Tier        ledger.Tier
	Family      string      // what its counters have in common, see ledger.Counter
	By          []Dimension // sorted
	Match       []Condition // sorted by Key; all must hold
	Budget      *Budget
	Rate        *Rate
	Concurrency int64      // most requests in flight; 0 when Budget or Rate is set
	Hard        bool       // a stream that outgrows the budget is ended
	Overrides   []Override // in the order of the file, lapsed ones included
	Priority    bool       // judged before the user tier
	Shadow      bool       // evaluated, never refuses
	OnExceed    *OnExceed  // nil: the plan's
	Line        int

	suffix    string // "?plan=free", the end of Family and of every subject
	overrides map[overrideKey]*Override
}

// Unit is what the limit counts; requests for a limit on concurrency.
func (l *Limit) Unit() ledger.Unit {
	switch {
	case l.Budget != nil:
		return l.Budget.Unit
	case l.Rate != nil:
		return l.Rate.Unit
	case l.Concurrency > 0:
		return ledger.UnitRequests
	default:
		return "" // nothing, while the file is read
	}
}

// OfProviderKey reports whether the limit is on some keys of a provider, or on each by itself: with another key there may be room.
func (l *Limit) OfProviderKey() bool {
	return slices.Contains(l.By, DimensionProviderKey) ||
		slices.ContainsFunc(l.Match, func(c Condition) bool { return c.Key == DimensionProviderKey })
}

// Dimension is a property of a request that limits split and match by.
type Dimension string

// The dimensions of the policy file. DimensionKey only matches, DimensionIP only splits; DimensionProviderKey, the key that the
// provider is asked with, is one of the tier provider alone.
const (
	DimensionApp      Dimension = "app"
	DimensionEndpoint Dimension = "endpoint"
	DimensionIP       Dimension = "ip"
	DimensionKey      Dimension = "key"
	DimensionModel    Dimension = "model"
	DimensionPlan     Dimension = "plan"
	DimensionProvider Dimension = "provider"

	DimensionProviderKey Dimension = "provider_key"

	DimensionUser Dimension = "user"
)

// Condition holds when the request's Key is one of Values. A user is named "user" (in every app) or "app/user"; an endpoint
// by path or kind.
type Condition struct {
	Key    Dimension
	Values []string // sorted, at least one
}

// Budget is a limit on a total over a window.
type Budget struct {
	Unit    ledger.Unit
	Period  ledger.Period
	Default int64 // requests, tokens or nano-dollars; what overrides replace. 0 refuses every subject without an override
}

// Rate is a limit on a speed.
type Rate struct {
	Algorithm ledger.Algorithm
	Unit      ledger.Unit   // requests or tokens
	Amount    int64         // per Window, after headroom; what overrides replace
	Window    time.Duration // a second, minute, hour or day
	Burst     int64         // AlgorithmTokenBucket: capacity of the bucket, Amount when the file says nothing; else 0
	Declared  int64         // per Window, before headroom
	Headroom  int64         // hundredths of a percent kept free, 0 to 9999
}

// Override is another value for one named subject of a limit's tier.
type Override struct {
	Name  string    // as in the file: a user is "user" (in every app) or "app/user"
	Value int64     // in the limit's unit, after headroom
	Burst int64     // of a token bucket
	Until time.Time // in force before this instant; zero: for good
	Line  int
}

// Degraded is what holds when Redis cannot be asked.
type Degraded struct {
	Breaker     Breaker
	Local       Local
	ClosedPlans []string // keys of Policy.Plans: refused instead of judged locally
}

// Breaker says when Redis counts as gone.
type Breaker struct {
	ConsecutiveTimeouts int           // default 3
	ErrorRatio          int64         // hundredths of a percent, default 1000 (10 %)
	Latency             time.Duration // default 500 ms
	ProbeEvery          time.Duration // default 1 s
}

// Local is what each gateway allows each app by itself. Zero allows nothing.
type Local struct {
	RequestsPerSecond int64 // default 5
	TokensPerMinute   int64 // default 20,000
}

// Reservations says how long an amount is held and what becomes of it when no outcome arrives.
type Reservations struct {
	TTL      time.Duration  // default 15 min
	OnExpiry event.OnExpiry // default ExpiryCharge
}

// Warnings lists what is allowed and probably not meant, by line.
func (p *Policy) Warnings() Problems { return p.warnings }
