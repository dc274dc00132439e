package bench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// What a run is held against.
const (
	maxPathRatio = 4.0                  // the whole path's processor time a request, in bare proxies
	maxAddedP99  = 5 * time.Millisecond // over the provider alone, where the provider takes its time
	maxMemory    = 100 << 20            // of the gateway
)

// Goal is one target of the project and what this run says to it.
type Goal struct {
	Name   string  `json:"name"`
	Load   string  `json:"load,omitempty"`
	Limit  float64 `json:"limit"`
	Figure float64 `json:"figure"`
	Unit   string  `json:"unit"`
	Met    bool    `json:"met"`
}

// find returns the point of a target under a load, nil when it was not measured.
func (r *Result) find(target string, l Load) *Point {
	for i := range r.Points {
		if p := &r.Points[i]; p.Target == target && p.Load == l {
			return p
		}
	}
	return nil
}

// Goals compares the run with the project's targets.
func (r *Result) Goals() []Goal {
	var goals []Goal
	add := func(name, load string, limit, figure float64, unit string) {
		goals = append(goals, Goal{Name: name, Load: load, Limit: limit, Figure: figure, Unit: unit, Met: figure <= limit})
	}
	var peak int64
	failed := 0
	for i := range r.Points {
		p := &r.Points[i]
		failed += p.Failed
		peak = max(peak, p.Memory[partGateway].Peak)
		direct, proxy := r.find(TargetDirect, p.Load), r.find(TargetProxy, p.Load)
		if p.Target != TargetTollgate || direct == nil || proxy == nil {
			continue
		}
		if p.Upstream == 0 && proxy.Path > 0 {
			add("whole path's processor time, in bare proxies", p.Load.String(), maxPathRatio, p.Path/proxy.Path, "×")
		}
		if p.Upstream > 0 {
			add("p99 above direct", p.Load.String(), float64(maxAddedP99)/float64(time.Millisecond), p.Total.P99-direct.Total.P99, "ms")
		}
	}
	add("gateway's memory, peak", "", maxMemory>>20, float64(peak)/(1<<20), "MiB")
	add("requests that failed or broke off", "", 0, float64(failed), "")
	return goals
}

// Failed tells how many requests of the run did not get a whole answer.
func (r *Result) Failed() (n int, first string) {
	for i := range r.Points {
		n += r.Points[i].Failed
		if first == "" {
			first = r.Points[i].Failure
		}
	}
	return n, first
}

// Print writes the tables for people.
func (r *Result) Print(out io.Writer) error {
	fmt.Fprintf(out, "\n%d cores shared by everything, %s, %s a point. CPU in µs a request; ms for p50, p99 and the distance to direct.\n",
		r.Cores, r.Go, r.Length)
	var idle []string
	for _, name := range sortedParts(r.Idle) {
		idle = append(idle, fmt.Sprintf("%s %.0f", name, r.Idle[name]))
	}
	fmt.Fprintf(out, "Idle, in µs a second: %s\n\n", strings.Join(idle, ", "))
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(format string, args ...any) {
		fmt.Fprintf(t, strings.ReplaceAll(format, " ", "\t")+"\t\n", args...)
	}
	for i := range r.Points {
		p := &r.Points[i]
		if p.Target == TargetDirect && p.Connections == r.Points[0].Connections {
			if i > 0 {
				if err := t.Flush(); err != nil {
					return err
				}
				fmt.Fprintln(out)
			}
			fmt.Fprintln(out, strings.TrimSuffix(p.Load.String(), fmt.Sprintf(", %d connections", p.Connections)))
			row("target c req/s ×direct ×proxy p50 p99 +p50 +p99 first_p50 first_p99 PATH ×proxy gateway settler redis nats postgres proxy " +
				"sim load MiB settle_s foreign")
		}
		r.printPoint(row, p)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, g := range r.Goals() {
		verdict := "met    "
		if !g.Met {
			verdict = "NOT MET"
		}
		fmt.Fprintf(out, "%s  %s: %.4g %s, at most %.4g", verdict, g.Name, g.Figure, g.Unit, g.Limit)
		if g.Load != "" {
			fmt.Fprintf(out, " (%s)", g.Load)
		}
		fmt.Fprintln(out)
	}
	return nil
}

func (r *Result) printPoint(row func(string, ...any), p *Point) {
	direct, proxy := r.find(TargetDirect, p.Load), r.find(TargetProxy, p.Load)
	if direct == nil || proxy == nil {
		return // the run was ended in the middle of a load
	}
	server := map[string]string{TargetDirect: partSim, TargetProxy: partProxy, TargetTollgate: partGateway}[p.Target]
	cells := []any{
		p.Target, p.Connections, p.Rate, p.Rate / direct.Rate, p.Rate / proxy.Rate, p.Total.P50, p.Total.P99,
		p.Total.P50 - direct.Total.P50, p.Total.P99 - direct.Total.P99, p.First.P50, p.First.P99, p.Path, p.Path / proxy.Path,
	}
	for _, name := range []string{partGateway, partSettler, partRedis, partNATS, partPostgres, partProxy, partSim, partLoad} {
		cells = append(cells, p.CPU[name])
	}
	cells = append(cells, float64(max(p.Memory[server].Peak, p.Memory[server].Now))/(1<<20), p.Settling.Seconds(), p.Foreign)
	row("%s %d %.0f %.3f %.3f %.2f %.2f %.2f %.2f %.2f %.2f %.0f %.2f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.1f %.1f %.2f", cells...)
}
