package policy

import (
	"fmt"
	"strings"

	"tollgate/ledger"
)

// GrantSubject is the subject whose counter a grant to name raises, as Match gives it: the app in the tier app, where name may be
// "", a key's id, a user within the app, or the plain name that another tier counts by. In a limit that is split, name is the
// whole subject. It errors when the limit is no budget or name does not fit its tier.
func (l *Limit) GrantSubject(app, name string) (string, error) {
	if l.Budget == nil {
		return "", fmt.Errorf("limit %s is no budget: only budgets can be added to", l.Name)
	}
	if l.Tier.Shared() != (app == "") {
		if app == "" {
			return "", fmt.Errorf("limit %s is counted within an app: name the app", l.Name)
		}
		return "", fmt.Errorf("limit %s is shared by all apps: name no app", l.Name)
	}
	if len(l.By) > 0 {
		owner := string(l.Tier) + ":"
		switch l.Tier {
		case ledger.TierApp:
			owner += string(appendName(nil, app, false)) + "["
		case ledger.TierUser:
			owner += string(appendName(nil, app, true)) + "/"
		}
		if !strings.HasPrefix(name, owner) || !strings.HasSuffix(name, "]"+l.suffix) {
			return "", fmt.Errorf("limit %s is split: give the whole subject, as finance.budget_status shows it", l.Name)
		}
		return name, nil
	}
	r := Request{App: app}
	switch l.Tier {
	case ledger.TierPlatform, ledger.TierCluster:
		if name != "" {
			return "", fmt.Errorf("limit %s has one subject: name none", l.Name)
		}
		name = "all"
	case ledger.TierApp:
		if name != "" && name != app {
			return "", fmt.Errorf("limit %s counts app %s as a whole: name no subject", l.Name, app)
		}
		name = app
	case ledger.TierKey:
		r.Key = name
	case ledger.TierUser:
		r.User = name
	case ledger.TierProvider:
		r.Provider = name
	case ledger.TierPlan:
		r.Plan = name
	case ledger.TierEndpoint:
		r.Endpoint = name
	case ledger.TierIP:
		r.IP = name
	}
	if name == "" {
		return "", fmt.Errorf("limit %s counts each %s: name one", l.Name, l.Tier)
	}
	return string(l.appendSubject(nil, &r, "")), nil
}
