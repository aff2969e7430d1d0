// Package hops finds the client of a request that came through proxies, by the word of those that are trusted.
//
//	trusted, err := hops.Parse([]string{"10.0.0.0/8", "2001:db8::1"})
//	client := trusted.Client(peer, &req.Head)
//
// Every proxy appends the address that it got the request from, so the list of a request is true from its right end up to
// and including the first address that isn't a trusted proxy's: that one is the client. Whatever stands to the left of it
// anybody may have written.
package hops

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/cellgate/cellgate/proxy/http1"
)

// Trusted are the networks of the proxies whose word counts. The zero value trusts nobody.
type Trusted []netip.Prefix

// maxNetworks bounds what every request is compared with.
const maxNetworks = 256

// Parse reads networks, and addresses for networks of one. A network of all addresses is refused: it would believe anybody.
func Parse(list []string) (Trusted, error) {
	if len(list) > maxNetworks {
		return nil, fmt.Errorf("%d networks: at most %d", len(list), maxNetworks)
	}
	var t Trusted
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if a, aerr := netip.ParseAddr(s); aerr == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
		}
		switch {
		case err != nil:
			return nil, fmt.Errorf("%q is neither a network such as 10.0.0.0/8 nor an address", s)
		case p.Bits() == 0:
			return nil, fmt.Errorf("%q is everybody, whose word is worth nothing", s)
		case p.Addr().Is4In6():
			return nil, fmt.Errorf("write %q as an IPv4 network", s)
		}
		t = append(t, p.Masked())
	}
	return t, nil
}

// Has says whether an address is a trusted proxy's.
func (t Trusted) Has(a netip.Addr) bool {
	for _, p := range t {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// Client is whom a request comes from that peer has sent. X-Forwarded-For and Forwarded (RFC 7239) are believed; when both
// are there and don't say the same, a proxy has passed on what it should have replaced, and neither is. What is malformed,
// or names nobody ("unknown", "_hidden"), ends the list: the client is then the trusted proxy that got it.
func (t Trusted) Client(peer netip.Addr, h *http1.Head) netip.Addr {
	if !t.Has(peer) {
		return peer
	}
	plain, standard := chain{trusted: t}, chain{trusted: t}
	for i := range h.Fields() {
		f := &h.Fields()[i]
		if f.Kind != http1.Forwarding {
			continue
		}
		switch name := h.Name(f); {
		case fold(name, "x-forwarded-for"):
			plain.addresses(h.Value(f))
		case fold(name, "forwarded"):
			standard.elements(h.Value(f))
		}
	}
	a, b := plain.client(peer), standard.client(peer)
	switch {
	case !plain.there:
		return b
	case standard.there && a != b:
		return peer
	}
	return a
}

// Handed reads what a proxy of ours says of a request that it hands on: who the client is, whether it came by TLS, and its id, of
// hex digits as many as there is room for. The text points into the request.
func Handed(h *http1.Head, id []byte) (client netip.Addr, as string, https, ok bool) {
	from, _ := h.Find("x-forwarded-for")
	proto, _ := h.Find("x-forwarded-proto")
	given, _ := h.Find("x-request-id")
	as = unsafe.String(unsafe.SliceData(from), len(from))
	client, err := netip.ParseAddr(as)
	if err != nil || len(given) != len(id) || string(proto) != "https" && string(proto) != "http" {
		return client, as, false, false
	}
	if _, err := hex.Decode(make([]byte, len(given)/2), given); err != nil {
		return client, as, false, false
	}
	copy(id, given)
	return client, as, string(proto) == "https", true
}

// HTTPS says what a trusted proxy's X-Forwarded-Proto says of the connection that it got the request on; ok is false when
// there is no single clear word.
func HTTPS(h *http1.Head) (https, ok bool) {
	n := 0
	for i := range h.Fields() {
		if f := &h.Fields()[i]; f.Kind == http1.Forwarding && fold(h.Name(f), "x-forwarded-proto") {
			n++
			https = fold(h.Value(f), "https")
			ok = https || fold(h.Value(f), "http")
		}
	}
	return https && n == 1, ok && n == 1
}

// chain takes the hops of a request from left to right and keeps what reading them from right to left would end at.
type chain struct {
	trusted Trusted
	there   bool
	at      netip.Addr // the rightmost hop that isn't trusted, or the first one after what is malformed, or the first
}

func (c *chain) hop(a netip.Addr) {
	if !a.IsValid() || !c.at.IsValid() || !c.trusted.Has(a) {
		c.at = a
	}
}

func (c *chain) client(peer netip.Addr) netip.Addr {
	if c.at.IsValid() {
		return c.at
	}
	return peer
}

// addresses takes a line of X-Forwarded-For.
func (c *chain) addresses(v []byte) {
	c.there = true
	for len(v) > 0 {
		n := until(v, ',')
		if item := trim(v[:n]); len(item) > 0 {
			c.hop(address(item, false))
		}
		v = v[min(n+1, len(v)):]
	}
}

// elements takes a line of Forwarded.
func (c *chain) elements(v []byte) {
	c.there = true
	for len(v) > 0 {
		n := until(v, ',')
		if item := trim(v[:n]); len(item) > 0 {
			c.hop(origin(item))
		}
		v = v[min(n+1, len(v)):]
	}
}

// origin is the address of an element's for=; the zero value for none, or more than one.
func origin(element []byte) (a netip.Addr) {
	found := 0
	for len(element) > 0 {
		n := until(element, ';')
		pair := trim(element[:n])
		element = element[min(n+1, len(element)):]
		if len(pair) < 4 || !fold(pair[:4], "for=") {
			continue
		}
		found++
		node := pair[4:]
		quoted := len(node) > 1 && node[0] == '"' && node[len(node)-1] == '"'
		if quoted {
			node = node[1 : len(node)-1]
		}
		a = address(node, true)
		if !quoted && a.Is6() { // its brackets and colons need quotes
			a = netip.Addr{}
		}
	}
	if found != 1 {
		return netip.Addr{}
	}
	return a
}

// until is where the first separator outside of quotes stands, or the end.
func until(v []byte, separator byte) int {
	quoted := false
	for i := 0; i < len(v); i++ {
		switch {
		case v[i] == '"':
			quoted = !quoted
		case v[i] == '\\' && quoted:
			i++
		case v[i] == separator && !quoted:
			return i
		}
	}
	return len(v)
}

// address reads an address with or without a port; an IPv6 address with a port, or as a node of RFC 7239, is in brackets.
func address(v []byte, node bool) netip.Addr {
	const longest = len("[0000:0000:0000:0000:0000:ffff:255.255.255.255]:65535")
	if len(v) == 0 || len(v) > longest {
		return netip.Addr{}
	}
	s := unsafe.String(&v[0], len(v))
	bracketed := v[0] == '['
	if bracketed && v[len(v)-1] != ']' || bytes.IndexByte(v, '.') >= 0 && bytes.Count(v, []byte(":")) == 1 {
		at, _ := netip.ParseAddrPort(s)
		return plain(at.Addr())
	}
	if bracketed {
		s = s[1 : len(s)-1]
	}
	a, _ := netip.ParseAddr(s)
	if a.Is6() && node && !bracketed || a.Is4() && bracketed {
		return netip.Addr{}
	}
	return plain(a)
}

// plain is an address in its only form; zones mean something to one machine alone.
func plain(a netip.Addr) netip.Addr {
	if a.Zone() != "" {
		return netip.Addr{}
	}
	return a.Unmap()
}

func trim(v []byte) []byte {
	for len(v) > 0 && (v[0] == ' ' || v[0] == '\t') {
		v = v[1:]
	}
	for len(v) > 0 && (v[len(v)-1] == ' ' || v[len(v)-1] == '\t') {
		v = v[:len(v)-1]
	}
	return v
}

// fold compares with an all lower-case name.
func fold(b []byte, s string) bool {
	if len(b) != len(s) {
		return false
	}
	for i := range b {
		c := b[i]
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != s[i] {
			return false
		}
	}
	return true
}
