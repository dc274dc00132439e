package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
)

// forwardedFor is the header in which proxies hand on whom they speak for. RFC 7239's Forwarded is not read: two headers that
// may contradict each other would let a caller choose.
const forwardedFor = "X-Forwarded-For"

// maxHops bounds how many addresses of a header are looked at: what is left of them no chain of proxies has written.
const maxHops = 32

// ClientIP is the address that limits count a request by: the peer's, or, where the peer is a trusted proxy, the right-most
// address of X-Forwarded-For that is none. Proxies append to that header, so what is further left was written by the caller
// and is not looked at. What is no address ends the search at the last good one; where all are trusted it is the first of
// them. It is "" where the peer has no address; such requests share one counter.
//
// IPv4 addresses stand for themselves, also when they are written as IPv6. An IPv6 address stands for its /64, written
// "2001:db8:1:2::/64": that is the least a household gets, so anything finer would give one caller 2^64 counters.
func ClientIP(r *http.Request, trusted []netip.Prefix) string {
	peer, ok := hop(r.RemoteAddr)
	if !ok {
		return ""
	}
	if !covers(trusted, peer) {
		return counted(peer)
	}
	list := strings.Join(r.Header.Values(forwardedFor), ",")
	for range maxHops {
		comma := strings.LastIndexByte(list, ',')
		entry := strings.Trim(list[comma+1:], " \t")
		if entry != "" { // lists may have empty elements, RFC 9110 5.6.1
			next, ok := hop(entry)
			if !ok {
				break
			}
			peer = next
			if !covers(trusted, peer) {
				break
			}
		}
		if comma < 0 {
			break
		}
		list = list[:comma]
	}
	return counted(peer)
}

// hop reads an address with or without a port, as peers have one and some proxies write one.
func hop(text string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		withPort, err := netip.ParseAddrPort(text)
		if err != nil {
			return netip.Addr{}, false
		}
		addr = withPort.Addr()
	}
	return addr.Unmap().WithZone(""), true
}

func covers(prefixes []netip.Prefix, addr netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

func counted(addr netip.Addr) string {
	if addr.Is4() {
		return addr.String()
	}
	return netip.PrefixFrom(addr, 64).Masked().String()
}

// trustedProxies reads the networks of the configuration, all problems joined.
func (c Config) trustedProxies() ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	var problems []error
	for _, text := range c.TrustedProxies {
		p, err := network(strings.TrimSpace(text))
		if err != nil {
			problems = append(problems, fmt.Errorf("TOLLGATE_TRUSTED_PROXIES: %w", err))
			continue
		}
		prefixes = append(prefixes, p)
	}
	return prefixes, errors.Join(problems...)
}

// network reads "10.0.0.0/8", or one address.
func network(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		addr = addr.Unmap().WithZone("")
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return p, fmt.Errorf("%q is neither an address nor a network such as 10.0.0.0/8", text)
	case p.Addr().Is4In6():
		return p, fmt.Errorf("%q: write the network as one of IPv4", text)
	case p.Bits() == 0:
		return p, fmt.Errorf("%q trusts everybody: callers could name any address", text)
	case p != p.Masked():
		return p, fmt.Errorf("%q is not a network: write %s", text, p.Masked())
	}
	return p, nil
}
