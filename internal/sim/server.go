package sim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	maxBody        = 32 << 20
	defaultProject = "proj_default"
	organization   = "org-sim"
)

// Server is the simulated provider with its books. Safe for concurrent use.
type Server struct {
	now       func() time.Time
	log       *slog.Logger
	cfg       Config
	behaviour atomic.Pointer[behaviour]
	books     books
	calls     atomic.Int64
	flying    inFlight
	routes    map[string]route
	vectors   vectors
	kept      kept

	keptResponse, gemini http.HandlerFunc // of paths that end in a name

	mu      sync.Mutex
	callers map[string]caller // by API key; complete from the start where keys are configured
}

type route struct {
	method string
	serve  func(w http.ResponseWriter, r *http.Request)
}

// caller is who an API key stands for.
type caller struct {
	keyID, project string
}

// New returns a ready Server. cfg must be valid.
func New(cfg Config) *Server {
	s := &Server{now: cfg.Now, log: cfg.Log, cfg: cfg, callers: map[string]caller{}}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	b := cfg.behaviour()
	s.behaviour.Store(&b)
	for _, k := range cfg.Keys {
		key, project, found := strings.Cut(string(k), ":")
		if !found {
			project = defaultProject
		}
		s.callers[key] = caller{KeyID(key), project}
	}
	s.keptResponse, s.gemini = s.api(openAI, s.serveKept), s.api(gemini, s.serveGemini)
	s.routes = map[string]route{
		"/v1/chat/completions":               {http.MethodPost, s.api(openAI, s.serveChat)},
		"/v1/completions":                    {http.MethodPost, s.api(openAI, s.serveCompletions)},
		"/v1/embeddings":                     {http.MethodPost, s.api(openAI, s.serveEmbeddings)},
		"/v1/messages":                       {http.MethodPost, s.api(anthropic, s.serveMessages)},
		"/v1/messages/count_tokens":          {http.MethodPost, s.api(anthropic, s.serveCountTokens)},
		"/v1/responses":                      {http.MethodPost, s.api(openAI, s.serveResponses)},
		"/v1/responses/input_tokens":         {http.MethodPost, s.api(openAI, s.serveCountResponse)},
		"/v1/images/generations":             {http.MethodPost, s.api(openAI, s.serveImages)},
		"/v1/models":                         {http.MethodGet, s.api(openAI, s.serveModels)},
		"/v1/organization/usage/completions": {http.MethodGet, s.admin(s.serveCompletionsUsage)},
		"/v1/organization/usage/embeddings":  {http.MethodGet, s.admin(s.serveEmbeddingsUsage)},
		"/v1/organization/costs":             {http.MethodGet, s.admin(s.serveCosts)},
		"/sim/books":                         {http.MethodGet, s.serveBooks},
		"/sim/totals":                        {http.MethodGet, s.serveTotals},
		"/sim/control":                       {http.MethodPost, s.serveControl},
		"/sim/reset":                         {http.MethodPost, s.serveReset},
	}
	return s
}

// KeyID is the id under which the books and reports know an API key. The empty key has an id too.
func KeyID(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "key_" + hex.EncodeToString(sum[:8])
}

// Handler serves the whole simulator.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serve) }

// Run serves on listener, which it closes, until ctx ends or serving fails. Answers under way may finish within
// Config.ShutdownTimeout; whatever runs longer is cut, which is no error. It returns when all of it has ended.
func (s *Server) Run(ctx context.Context, listener net.Listener) error {
	// Closing a server does not wait for its handlers; a connection's last state comes after its last handler.
	var connections sync.WaitGroup
	server := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				connections.Add(1)
			case http.StateClosed, http.StateHijacked:
				connections.Done()
			}
		},
	}
	s.log.InfoContext(ctx, "provider simulator started", "address", listener.Addr().String())
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve %s: %w", listener.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		<-groupCtx.Done()
		stopCtx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), s.cfg.ShutdownTimeout,
			errors.New("provider simulator: answers did not finish in time"))
		defer cancel()
		if err := server.Shutdown(stopCtx); err != nil {
			s.log.Warn("provider simulator cut running answers", "cause", context.Cause(stopCtx).Error())
			return server.Close()
		}
		return nil
	})
	err := group.Wait()
	connections.Wait()
	s.log.Info("provider simulator stopped")
	return err
}

// SetDefaults replaces the settings that every later request starts from, e.g. "latency=50ms no_done". The empty text brings
// the Config's back. Requests under way keep theirs. On an error nothing changes.
func (s *Server) SetDefaults(settings string) error {
	b := s.cfg.behaviour()
	if err := b.setAll(settings); err != nil {
		return err
	}
	s.behaviour.Store(&b)
	return nil
}

// Books returns the records with a number above since, in order of their numbers.
func (s *Server) Books(since uint64) []Record {
	v := s.books.view()
	var records []Record
	for i := int(min(since, uint64(v.len()))); i < v.len(); i++ {
		records = append(records, v.record(i))
	}
	return records
}

// Totals returns the sums over all records.
func (s *Server) Totals() Totals {
	t := s.books.sums()
	t.Calls = s.calls.Load()
	t.PeakInFlight = s.flying.peak.Load()
	return t
}

// Reset empties the books and sets the counts to zero. Settings stay. Requests under way are billed into the empty books.
func (s *Server) Reset() {
	s.books.reset()
	s.calls.Store(0)
	s.flying.peak.Store(s.flying.now.Load())
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	route, found := s.routes[r.URL.Path]
	switch {
	case !found && strings.HasPrefix(r.URL.Path, "/v1/models/"):
		route = s.routes["/v1/models"]
	case !found && strings.HasPrefix(r.URL.Path, responsesPath) && (r.Method == http.MethodGet || r.Method == http.MethodDelete):
		route.method, route.serve = r.Method, s.keptResponse
	case !found && strings.HasPrefix(r.URL.Path, geminiPath):
		route.method, route.serve = http.MethodPost, s.gemini
	case !found:
		unknownURL(r).write(w)
		return
	}
	if r.Method != route.method {
		methodNotAllowed(r).write(w)
		return
	}
	route.serve(w, r)
}

// call is one API request as it came in.
type call struct {
	caller
	request  *http.Request
	received time.Time // for the books
	started  time.Time // for waits and durations
	id       string    // of the request
	tollgate string
	client   string
	landed   bool // no longer in flight
}

// inFlight counts the calls that are being answered, and the most that ever were at once. A call ends when it is billed or
// refused, which is before its caller can know.
type inFlight struct {
	now, peak atomic.Int64
}

func (f *inFlight) begin() {
	for n := f.now.Add(1); ; {
		if peak := f.peak.Load(); n <= peak || f.peak.CompareAndSwap(peak, n) {
			return
		}
	}
}

func (f *inFlight) end(c *call) {
	if !c.landed {
		c.landed = true
		f.now.Add(-1)
	}
}

// api wraps the endpoints that a caller with an API key may use. Their error goes to the caller.
func (s *Server) api(m manner, serve func(http.ResponseWriter, *call) *apiError) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		s.calls.Add(1)
		s.flying.begin()
		c := call{request: r, received: s.now(), started: time.Now(), id: "req_" + newAnswerKey().String()}
		defer s.flying.end(&c)
		m.greet(w.Header(), c.id)
		var refused *apiError
		if c.caller, refused = s.authenticate(r, m.key(r)); refused == nil {
			c.tollgate = headerText(r.Header, "X-Tollgate-Request-Id")
			c.client = headerText(r.Header, "X-Client-Request-Id")
			refused = serve(w, &c)
		}
		if refused != nil {
			s.flying.end(&c)
			m.refuse(w, refused, c.id)
		}
	}
}

func headerText(header http.Header, canonical string) string {
	values := header[canonical]
	if len(values) == 0 {
		return ""
	}
	return values[0][:min(len(values[0]), maxHeaderText)]
}

func (s *Server) authenticate(r *http.Request, key string) (caller, *apiError) {
	s.mu.Lock()
	c, known := s.callers[key]
	s.mu.Unlock()
	if !known {
		if len(s.cfg.Keys) > 0 {
			return caller{}, refuseKey(key)
		}
		c = caller{KeyID(key), defaultProject}
		s.mu.Lock()
		s.callers[strings.Clone(key)] = c
		s.mu.Unlock()
	}
	if project := headerText(r.Header, "Openai-Project"); project != "" {
		c.project = project
	}
	return c, nil
}

func refuseKey(key string) *apiError {
	if key == "" {
		return unauthorized("You didn't provide an API key. You need to provide your API key in an Authorization header"+
			" using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).", "")
	}
	return unauthorized("Incorrect API key provided.", "invalid_api_key")
}

// admin wraps the reports.
func (s *Server) admin(serve func(http.ResponseWriter, *http.Request) *apiError) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		if key := bearer(r); s.cfg.AdminKey != "" && key != string(s.cfg.AdminKey) {
			refuseKey(key).write(w)
			return
		}
		if refused := serve(w, r); refused != nil {
			refused.write(w)
		}
	}
}

// answerKey is what an answer's id is made of.
type answerKey [16]byte

func newAnswerKey() answerKey {
	var k answerKey
	for i, half := 0, uint64(0); i < len(k); i++ {
		if i%8 == 0 {
			half = rand.Uint64()
		}
		k[i] = byte(half >> (8 * (i % 8)))
	}
	return k
}

// String is 32 hexadecimal digits.
func (k answerKey) String() string { return hex.EncodeToString(k[:]) }

// answerID is the id of an answer, "" where answers have none.
func answerID(does endpoint, key answerKey) string {
	prefixes := map[endpoint]string{
		endpointChat: "chatcmpl-", endpointCompletions: "cmpl-", endpointMessages: "msg_", endpointResponses: "resp_", endpointGenerate: "gen-",
	}
	if prefix, has := prefixes[does]; has {
		return prefix + key.String()
	}
	return ""
}

// wait pauses until d has passed since from. It reports false as soon as the caller left.
func wait(ctx context.Context, from time.Time, d time.Duration) bool {
	if left := d - time.Since(from); d > 0 && left > 0 {
		timer := time.NewTimer(left)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

// bill puts one answer into the books.
func (s *Server) bill(c *call, modelAt uint8, does endpoint, id answerKey, u usage, outcome uint8) {
	defer s.flying.end(c)
	s.books.add(bill{
		received: c.received, finished: s.now(), id: id, keyID: c.keyID, project: c.project,
		tollgateID: c.tollgate, clientID: c.client, model: modelAt, does: does, usage: u, outcome: outcome,
	})
}
