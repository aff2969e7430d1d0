package snapshot

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// refusedEverywhere are the addresses that no upstream and no identity URL may name, whatever is allowed: unspecified,
// link-local with the clouds' metadata services, multicast, reserved and broadcast.
var refusedEverywhere = func() (all []netip.Prefix) {
	for _, p := range []string{
		"0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4", "::/128", "fe80::/10", "fec0::/10", "ff00::/8",
		"100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "fd00:ec2::254/128", "fd20:ce::254/128",
	} {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}()

var metadataNames = []string{"metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"}

// embeds are the prefixes whose addresses carry an IPv4 address, and where: NAT64, 6to4, IPv4-compatible.
var embeds = []struct {
	prefix netip.Prefix
	at     int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12},
	{netip.MustParsePrefix("2002::/16"), 2},
	{netip.MustParsePrefix("::/96"), 12},
}

// Permits says whether a resolved address may be dialled on an author's behalf. Whoever dials asks it about the address
// that the connection really goes to, so a name that changes its answer between check and use gains nothing.
func (a Allow) Permits(ip netip.Addr) bool { return ip.IsValid() && a.Address(ip) == "" }

// Address says why the address may not be connected to; empty = it may.
func (a Allow) Address(ip netip.Addr) string {
	if ip.Zone() != "" {
		return "has a zone"
	}
	ip = ip.Unmap()
	loopback := ip.IsLoopback()
	for _, p := range refusedEverywhere {
		if p.Contains(ip) {
			return "is a link-local, metadata, multicast or reserved address, which is refused everywhere"
		}
	}
	if ip.Is6() && !loopback {
		for _, e := range embeds {
			if raw := ip.As16(); e.prefix.Contains(ip) {
				inner := netip.AddrFrom4([4]byte(raw[e.at : e.at+4]))
				if why := (Allow{}).Address(inner); why != "" {
					return "embeds " + inner.String() + ", which " + why
				}
			}
		}
	}
	if loopback && !slices.ContainsFunc(a.Upstreams, func(p netip.Prefix) bool { return p.Contains(ip) }) {
		return "is a loopback address"
	}
	return ""
}

// host says why a host of an endpoint or URL may not be used, with a hint; empty = it may.
func (a Allow) host(host string) (fault, hint string) {
	if ip, err := netip.ParseAddr(host); err == nil {
		if fault := a.Address(ip); fault != "" {
			return fault, a.loopbackHint(ip.Unmap().IsLoopback())
		}
		return "", ""
	}
	lower := strings.ToLower(strings.TrimSuffix(host, "."))
	switch {
	case !validHostname(lower):
		return "is neither a host name nor an address", "such as orders.internal.example.com or 10.0.0.7"
	case slices.Contains(metadataNames, lower):
		return "names a metadata service, which is refused everywhere", "name the service itself"
	case (lower == "localhost" || strings.HasSuffix(lower, ".localhost")) && !a.loopback():
		return "is a loopback name", a.loopbackHint(true)
	}
	return "", ""
}

func (a Allow) loopback() bool { return a.Address(netip.AddrFrom4([4]byte{127, 0, 0, 1})) == "" }

func (a Allow) loopbackHint(loopback bool) string {
	if loopback {
		return "permit it with --allow-upstreams 127.0.0.0/8, if this is meant for one machine"
	}
	return "name a public, private (RFC 1918) or unique local address"
}

// endpoint checks host:port and gives its canonical spelling.
func (a Allow) endpoint(s string) (clean, fault, hint string) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", "is not host:port", "such as 10.0.0.7:8080 or [fd00::7]:8080"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", "has no port of 1 to 65535", "such as 10.0.0.7:8080"
	}
	if fault, hint := a.host(host); fault != "" {
		return "", fault, hint
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
	}
	n, _ := strconv.Atoi(port)
	return net.JoinHostPort(strings.ToLower(host), strconv.Itoa(n)), "", ""
}

// ServiceURL says why nodes may not use the URL of a service, with a hint; empty = they may. It is https, or with PlainURLs also http on a permitted loopback host.
func (a Allow) ServiceURL(s string) (fault, hint string) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Opaque != "" {
		return "is not an absolute URL", "such as https://id.example.com/keys"
	}
	if u.User != nil || u.Fragment != "" {
		return "has credentials or a fragment", "such as https://id.example.com/keys"
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return "has no port of 1 to 65535", "leave the port out for 443"
		}
	}
	if fault, hint := a.host(u.Hostname()); fault != "" {
		return fmt.Sprintf("names %s, which %s", clip(u.Hostname()), fault), hint
	}
	if u.Scheme == "https" || u.Scheme == "http" && a.PlainURLs && isLoopbackHost(u.Hostname()) {
		return "", ""
	}
	return "must be https", "plain http: is for loopback addresses on one machine"
}

func isLoopbackHost(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback() || strings.EqualFold(host, "localhost")
}
