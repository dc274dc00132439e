package provider

import (
	"github.com/tidwall/gjson"

	"tollgate/ledger"
)

// maxSteps bounds the steps of one answer that are read; sums of so many figures stay far from the end of int64.
const maxSteps = 1000

// tell takes over what a message has told. Where it tells its steps apart, under "iterations", its totals are not all: steps that
// shortened the conversation are billed beside them, and steps of other models at those models' prices.
func (u *anthropicUsage) tell(a *Answer) {
	a.Reading, a.Tier = u.reading(), u.tier
	if a.State != ledger.UsageReported && a.State != ledger.UsageInconsistent {
		return
	}
	steps, ok := readSteps(u.steps, a.Model)
	if !ok {
		a.State = ledger.UsageInconsistent
		return
	}
	a.Others = steps.others
	// The totals are those of the model's own steps, of these without what shortened the conversation, or of all steps of all
	// models. In the first two cases no figure may be less than the totals.
	told, own := asTotals(a.Usage), steps.own
	if own.Total() == 0 || told != steps.all && own.Total() < told.Total() {
		return
	}
	own.Reasoning = min(a.Usage.Reasoning, own.Output)
	own.Output -= own.Reasoning
	own.Calls = a.Usage.Calls
	a.Usage = own
}

// asTotals is a usage as a step tells it: thinking is in the output, and no tools.
func asTotals(u ledger.Usage) ledger.Usage {
	u.Output, u.Reasoning, u.Calls = u.Output+u.Reasoning, 0, ledger.Calls{}
	return u
}

// messageSteps are the sums of a message's steps.
type messageSteps struct {
	own, all ledger.Usage
	others   []ledger.ModelUsage // in the order of their first steps
}

// readSteps adds up the steps of a message that a model answered. A step of another model that made nothing is not billed: that
// model refused before it began. ok is false where a step is none.
func readSteps(list gjson.Result, model string) (steps messageSteps, ok bool) {
	n := 0
	ok = true
	list.ForEach(func(_, step gjson.Result) bool {
		var u anthropicUsage
		u.read(step)
		reading := u.reading()
		n++
		if ok = reading.State != "" && reading.State != ledger.UsageInconsistent && n <= maxSteps; !ok {
			return false
		}
		used := asTotals(reading.Usage)
		steps.all = steps.all.Plus(used)
		switch by := name(step.Get("model")); {
		case by == "" || by == model:
			steps.own = steps.own.Plus(used)
		case used.Output > 0:
			steps.addOther(by, used)
		}
		return true
	})
	return steps, ok
}

func (s *messageSteps) addOther(model string, used ledger.Usage) {
	for i := range s.others {
		if s.others[i].Model == model {
			s.others[i].Usage = s.others[i].Usage.Plus(used)
			return
		}
	}
	s.others = append(s.others, ledger.ModelUsage{Model: model, Usage: used})
}
