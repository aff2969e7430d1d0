package snapshot

import "net/netip"

// Permits says whether a resolved address may be dialled on an author's behalf: unicast, not link-local, no cloud metadata
// service, and loopback only where it is listed. Whoever dials asks it about the address that the connection really goes
// to, so a name that changes its answer between check and use gains nothing.
func (a Allow) Permits(addr netip.Addr) bool {
	addr = plain(addr)
	if !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast() || addr.IsLinkLocalUnicast() || metadata(addr) {
		return false
	}
	if !addr.IsLoopback() && !(addr.Is4() && addr.As4()[0] == 0) {
		return true
	}
	for _, p := range a.Upstreams {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// plain undoes the ways in which IPv6 writes an IPv4 address (RFC 4291 section 2.5.5.2, RFC 6052).
func plain(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if b := addr.As16(); addr.Is6() && [12]byte(b[:12]) == [12]byte{0, 0x64, 0xff, 0x9b} {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return addr
}

// metadata are the services and the broadcast address that the ranges above don't cover.
func metadata(addr netip.Addr) bool {
	switch addr.String() {
	case "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "255.255.255.255":
		return true
	}
	return false
}
