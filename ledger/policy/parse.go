package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"
	_ "time/tzdata" // time zones mean the same on every machine, also where the system has no data

	"go.yaml.in/yaml/v3"

	"tollgate/ledger"
	"tollgate/ledger/event"
)

// MaxSize is the largest policy file in bytes: a stored and published policy fits one message of the stream.
const MaxSize = 512 << 10

// Parse reads and checks a policy file. ${NAME} in texts is looked up with lookupEnv (os.LookupEnv; nil finds nothing).
//
// An error is always of type Problems and lists everything that is wrong, by line.
func Parse(data []byte, lookupEnv func(string) (string, bool)) (*Policy, error) {
	if lookupEnv == nil {
		lookupEnv = func(string) (string, bool) { return "", false }
	}
	if len(data) > MaxSize {
		return nil, Problems{{Message: fmt.Sprintf("the file has %d bytes: at most %d", len(data), MaxSize)}}
	}
	root, problems := decode(data)
	if problems != nil {
		return nil, problems
	}
	r := &reader{lookupEnv: lookupEnv}
	r.refuseIndirection(root)
	f := file{r: r, policy: &Policy{}}
	f.read(value{r, root, ""})
	for _, found := range []Problems{r.problems, r.warnings} {
		found.sort()
	}
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	p := f.policy
	p.Revision = RevisionOf(data)
	p.compile()
	p.warnings = append(r.warnings, p.together()...)
	p.warnings.sort()
	return p, nil
}

var yamlError = regexp.MustCompile(`(?s)^yaml: (?:line ([0-9]+): )?(.*)$`)

// decode reads the one YAML document of the file.
func decode(data []byte) (*yaml.Node, Problems) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, Problems{{Message: "the file is empty: begin with version: 1"}}
	case err != nil:
		return nil, syntaxProblem(err)
	}
	switch err := decoder.Decode(&second); {
	case err == nil:
		return nil, Problems{{Line: second.Line, Column: second.Column, Message: "a second document begins here: a policy is one document"}}
	case !errors.Is(err, io.EOF):
		return nil, syntaxProblem(err)
	}
	return doc.Content[0], nil
}

func syntaxProblem(err error) Problems {
	p := Problem{Message: "not YAML: " + err.Error()}
	if parts := yamlError.FindStringSubmatch(err.Error()); parts != nil {
		p.Message = "not YAML: " + parts[2]
		if line, err := strconv.Atoi(parts[1]); err == nil {
			p.Line = line
		}
	}
	return Problems{p}
}

// file is the state of reading one file: sections that others refer to are read first, whatever their order.
type file struct {
	r      *reader
	policy *Policy

	providerNames, providerKeyNames, modelNames, upstreamNames, planNames []string
	upstreams                                                             map[string]bool
}

func (f *file) read(root value) {
	top := root.record("version", "timezone", "week_start", "providers", "models", "prices", "plans", "apps", "limits",
		"degraded", "reservations")
	if v, ok := top.require("version", "begin the file with version: 1"); ok {
		if v.node.Kind != yaml.ScalarNode || v.node.Value != "1" || v.node.ShortTag() != "!!int" {
			v.fail("unknown version: this program reads version 1")
		}
	}
	f.calendar(top)
	f.providers(top)
	f.models(top)
	f.prices(top)
	f.plans(top)
	f.apps(top)
	f.limits(top)
	f.degraded(top)
	f.reservations(top)
}

func (f *file) calendar(top record) {
	p := f.policy
	p.Timezone, p.Calendar = "UTC", ledger.Calendar{Location: time.UTC, WeekStart: time.Monday}
	if v, ok := top.get("timezone"); ok {
		if name, ok := v.text(); ok {
			loc, err := time.LoadLocation(name)
			if err != nil || name == "Local" {
				v.fail("unknown time zone %s: use a name such as Europe/Berlin or UTC", quote(name))
			} else {
				p.Timezone, p.Calendar.Location = name, loc
			}
		}
	}
	if v, ok := top.get("week_start"); ok {
		days := []string{"sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"}
		if name, ok := choice(v, "weekday", days...); ok {
			for i, day := range days {
				if day == name {
					p.Calendar.WeekStart = time.Weekday(i)
				}
			}
		}
	}
}

func (f *file) degraded(top record) {
	d := Degraded{
		Breaker: Breaker{ConsecutiveTimeouts: 3, ErrorRatio: 10_00, Latency: 500 * time.Millisecond, ProbeEvery: time.Second},
		Local:   Local{RequestsPerSecond: 5, TokensPerMinute: 20_000},
	}
	if v, ok := top.get("degraded"); ok {
		rec := v.record("breaker", "local", "closed_plans")
		if v, ok := rec.get("breaker"); ok {
			d.Breaker.read(v.record("consecutive_timeouts", "error_ratio", "latency", "probe_every"))
		}
		if v, ok := rec.get("local"); ok {
			local := v.record("requests_per_second", "tokens_per_minute")
			if v, ok := local.get("requests_per_second"); ok {
				d.Local.RequestsPerSecond, _ = v.count("requests", 0, maxRate)
			}
			if v, ok := local.get("tokens_per_minute"); ok {
				d.Local.TokensPerMinute, _ = v.count("tokens", 0, maxRate)
			}
		}
		if v, ok := rec.get("closed_plans"); ok {
			d.ClosedPlans = f.distinct(v.items(), f.plan)
		}
	}
	f.policy.Degraded = d
}

func (b *Breaker) read(rec record) {
	if v, ok := rec.get("consecutive_timeouts"); ok {
		n, _ := v.count("timeouts", 1, 1_000_000)
		b.ConsecutiveTimeouts = int(n)
	}
	if v, ok := rec.get("error_ratio"); ok {
		if ratio, ok := v.percent(); ok && ratio == 0 {
			v.fail("0%% would always be open: give more")
		} else {
			b.ErrorRatio = ratio
		}
	}
	if v, ok := rec.get("latency"); ok {
		b.Latency, _ = v.duration(time.Millisecond, time.Minute)
	}
	if v, ok := rec.get("probe_every"); ok {
		b.ProbeEvery, _ = v.duration(time.Millisecond, time.Hour)
	}
}

func (f *file) reservations(top record) {
	res := Reservations{TTL: 15 * time.Minute, OnExpiry: event.ExpiryCharge}
	if v, ok := top.get("reservations"); ok {
		rec := v.record("ttl", "expired")
		if v, ok := rec.get("ttl"); ok {
			res.TTL, _ = v.duration(time.Second, 24*time.Hour)
		}
		if v, ok := rec.get("expired"); ok {
			res.OnExpiry, _ = choice(v, "answer to an expired reservation", event.ExpiryCharge, event.ExpiryRelease)
		}
	}
	f.policy.Reservations = res
}

// distinct reads texts that known accepts, each once.
func (f *file) distinct(list []value, known func(value, string) bool) []string {
	seen := make(map[string]bool, len(list))
	var names []string
	for _, v := range list {
		name, ok := v.text()
		switch {
		case !ok || !known(v, name):
		case seen[name]:
			v.fail("%s is repeated: keep one", quote(name))
		default:
			seen[name] = true
			names = append(names, name)
		}
	}
	return names
}
