package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// MemoryOptions of RunMemory.
type MemoryOptions struct {
	Uploads  int           // at the same time
	Size     int64         // of each, in bytes
	Streams  int           // at the same time
	Duration time.Duration // of each stream
}

// Validate joins every problem, each with its flag's name.
func (o MemoryOptions) Validate() error {
	var problems []error
	if o.Uploads < 1 || o.Uploads > 2000 {
		problems = append(problems, errors.New("--uploads: from 1 to 2000"))
	}
	if o.Size < 1<<10 || o.Size > 30<<20 {
		problems = append(problems, errors.New("--size: from 1024 bytes to 30 MiB"))
	}
	if o.Streams < 1 || o.Streams > 5000 {
		problems = append(problems, errors.New("--streams: from 1 to 5000"))
	}
	if o.Duration < time.Second || o.Duration > 10*time.Minute {
		problems = append(problems, errors.New("--duration: from 1s to 10m"))
	}
	return errors.Join(problems...)
}

// MemoryUse is the gateway's resident memory in bytes around one load.
type MemoryUse struct {
	Requests int           `json:"requests"`
	Failed   int           `json:"failed"`
	Failure  string        `json:"failure,omitempty"`
	Took     time.Duration `json:"took_ns"`
	Before   int64         `json:"before_bytes"`
	Peak     int64         `json:"peak_bytes"`
}

// MemoryResult is a run of RunMemory.
type MemoryResult struct {
	Options MemoryOptions `json:"options"`
	Streams MemoryUse     `json:"streams"`
	Uploads MemoryUse     `json:"uploads"`
}

// patientPolicy has a decision that comes late be the same one: memory is looked at, not speed.
const patientPolicy = `
degraded: {breaker: {latency: 1m, consecutive_timeouts: 1000000, error_ratio: 99%}}
`

// RunMemory looks what the gateway's resident memory peaks at: while so many slow streams run side by side, and while so many large
// bodies are on their way, all of them but for their last kilobyte before the first is whole. It errors when a request fails.
func RunMemory(ctx context.Context, o MemoryOptions, out io.Writer) (result *MemoryResult, err error) {
	fmt.Fprintln(out, "starting Postgres, Redis, NATS, settler and gateway …")
	sink := &sink{streamed: o.Duration}
	options := Options{Apps: 1, Keys: 1, Env: []string{"TOLLGATE_LIMITER_TIMEOUT=10s"}}
	s, err := startSteps(ctx, options, slices.Concat(gatewayPolicy, []byte(patientPolicy)), append(slices.Clone(servers), sink.start, (*system).makeKeys,
		(*system).startSettler, (*system).startGateway))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop(ctx)) }()
	result = &MemoryResult{Options: o}
	if err := s.warmOne(ctx); err != nil {
		return result, err
	}
	fmt.Fprintf(out, "%d streams of %s …\n", o.Streams, o.Duration)
	// They begin over half of their length, and run together for the other half.
	step := o.Duration / 2 / time.Duration(o.Streams)
	result.Streams, err = s.memoryOf(ctx, o.Streams, func(ctx context.Context, i int) error {
		sleepUntil(ctx, time.Now().Add(time.Duration(i)*step))
		return s.slowStream(ctx)
	})
	if err != nil {
		return result, err
	}
	fmt.Fprintf(out, "%d bodies of %d bytes …\n", o.Uploads, o.Size)
	gate := newGate(o.Uploads)
	result.Uploads, err = s.memoryOf(ctx, o.Uploads, func(ctx context.Context, _ int) error { return s.upload(ctx, o.Size, gate) })
	return result, errors.Join(err, result.failed())
}

func (r *MemoryResult) failed() error {
	for _, use := range []MemoryUse{r.Streams, r.Uploads} {
		if use.Failed > 0 {
			return fmt.Errorf("%d of %d requests failed, the first: %s", use.Failed, use.Requests, use.Failure)
		}
	}
	return nil
}

// Print writes the figures for people.
func (r *MemoryResult) Print(out io.Writer) error {
	const mib = 1 << 20
	o := r.Options
	_, err := fmt.Fprintf(out, `
resident memory of the gateway, MiB            before    peak    seconds
%5d streams of %-8s                     %7.1f %7.1f %10.1f
%5d bodies of %5.1f MiB, %6.1f MiB in all   %7.1f %7.1f %10.1f
`,
		o.Streams, o.Duration, float64(r.Streams.Before)/mib, float64(r.Streams.Peak)/mib, r.Streams.Took.Seconds(),
		o.Uploads, float64(o.Size)/mib, float64(o.Size)*float64(o.Uploads)/mib,
		float64(r.Uploads.Before)/mib, float64(r.Uploads.Peak)/mib, r.Uploads.Took.Seconds())
	return err
}

// memoryLimit bounds each of the loads.
const memoryLimit = 15 * time.Minute

// memoryOf has n requests made at once, and reads what the gateway's memory peaked at meanwhile.
func (s *system) memoryOf(ctx context.Context, n int, ask func(ctx context.Context, i int) error) (use MemoryUse, err error) {
	use.Requests = n
	pid := s.pids[partGateway]
	// The kernel begins a new peak.
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		return use, fmt.Errorf("begin a new peak of memory: %w", err)
	}
	before, err := status(pid)
	if err != nil {
		return use, err
	}
	use.Before = before["VmRSS"]
	ctx, cancel := context.WithTimeoutCause(ctx, memoryLimit, errors.New("requests do not end"))
	defer cancel()
	start := time.Now()
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if err := ask(ctx, i); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if use.Failed++; use.Failed == 1 {
					use.Failure = err.Error()
				}
			}
		})
	}
	all.Wait()
	use.Took = time.Since(start)
	after, err := status(pid)
	use.Peak = after["VmHWM"]
	return use, errors.Join(err, ctx.Err())
}

// warmOne asks until an answer is whole: the first request of an app finds counters that are still being rebuilt.
func (s *system) warmOne(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, errors.New("the gateway does not answer"))
	defer cancel()
	for {
		err := s.upload(ctx, 2<<10, newGate(1))
		if err == nil {
			return nil
		}
		if !sleepUntil(ctx, time.Now().Add(100*time.Millisecond)) {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// gate lets nobody through before all are there.
type gate struct {
	mu      sync.Mutex
	missing int
	open    chan struct{}
}

func newGate(n int) *gate { return &gate{missing: n, open: make(chan struct{})} }

// pass waits for the others; who gives up lets them through.
func (g *gate) pass(ctx context.Context) {
	g.mu.Lock()
	if g.missing--; g.missing == 0 {
		close(g.open)
	}
	g.mu.Unlock()
	select {
	case <-g.open:
	case <-ctx.Done():
	}
}

// upload sends a body of so many bytes, its last kilobyte when all the others have come as far, and reads the answer.
func (s *system) upload(ctx context.Context, size int64, g *gate) error {
	head := fmt.Sprintf(`{"model":%q,"max_tokens":64,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,`, model)
	const tail = `"}}]}]}`
	passed := false
	defer func() {
		if !passed {
			g.pass(ctx)
		}
	}()
	read, write := io.Pipe()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		fill := size - int64(len(head)) - int64(len(tail)) - 1024
		_, err := io.Copy(write, io.MultiReader(strings.NewReader(head), io.LimitReader(letters{}, fill)))
		if err == nil {
			passed = true
			g.pass(ctx)
			_, err = io.Copy(write, io.MultiReader(io.LimitReader(letters{}, 1024), strings.NewReader(tail)))
		}
		return errors.Join(err, write.CloseWithError(err))
	})
	group.Go(func() error {
		answer, err := s.post(ctx, read, size)
		if err == nil {
			err = checkAnswer(answer, false)
		}
		return errors.Join(err, read.CloseWithError(err))
	})
	return group.Wait()
}

// letters is a text without an end.
type letters struct{}

// Read fills p.
func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'A'
	}
	return len(p), nil
}

// slowStream reads a stream to its end.
func (s *system) slowStream(ctx context.Context) error {
	body := fmt.Sprintf(`{"model":%q,"max_tokens":64,"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"Say little, slowly."}]}`, model)
	answer, err := s.post(ctx, strings.NewReader(body), int64(len(body)))
	if err != nil {
		return err
	}
	if !strings.HasSuffix(string(answer), "data: [DONE]\n\n") {
		return errors.New("the stream ends without [DONE]")
	}
	return nil
}

// post sends one request on a connection of its own and returns the whole answer, which must have the status 200.
func (s *system) post(ctx context.Context, body io.Reader, size int64) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.gateway+"/v1/chat/completions", body)
	if err != nil {
		return nil, err
	}
	request.ContentLength = size
	request.Header.Set("Authorization", "Bearer "+s.callers[0].key)
	request.Header.Set("Content-Type", "application/json")
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(response.Body)
	err = errors.Join(err, response.Body.Close())
	if err == nil && response.StatusCode != http.StatusOK {
		err = &statusError{response.StatusCode, string(answer)}
	}
	return answer, err
}

// sink is a provider that keeps nothing of what it is sent. The simulator keeps whole bodies.
type sink struct {
	streamed time.Duration // of a stream
}

// start serves in this process until the system stops.
func (k *sink) start(s *system, _ context.Context, _ Options) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.sim = listener.Addr().String()
	server := &http.Server{Handler: http.HandlerFunc(k.serve), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	s.onStop(func(context.Context) error {
		err := server.Close()
		if e := <-served; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
		return err
	})
	return nil
}

const sinkUsage = `"usage":{"prompt_tokens":60,"completion_tokens":20,"total_tokens":80}`

// serve answers a stream for whose body asks for one, and a plain answer otherwise.
func (k *sink) serve(w http.ResponseWriter, r *http.Request) {
	body := bufio.NewReader(r.Body)
	head, _ := body.Peek(512) // a shorter body is all there
	if _, err := io.Copy(io.Discard, body); err != nil {
		panic(http.ErrAbortHandler)
	}
	if !strings.Contains(string(head), `"stream":true`) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"id":"c","model":"`+model+`","choices":[{"message":{"content":"Yes."}}],`+sinkUsage+`}`)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for range streamChunks {
		_, _ = io.WriteString(w, `data: {"id":"c","model":"`+model+`","choices":[{"delta":{"content":"word "}}]}`+"\n\n")
		_ = http.NewResponseController(w).Flush()
		if !sleepUntil(r.Context(), time.Now().Add(k.streamed/streamChunks)) {
			return
		}
	}
	_, _ = io.WriteString(w, `data: {"id":"c","model":"`+model+`","choices":[],`+sinkUsage+"}\n\ndata: [DONE]\n\n")
}
