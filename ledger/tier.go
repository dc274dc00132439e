package ledger

// Tier is the level of the hierarchy that a limit belongs to.
type Tier string

// The tiers of the policy file. Platform, cluster, provider, plan, endpoint and IP counters are shared by all apps; app,
// key and user counters belong to one app and share its Redis slot.
const (
	TierPlatform Tier = "platform"
	TierCluster  Tier = "cluster"
	TierProvider Tier = "provider"
	TierPlan     Tier = "plan"
	TierApp      Tier = "app"
	TierKey      Tier = "key"
	TierUser     Tier = "user"
	TierEndpoint Tier = "endpoint"
	TierIP       Tier = "ip"
)

// Tiers lists every tier, widest first: the order in which layers are reported.
func Tiers() []Tier {
	return []Tier{
		TierPlatform, TierCluster, TierProvider, TierPlan, TierApp, TierKey, TierUser, TierEndpoint, TierIP,
	}
}

// Shared reports whether counters of the tier are shared by all apps.
func (t Tier) Shared() bool {
	switch t {
	case TierApp, TierKey, TierUser:
		return false
	default:
		return true
	}
}
