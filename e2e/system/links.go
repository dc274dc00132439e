package system

import (
	"net/url"
	"slices"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
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
