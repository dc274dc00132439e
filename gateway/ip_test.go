package gateway

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClientIP(t *testing.T) {
	t.Parallel()
	trusted, err := Config{TrustedProxies: []string{"10.0.0.0/8", "192.0.2.7", "2001:db8:ffff::/48", "::1"}}.trustedProxies()
	require.NoError(t, err)
	for name, test := range map[string]struct {
		peer    string
		headers []string
		want    string
	}{
		"peer":                           {"198.51.100.1:5", nil, "198.51.100.1"},
		"header of a stranger":           {"198.51.100.1:5", []string{"203.0.113.9"}, "198.51.100.1"},
		"proxy":                          {"10.1.2.3:5", []string{"203.0.113.9"}, "203.0.113.9"},
		"single proxy":                   {"192.0.2.7:5", []string{"203.0.113.9"}, "203.0.113.9"},
		"its neighbour":                  {"192.0.2.8:5", []string{"203.0.113.9"}, "192.0.2.8"},
		"proxy that says nothing":        {"10.1.2.3:5", nil, "10.1.2.3"},
		"empty header":                   {"10.1.2.3:5", []string{""}, "10.1.2.3"},
		"forged left part":               {"10.1.2.3:5", []string{"1.1.1.1, 203.0.113.9"}, "203.0.113.9"},
		"forged, trusted left part":      {"10.1.2.3:5", []string{"10.9.9.9, 203.0.113.9"}, "203.0.113.9"},
		"chain":                          {"10.1.2.3:5", []string{"1.1.1.1, 203.0.113.9,10.0.0.4 ,\t192.0.2.7"}, "203.0.113.9"},
		"several lines":                  {"10.1.2.3:5", []string{"1.1.1.1", "203.0.113.9, 10.0.0.4", "10.0.0.5"}, "203.0.113.9"},
		"all trusted":                    {"10.1.2.3:5", []string{"10.0.0.9, 10.0.0.4"}, "10.0.0.9"},
		"malformed":                      {"10.1.2.3:5", []string{"203.0.113.9, unknown, 10.0.0.4"}, "10.0.0.4"},
		"malformed at once":              {"10.1.2.3:5", []string{"203.0.113.9, _hidden"}, "10.1.2.3"},
		"empty elements":                 {"10.1.2.3:5", []string{"203.0.113.9, , ,"}, "203.0.113.9"},
		"port":                           {"10.1.2.3:5", []string{"203.0.113.9:443"}, "203.0.113.9"},
		"IPv6 with port":                 {"10.1.2.3:5", []string{"[2001:db8:1:2::9]:443"}, "2001:db8:1:2::/64"},
		"IPv6":                           {"[2001:db8:1:2:3:4:5:6]:5", nil, "2001:db8:1:2::/64"},
		"IPv6 proxy":                     {"[2001:db8:ffff:1::2]:5", []string{"2001:db8:1:2::9"}, "2001:db8:1:2::/64"},
		"IPv6 of zeros":                  {"[::2]:5", nil, "::/64"},
		"loopback proxy":                 {"[::1]:5", []string{"203.0.113.9"}, "203.0.113.9"},
		"zone":                           {"[fe80::1%eth0]:5", nil, "fe80::/64"},
		"zone, then forwarded":           {"10.1.2.3:5", []string{"fe80::1%eth0"}, "fe80::/64"},
		"mapped peer":                    {"[::ffff:198.51.100.1]:5", nil, "198.51.100.1"},
		"mapped proxy":                   {"[::ffff:10.1.2.3]:5", []string{"::ffff:203.0.113.9"}, "203.0.113.9"},
		"no port":                        {"198.51.100.1", nil, "198.51.100.1"},
		"no address":                     {"@", []string{"203.0.113.9"}, ""},
		"nothing":                        {"", []string{"203.0.113.9"}, ""},
		"as many hops as are looked at":  {"10.1.2.3:5", []string{"203.0.113.9" + strings.Repeat(",10.0.0.4", maxHops-1)}, "203.0.113.9"},
		"more than that, all but forged": {"10.1.2.3:5", []string{"203.0.113.9" + strings.Repeat(",10.0.0.4", maxHops)}, "10.0.0.4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &http.Request{RemoteAddr: test.peer, Header: http.Header{}}
			for _, line := range test.headers {
				r.Header.Add("X-Forwarded-For", line)
			}
			require.Equal(t, test.want, ClientIP(r, trusted))
		})
	}
	r := &http.Request{RemoteAddr: "10.1.2.3:5", Header: http.Header{"X-Forwarded-For": {"203.0.113.9"}, "Forwarded": {"for=203.0.113.9"}}}
	require.Equal(t, "10.1.2.3", ClientIP(r, nil), "nobody is trusted by default")
}

func TestTrustedProxiesProblems(t *testing.T) {
	t.Parallel()
	_, err := Config{TrustedProxies: []string{"10.0.0.1/8", "0.0.0.0/0", "::ffff:10.0.0.0/104", "proxy.internal", "", " 10.0.0.0/8 "}}.trustedProxies()
	require.EqualError(t, err, strings.TrimSpace(`
TOLLGATE_TRUSTED_PROXIES: "10.0.0.1/8" is not a network: write 10.0.0.0/8
TOLLGATE_TRUSTED_PROXIES: "0.0.0.0/0" trusts everybody: callers could name any address
TOLLGATE_TRUSTED_PROXIES: "::ffff:10.0.0.0/104": write the network as one of IPv4
TOLLGATE_TRUSTED_PROXIES: "proxy.internal" is neither an address nor a network such as 10.0.0.0/8
TOLLGATE_TRUSTED_PROXIES: "" is neither an address nor a network such as 10.0.0.0/8`))
}

// Callers behind a trusted proxy are limited each for himself, those that claim to be behind one are not.
func TestLimitByIP(t *testing.T) {
	t.Parallel()
	w := begin(t, plain)
	w.config.TrustedProxies = []string{"127.0.0.1"}
	w.run(`  - {name: per-ip, tier: ip, budget: {requests: 1, per: total}, overrides: {203.0.113.9: {requests: 2}}}
  - {name: app-by-ip, tier: app, by: ip, budget: {requests: 5, per: total}}
`)
	const header = "X-Forwarded-For"
	for _, from := range []string{"203.0.113.1", "203.0.113.9", "203.0.113.9", "2001:db8:1:2::1", "", "203.0.113.77, 198.51.100.1"} {
		require.Equal(t, 200, w.chat("", header, from).StatusCode, from)
	}
	for _, from := range []string{"203.0.113.1", "203.0.113.9", "2001:db8:1:2:ffff::9", "127.0.0.1", "203.0.113.78, 198.51.100.1"} {
		a := w.chat("", header, from)
		require.Equal(t, 429, a.StatusCode, from)
		p := w.problemOf(a)
		require.Equal(t, "IP_LIMIT", p.Tollgate.Reason)
		require.Equal(t, "per-ip", p.Tollgate.LimitName)
	}
	require.Equal(t, "ip:2001%3Adb8%3A1%3A2%3A%3A/64", w.problemOf(w.chat("", header, "2001:db8:1:2::2")).Tollgate.Subject)
}

// FuzzClientIP: whatever the peer and its header say, the answer is an address as subjects name it; what the caller writes
// left of what a proxy appended changes nothing, and without a trusted peer the header changes nothing at all.
func FuzzClientIP(f *testing.F) {
	f.Add("10.1.2.3:5", "1.1.1.1, 203.0.113.9", "198.51.100.1")
	f.Add("[::ffff:10.0.0.1]:1", "::ffff:1.2.3.4", "2001:db8::1")
	f.Add("[fe80::1%25eth0]:1", ",,%,", "fe80::1%eth0")
	f.Add("@", "10.0.0.1:80", "::")
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	f.Fuzz(func(t *testing.T, peer, header, client string) {
		r := &http.Request{RemoteAddr: peer, Header: http.Header{"X-Forwarded-For": {header}}}
		for _, proxies := range [][]netip.Prefix{nil, trusted} {
			switch got := ClientIP(r, proxies); {
			case got == "":
			case strings.Contains(got, "/"):
				p, err := netip.ParsePrefix(got)
				require.NoError(t, err)
				require.Equal(t, netip.PrefixFrom(p.Addr(), 64).Masked(), p)
				require.True(t, p.Addr().Is6() && !p.Addr().Is4In6())
			default:
				addr, err := netip.ParseAddr(got)
				require.NoError(t, err)
				require.True(t, addr.Is4())
			}
		}
		require.Equal(t, ClientIP(&http.Request{RemoteAddr: peer}, nil), ClientIP(r, nil))
		addr, err := netip.ParseAddr(client)
		if err != nil || addr.Zone() != "" || trusted[0].Contains(addr.Unmap()) {
			return // a zone may be any text, commas included
		}
		through := &http.Request{RemoteAddr: "10.0.0.1:1", Header: http.Header{"X-Forwarded-For": {header + "," + client}}}
		require.Equal(t, counted(addr.Unmap()), ClientIP(through, trusted))
	})
}

func BenchmarkClientIP(b *testing.B) {
	r := &http.Request{RemoteAddr: "10.1.2.3:5", Header: http.Header{"X-Forwarded-For": {"203.0.113.9, 10.0.0.4"}}}
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	b.ReportAllocs()
	for b.Loop() {
		require.NotEmpty(b, ClientIP(r, trusted))
	}
}
