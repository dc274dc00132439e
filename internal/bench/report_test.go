package bench

import (
	"bytes"
	"compress/gzip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSpread(t *testing.T) {
	t.Parallel()
	var values []time.Duration
	for i := 1000; i > 0; i-- {
		values = append(values, time.Duration(i)*time.Millisecond)
	}
	require.Equal(t, Spread{P50: 501, P95: 951, P99: 991, P999: 1000, Max: 1000}, spread(values))
	require.Equal(t, Spread{}, spread(nil))
}

func TestSummaryCountsAfterTheWarmup(t *testing.T) {
	t.Parallel()
	ms := func(start, first, end int) operation {
		return operation{start: time.Duration(start) * time.Millisecond, first: time.Duration(first) * time.Millisecond, end: time.Duration(end) * time.Millisecond}
	}
	failed := ms(1500, 1600, 1600)
	failed.failed = true
	var p Point
	p.summarize([]operation{ms(0, 5, 10), ms(990, 1005, 1010), ms(1010, 1015, 1030), failed, ms(1980, 1990, 2010)}, time.Second, time.Second)
	require.Equal(t, 2, p.Requests, "began after the warm-up")
	require.Equal(t, 1, p.Failed)
	require.InDelta(t, 2, p.Rate, 0, "ended within the second")
	require.InDelta(t, 30, p.Total.Max, 0)
	require.InDelta(t, 10, p.First.Max, 0)
}

// sample is a run with one load without a wait and one with.
func sample() *Result {
	plain, slow := Load{Connections: 64}, Load{Connections: 64, Upstream: 50 * time.Millisecond}
	return &Result{
		Cores: 2, Length: time.Second, Idle: map[string]float64{partRedis: 5},
		Points: []Point{
			{Target: TargetDirect, Load: plain, Rate: 100, Total: Spread{P99: 1}},
			{Target: TargetProxy, Load: plain, Rate: 50, Path: 100, Total: Spread{P99: 2}},
			{Target: TargetTollgate, Load: plain, Rate: 10, Path: 450, Total: Spread{P99: 9}, Memory: map[string]Memory{partGateway: {Peak: 50 << 20}}},
			{Target: TargetDirect, Load: slow, Rate: 100, Total: Spread{P99: 51}},
			{Target: TargetProxy, Load: slow, Rate: 50, Path: 100, Total: Spread{P99: 52}},
			{Target: TargetTollgate, Load: slow, Rate: 10, Path: 900, Total: Spread{P99: 54}, Failed: 3, Failure: "status 503"},
		},
	}
}

func TestGoals(t *testing.T) {
	t.Parallel()
	met := map[string]bool{}
	for _, g := range sample().Goals() {
		met[g.Name] = g.Met
	}
	require.Equal(t, map[string]bool{
		"whole path's processor time, in bare proxies": false, "p99 above direct": true,
		"gateway's memory, peak": true, "requests that failed or broke off": false,
	}, met)
	n, first := sample().Failed()
	require.Equal(t, 3, n)
	require.Equal(t, "status 503", first)
}

func TestPrint(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, sample().Print(&out))
	for _, want := range []string{
		"plain, upstream 0s\n", "plain, upstream 50ms\n", "tollgate", "4.50", // of the path's time, in proxies
		"NOT MET  whole path's processor time, in bare proxies: 4.5 ×, at most 4 (plain, upstream 0s, 64 connections)",
		"met      p99 above direct: 3 ms, at most 5 (plain, upstream 50ms, 64 connections)",
	} {
		require.Contains(t, out.String(), want)
	}
	cut := sample()
	cut.Points = cut.Points[:1]
	require.NoError(t, cut.Print(&out), "a run that ended early is printed as far as it goes")
}

func TestValidate(t *testing.T) {
	t.Parallel()
	good := Options{Duration: time.Second, Connections: []int{1}, Upstream: []time.Duration{0}, Modes: []bool{false}, Apps: 1, Keys: 1}
	require.NoError(t, good.Validate())
	err := Options{Connections: []int{0}, Upstream: []time.Duration{-1}, Keys: 1}.Validate()
	for _, flag := range []string{"--duration", "--concurrency", "--upstream", "--mode", "--apps"} {
		require.ErrorContains(t, err, flag)
	}
}

func TestRawKeepsEveryRequest(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "raw.csv.gz")
	r, err := openRaw(path, gatewayHeader)
	require.NoError(t, err)
	op := operation{start: time.Millisecond, first: 2 * time.Millisecond, end: 3 * time.Millisecond, failed: true}
	require.NoError(t, r.write(TargetProxy, Load{Streamed: true, Upstream: 50 * time.Millisecond, Connections: 16}, []operation{op, op}))
	require.NoError(t, r.close())
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	zip, err := gzip.NewReader(file)
	require.NoError(t, err)
	var text bytes.Buffer
	_, err = text.ReadFrom(zip)
	require.NoError(t, err)
	require.Equal(t, "target,streamed,upstream_ms,connections,start_us,first_us,end_us,failed\n"+
		strings.Repeat("proxy,true,50,16,1000,2000,3000,true\n", 2), text.String())
}

// TestProcessorTimeOfATree burns time in a grandchild that has ended and expects it at the root.
func TestProcessorTimeOfATree(t *testing.T) {
	t.Parallel()
	root := exec.Command("sh", "-c", `sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'; echo done; read wait`)
	in, err := root.StdinPipe()
	require.NoError(t, err)
	out, err := root.StdoutPipe()
	require.NoError(t, err)
	before, err := take(map[string]int{partLoad: os.Getpid()})
	require.NoError(t, err)
	require.NoError(t, root.Start())
	line := make([]byte, 5)
	_, err = out.Read(line)
	require.NoError(t, err)
	require.Equal(t, "done\n", string(line))

	parts := map[string]int{partPostgres: root.Process.Pid, partLoad: os.Getpid()}
	after, err := take(parts)
	require.NoError(t, err)
	used := after.used(before)
	require.Greater(t, used[partPostgres], 20*time.Millisecond)
	require.GreaterOrEqual(t, after.busy-before.busy, used[partPostgres]-2*ticks(1))
	sizes, err := memory(parts)
	require.NoError(t, err)
	require.Greater(t, sizes[partPostgres].Now, int64(100<<10))
	require.Greater(t, sizes[partLoad].Peak, sizes[partLoad].Now/2)

	require.NoError(t, in.Close())
	_ = root.Wait() // read fails at the end of its input
	_, err = take(parts)
	require.ErrorContains(t, err, "postgres")
}
