package event

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	"tollgate/ledger"
)

// Grant is budget added to one limit for one subject, or taken back again. It raises the limit on a budget that never resets for
// good, on any other in the window that contains the event's time and in no other; in either case not after Until.
type Grant struct {
	ID      string        `json:"id"`    // unique for ever, chosen by who grants; of a revocation RevocationID
	Limit   string        `json:"limit"` // its name in the policy
	Tier    ledger.Tier   `json:"tier"`
	Family  string        `json:"family"`  // of the limit's counters
	Subject string        `json:"subject"` // whose counter it is, see ledger.Counter
	Unit    ledger.Unit   `json:"unit"`
	Period  ledger.Period `json:"period"`
	Amount  int64         `json:"amount"`            // requests, tokens or nano-dollars; negative in a revocation, never 0
	Window  ledger.Window `json:"window,omitzero"`   // that the grant is for, as the policy cut it at the time
	Until   time.Time     `json:"until,omitzero"`    // zero: to the end of the window
	Revokes string        `json:"revokes,omitempty"` // the grant that is taken back whole
	Reason  string        `json:"reason,omitempty"`  // for people

	RevokesEvent string `json:"revokes_event,omitempty"` // id of the event that granted what is taken back
}

// GrantsBucket is the KV bucket of the grants in force, which settlers write and gateways follow. An entry's key is the grant's
// id after GrantPrefix, its value a GrantInForce. GrantsComplete is written when every other entry stands: without it, what is
// there is not all.
const (
	GrantsBucket   = "TOLLGATE_GRANTS"
	GrantPrefix    = "grant."
	GrantsComplete = "complete"
)

// GrantInForce is a grant that is not taken back, as gateways add it to its limit.
type GrantInForce struct {
	Grant
	GrantedAt time.Time `json:"granted_at"`
}

// Raises reports whether the grant adds to its limit in the window at now.
func (g *GrantInForce) Raises(w ledger.Window, now time.Time) bool {
	if !g.Until.IsZero() && !now.Before(g.Until) {
		return false
	}
	return g.Period == ledger.PeriodTotal || !g.GrantedAt.Before(w.Start) && g.GrantedAt.Before(w.End)
}

var grantID = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}[A-Za-z0-9_-]$|^[A-Za-z0-9_-]$`)

// CheckGrantID tells why the text cannot be the id of a grant.
func CheckGrantID(id string) error {
	if !grantID.MatchString(id) {
		return fmt.Errorf("grant id %q: use at most 64 letters, digits, ., _ and -, no . at an end", id)
	}
	return nil
}

// RevocationID is the id of what takes the grant back. A grant has one, so it is taken back once.
func RevocationID(id string) string { return id + ":revoked" }

func (e *Event) checkGrant() error {
	g := e.Grant
	if g == nil {
		return errors.New("granted without grant")
	}
	if g.Revokes == "" {
		if err := CheckGrantID(g.ID); err != nil {
			return err
		}
	} else if g.ID != RevocationID(g.Revokes) || g.RevokesEvent == "" {
		return fmt.Errorf("grant %s cannot be the revocation of %s", g.ID, g.Revokes)
	}
	switch {
	case g.Limit == "" || g.Tier == "" || g.Family == "" || g.Subject == "":
		return fmt.Errorf("grant %s does not name its limit and subject", g.ID)
	case g.Unit != ledger.UnitRequests && g.Unit != ledger.UnitTokens && g.Unit != ledger.UnitUSD:
		return fmt.Errorf("grant %s: unknown unit %q", g.ID, g.Unit)
	case g.Amount == 0 || (g.Amount < 0) != (g.Revokes != "") || g.Amount == -g.Amount:
		return fmt.Errorf("grant %s of %d", g.ID, g.Amount)
	case !g.Until.IsZero() && g.Revokes == "" && !g.Until.After(e.OccurredAt):
		return fmt.Errorf("grant %s ends before it begins", g.ID)
	}
	switch g.Period {
	case ledger.PeriodDay, ledger.PeriodWeek, ledger.PeriodMonth:
		if !g.Window.Start.Before(g.Window.End) {
			return fmt.Errorf("grant %s has no window", g.ID)
		}
	case ledger.PeriodTotal:
	default:
		return fmt.Errorf("grant %s: unknown period %q", g.ID, g.Period)
	}
	return nil
}
