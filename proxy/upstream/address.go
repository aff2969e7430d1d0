package upstream

import (
	"net/netip"

	"github.com/cellgate/cellgate/snapshot"
)

// metadata are cloud metadata services outside of the link-local ranges, refused everywhere; nat64 hides IPv4 addresses.
var (
	metadata = []netip.Addr{netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("168.63.129.16")}
	nat64    = netip.MustParsePrefix("64:ff9b::/96")
)

// permitted says whether a resolved address may be dialled: unicast, not link-local, no metadata service, and loopback
// only where it is allowed. It looks at the address that the connection really goes to, so a name that changes its
// answer between check and use gains nothing.
func permitted(a netip.Addr, allow snapshot.Allow) bool {
	a = a.Unmap().WithZone("")
	if nat64.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	for _, m := range metadata {
		if a == m {
			return false
		}
	}
	if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return false
	}
	if a.IsLoopback() || a.Is4() && a.As4()[0] == 0 {
		for _, p := range allow.Upstreams {
			if p.Contains(a) {
				return true
			}
		}
		return false
	}
	return true
}
