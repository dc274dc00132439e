package ledger

// Reason says which rule decided a request. The same text stands in the HTTP body, the log line, the metric label and the
// event. Adding one is fine; renaming one is a breaking change.
type Reason string

// The reasons. OK is the reason of an allowed request.
const (
	ReasonOK Reason = "OK"

	ReasonPlatformQuota Reason = "PLATFORM_QUOTA" // a budget of the platform tier has no room
	ReasonClusterQuota  Reason = "CLUSTER_QUOTA"
	ReasonProviderQuota Reason = "PROVIDER_QUOTA"
	ReasonPlanQuota     Reason = "PLAN_QUOTA"
	ReasonAppQuota      Reason = "APP_QUOTA"
	ReasonKeyQuota      Reason = "KEY_QUOTA"
	ReasonUserQuota     Reason = "USER_QUOTA"
	ReasonEndpointLimit Reason = "ENDPOINT_LIMIT" // any limit of the endpoint tier
	ReasonIPLimit       Reason = "IP_LIMIT"       // any limit of the ip tier

	ReasonTokenBucket Reason = "TOKEN_BUCKET" // a token bucket, on requests or tokens, is empty
	ReasonRPMLimit    Reason = "RPM_LIMIT"    // a window rate on requests is full
	ReasonTPMLimit    Reason = "TPM_LIMIT"    // a window rate on tokens is full
	ReasonConcurrency Reason = "CONCURRENCY"  // too many requests in flight

	ReasonRequestTooLarge Reason = "REQUEST_TOO_LARGE" // the request is larger than a limit could ever hold
	ReasonUnpricedModel   Reason = "UNPRICED_MODEL"    // a money budget applies and the model has no price
	ReasonUnknownKey      Reason = "UNKNOWN_KEY"
	ReasonDisabledKey     Reason = "DISABLED_KEY" // revoked, or its app disabled
	ReasonExpiredKey      Reason = "EXPIRED_KEY"
	ReasonUnknownModel    Reason = "UNKNOWN_MODEL"
	ReasonUnknownPlan     Reason = "UNKNOWN_PLAN" // the key names a plan that the policy does not have
	ReasonUnknownRoute    Reason = "UNKNOWN_ROUTE"
	ReasonUnknownObject   Reason = "UNKNOWN_OBJECT" // no stored response of this app has the id
	ReasonBadRequest      Reason = "BAD_REQUEST"

	ReasonRebuilding      Reason = "REBUILDING"       // counters are being rebuilt from the ledger
	ReasonDegraded        Reason = "DEGRADED"         // the limiter is unreachable and the local allowance is used up
	ReasonLimiterDown     Reason = "LIMITER_DOWN"     // Redis cannot be asked, and nothing can be judged without it
	ReasonEventLogDown    Reason = "EVENT_LOG_DOWN"   // neither the stream nor the outbox took the event
	ReasonShuttingDown    Reason = "SHUTTING_DOWN"    // the gateway is stopping
	ReasonUpstreamFailed  Reason = "UPSTREAM_FAILED"  // the provider could not be reached
	ReasonUpstreamTimeout Reason = "UPSTREAM_TIMEOUT" // the provider did not answer in time
	ReasonUpstreamLimited Reason = "UPSTREAM_LIMITED" // every key of the provider was told to wait
	ReasonUpstreamDown    Reason = "UPSTREAM_DOWN"    // every key of the provider rests after failures
	ReasonUpstreamCut     Reason = "UPSTREAM_CUT"     // the provider's answer broke off
	ReasonClientGone      Reason = "CLIENT_GONE"      // the caller left before the answer was complete
	ReasonBodyTooLarge    Reason = "BODY_TOO_LARGE"   // the request body is larger than the gateway accepts
	ReasonBodyTimeout     Reason = "BODY_TIMEOUT"     // the caller stopped sending its body
	ReasonBodiesFull      Reason = "BODIES_FULL"      // the disk has no room for one more large body
	ReasonInternal        Reason = "INTERNAL"         // a bug; a person must look
)

// Quota is the reason of an exhausted budget of the tier.
func (t Tier) Quota() Reason {
	switch t {
	case TierPlatform:
		return ReasonPlatformQuota
	case TierCluster:
		return ReasonClusterQuota
	case TierProvider:
		return ReasonProviderQuota
	case TierPlan:
		return ReasonPlanQuota
	case TierApp:
		return ReasonAppQuota
	case TierKey:
		return ReasonKeyQuota
	case TierUser:
		return ReasonUserQuota
	case TierEndpoint:
		return ReasonEndpointLimit
	default:
		return ReasonIPLimit
	}
}
