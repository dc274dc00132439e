package event

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"tollgate/ledger"
)

// Fill asks for budgets to be filled before they are judged by: what requests that knew nothing of them have used within
// their running windows is added from the ledger.
type Fill struct {
	Timezone  string       `json:"timezone"` // IANA name; calendar windows follow it
	WeekStart time.Weekday `json:"week_start"`
	Families  []FillFamily `json:"families"`
}

// FillFamily is one family of counters, see ledger.Counter, with its period.
type FillFamily struct {
	Family string        `json:"family"`
	Period ledger.Period `json:"period"`
}

// What gateways and settlers agree on about a Fill.
const (
	FillSubject = "tollgate.fill" // request: a Fill; the reply is FillDone once Redis has what the ledger knows, else an error's text
	FillDone    = "ok"
	// FillFor is for how long an answer holds. Who still judges by a family asks again before: without that, settlers forget
	// it, so that limits which no policy has any more are not counted for ever.
	FillFor = 48 * time.Hour
)

// Encode renders the request as JSON.
func (f *Fill) Encode() ([]byte, error) {
	data, err := json.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("encode fill: %w", err)
	}
	return data, nil
}

// DecodeFill reads a request. It errors when a period or the weekday is unknown; time zone and families are checked by who
// uses them.
func DecodeFill(data []byte) (*Fill, error) {
	f := &Fill{}
	if err := json.Unmarshal(data, f); err != nil {
		return nil, fmt.Errorf("decode fill: %w", err)
	}
	if f.WeekStart < time.Sunday || f.WeekStart > time.Saturday {
		return nil, fmt.Errorf("decode fill: there is no weekday %d", int(f.WeekStart))
	}
	if f.Timezone == "" {
		return nil, errors.New("decode fill: no time zone")
	}
	for _, x := range f.Families {
		switch x.Period {
		case ledger.PeriodDay, ledger.PeriodWeek, ledger.PeriodMonth, ledger.PeriodTotal:
		default:
			return nil, fmt.Errorf("decode fill: family %q: unknown period %q", x.Family, x.Period)
		}
	}
	return f, nil
}
