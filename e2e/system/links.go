package system

import (
	"net/url"
	"slices"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/internal/dev/services"
)

// Names of a part's links, which are those of the variables that hold the servers' URLs.
const (
	LinkRedis    = "REDIS_URL"
	LinkNATS     = "NATS_URL"
	LinkPostgres = "DATABASE_URL"
	LinkSim      = "TOLLGATE_SIM_URL"
)

// linked is the environment of a part: that of all, with the servers behind links of its own where the system is proxied.
func (s *System) linked(p *Part, gateway bool) []string {
	env := slices.Clone(s.env)
	if !s.options.Proxied {
		return env
	}
	targets := map[string]string{LinkRedis: s.Redis.URL(0), LinkNATS: s.NATS.ClientURL(), LinkPostgres: s.DatabaseURL}
	if gateway {
		targets[LinkSim] = s.Sim.URL
	}
	p.Links = map[string]*stack.Link{}
	for name, target := range targets {
		u, err := url.Parse(target)
		require.NoError(s.t, err)
		link := stack.Proxy(s.t, u.Host)
		p.Links[name] = link
		u.Host = link.Addr
		env = append(env, name+"="+u.String()) // of two values the later one counts
	}
	return env
}

// FailOver makes another Redis the system's: all links lead to it from now on, and connections to the one before are dropped.
func (s *System) FailOver(to *services.Redis) {
	s.Redis = to
	s.redisAddr.Store(to.Addr())
	for _, p := range slices.Concat(s.Gateways, s.Settlers) {
		link := p.Links[LinkRedis]
		link.SetTarget(to.Addr())
		link.Drop()
	}
}
