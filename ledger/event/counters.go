package event

import (
	"encoding/json"
	"fmt"

	fastjson "github.com/goccy/go-json"

	"tollgate/ledger"
)

// Counters are the budget counters of a reservation. Their JSON says each window once and each subject once, since ten counters
// share three windows and five subjects:
//
//	{"windows": [{"period": "day", "start": "…", "end": "…"}, …],
//	 "subjects": [{"tier": "app", "subject": "app:checkout", "windows": [0, 1]}, …]}
//
// A subject's family is left out where it is the name of its tier. A list of whole counters is read, too: events were once
// written so.
type Counters []ledger.Counter

type (
	countersJSON struct {
		Windows  []windowJSON  `json:"windows"`
		Subjects []subjectJSON `json:"subjects"`
	}
	windowJSON struct {
		Period ledger.Period `json:"period"`
		ledger.Window
	}
	subjectJSON struct {
		Tier    ledger.Tier `json:"tier"`
		Family  string      `json:"family,omitempty"`
		Subject string      `json:"subject"`
		Windows []int       `json:"windows"` // places in the list of windows, from 0
	}
)

// MarshalJSON keeps the order of the counters.
func (c Counters) MarshalJSON() ([]byte, error) {
	var j countersJSON
	places := map[windowJSON]int{}
	for i := range c {
		x := &c[i]
		w := windowJSON{x.Period, x.Window}
		place, ok := places[w]
		if !ok {
			place = len(j.Windows)
			places[w] = place
			j.Windows = append(j.Windows, w)
		}
		if i == 0 || c[i-1].Tier != x.Tier || c[i-1].Family != x.Family || c[i-1].Subject != x.Subject {
			s := subjectJSON{Tier: x.Tier, Subject: x.Subject}
			if x.Family != string(x.Tier) {
				s.Family = x.Family
			}
			j.Subjects = append(j.Subjects, s)
		}
		s := &j.Subjects[len(j.Subjects)-1]
		s.Windows = append(s.Windows, place)
	}
	return json.Marshal(j)
}

// UnmarshalJSON errs on a subject that names a window that is not there.
func (c *Counters) UnmarshalJSON(data []byte) error {
	*c = nil
	if len(data) > 0 && data[0] != '{' { // a list, or null
		return fastjson.Unmarshal(data, (*[]ledger.Counter)(c))
	}
	var j countersJSON
	if err := fastjson.Unmarshal(data, &j); err != nil {
		return err
	}
	n := 0
	for i := range j.Subjects {
		n += len(j.Subjects[i].Windows)
	}
	if n == 0 {
		return nil
	}
	*c = make(Counters, 0, n)
	for i := range j.Subjects {
		s := &j.Subjects[i]
		if s.Family == "" {
			s.Family = string(s.Tier)
		}
		for _, place := range s.Windows {
			if place < 0 || place >= len(j.Windows) {
				return fmt.Errorf("counter of %s: there is no window %d", s.Subject, place)
			}
			w := &j.Windows[place]
			*c = append(*c, ledger.Counter{Tier: s.Tier, Family: s.Family, Subject: s.Subject, Period: w.Period, Window: w.Window})
		}
	}
	return nil
}
