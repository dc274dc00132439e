package e2e

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
	"tollgate/ledger/keys"
	"tollgate/ledger/pg"
	"tollgate/settler/directory"
)

// owner is an app with a plan of its own, "" for none.
type owner struct{ app, plan string }

// manyKeys makes the apps that are not there yet, with a key each time one is named, and returns the secrets once every gateway
// knows them.
func manyKeys(t *testing.T, s *system.System, owners ...owner) (secrets []string) {
	t.Helper()
	store, err := pg.Open(t.Context(), s.DatabaseURL, 1)
	require.NoError(t, err)
	defer store.Close()
	nc, err := nats.Connect(s.NATS.ClientURL(), nats.Timeout(system.Patience))
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(system.Patience))
	require.NoError(t, err)
	made := map[string]bool{system.App: true}
	for _, o := range owners {
		if !made[o.app] {
			made[o.app] = true
			require.NoError(t, store.CreateApp(t.Context(), o.app, o.plan))
		}
		secret := keys.NewSecret()
		require.NoError(t, store.CreateKey(t.Context(), pg.Key{ID: keys.NewID(), App: o.app, Hash: keys.Hash(secret), Name: "e2e"}))
		secrets = append(secrets, secret)
	}
	require.NoError(t, directory.NewSync(store, js).Run(t.Context()))
	for _, secret := range secrets {
		s.AwaitKey(secret)
	}
	for _, o := range owners {
		s.AwaitCounters(o.app)
	}
	return secrets
}

// The callers of TestOneOverItsLimitDisturbsNobody, in the order of their secrets: ten apps, ten keys of one app, an app in each
// of two plans, and one app for each other way to be told apart.
const (
	tenApps  = 0
	tenKeys  = 10
	twoPlans = 20
	users    = 22
	paths    = 23
	byModel  = 24
)

func callers() []owner {
	all := make([]owner, byModel+1)
	for i := range all {
		all[i] = owner{app: fmt.Sprintf("app%d", i)}
		if tenKeys <= i && i < twoPlans {
			all[i].app = "keys"
		}
	}
	all[twoPlans].plan, all[twoPlans+1].plan = "free", "paid"
	return all
}

// dimension is one way in which callers are told apart. Who is loud has number 0, the others follow; each has a counter of its
// own.
type dimension struct {
	name, reason string
	limit        string // of 60 requests each
	others       int
	who          func(i int) system.Request // without its key, which is the secret of that number
	secret       func(i int) int
}

// asChat makes the request another than the loud one's: of another path, and of one of two models.
func asChat(r system.Request, i int) system.Request {
	r.Path, r.Body = "/v1/chat/completions", system.ChatBody([]string{"gpt-4o", "gpt-4o-mini"}[i%2], "Hello", 5, false)
	return r
}

func dimensions() []dimension {
	same := func(int) system.Request { return steady(0) }
	only := func(secret int) func(int) int { return func(int) int { return secret } }
	from := func(first int) func(int) int { return func(i int) int { return first + i } }
	named := []string{"", "eve", "Eve", "app22", "none", "null", "*", "eve/1", "eve:1", "~eve"} // the loud one has no name
	chat := func(i int) system.Request {
		if i == 0 {
			return steady(0)
		}
		return asChat(steady(0), i)
	}
	return []dimension{
		{
			"app", "APP_QUOTA", "tier: app, match: {app: [app0, app1, app2, app3, app4, app5, app6, app7, app8, app9]}, budget: {requests: 60, per: day}",
			9, same, from(tenApps),
		},
		{"key", "RPM_LIMIT", "tier: key, match: {app: keys}, rate: {requests: 60, per: day, algorithm: sliding_log}", 9, same, from(tenKeys)},
		{"plan", "TOKEN_BUCKET", "tier: plan, match: {plan: [free, paid]}, rate: {requests: 60, per: day, algorithm: token_bucket}", 1, same, from(twoPlans)},
		{
			"user", "USER_QUOTA", "tier: user, match: {app: app22}, budget: {requests: 60, per: total}", 9,
			func(i int) system.Request {
				r := steady(0)
				r.Header = map[string]string{"X-Tollgate-User": named[i]}
				return r
			},
			only(users),
		},
		{"endpoint", "ENDPOINT_LIMIT", "tier: endpoint, match: {app: app23}, rate: {requests: 60, per: day, algorithm: sliding_log}", 1, chat, only(paths)},
		{"model", "APP_QUOTA", "tier: app, by: [model], match: {app: app24}, budget: {requests: 60, per: day}", 2, chat, only(byModel)},
	}
}

// A2, A6, apache/apisix #12896: one caller sends 50 times its limit while the others send 80 % of theirs: of theirs none is
// refused, of its own exactly the limit passes, whatever callers are told apart by.
func TestOneOverItsLimitDisturbsNobody(t *testing.T) {
	t.Parallel()
	const limit, each = 60, 60 * 8 / 10
	limits := "\n  - {name: everybody, tier: platform, budget: {requests: 1000000, per: month}}\n"
	for _, d := range dimensions() {
		limits += fmt.Sprintf("  - {name: by-%s, %s}\n", d.name, d.limit)
	}
	s := system.New(t, system.Options{Limits: limits, Sections: "plans: {free: {}, paid: {}}", Gateways: 2, Settlers: 1})
	secrets := manyKeys(t, s, callers()...)
	for _, d := range dimensions() {
		send := func(i, who int) system.Answer {
			r := d.who(who)
			r.Key = secrets[d.secret(who)]
			return s.Send(t.Context(), s.Gateways[i%2].URL, r)
		}
		calm := make(chan []system.Answer, 1)
		go func() {
			calm <- system.Load(each*d.others, 4, func(i int) system.Answer { return send(i, 1+i%d.others) })
		}()
		loud := system.Tally(system.Load(50*limit, 16, func(i int) system.Answer { return send(i, 0) }))
		quiet := system.Tally(<-calm)
		t.Logf("%s: loud %v, the others %v", d.name, loud, quiet)
		require.Equal(t, map[string]int{"passed": limit, d.reason: 49 * limit}, loud, d.name)
		require.Equal(t, map[string]int{"passed": each * d.others}, quiet, d.name)
	}
	s.Check()
}
