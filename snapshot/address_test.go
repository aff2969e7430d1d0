package snapshot

import (
	"net/netip"
	"testing"
)

func TestOnlyOrdinaryUnicastIsDialledUnlessLoopbackIsAllowed(t *testing.T) {
	for text, want := range map[string]bool{
		"10.0.0.7": true, "192.0.2.1": true, "fd00::1": true, "2001:db8::1": true,
		"169.254.169.254": false, "fe80::1": false, "0.0.0.0": false, "::": false, "224.0.0.1": false, "255.255.255.255": false,
		"fd00:ec2::254": false, "100.100.100.200": false, "168.63.129.16": false, "0.1.2.3": false,
		"::ffff:169.254.169.254": false, "64:ff9b::a9fe:a9fe": false, "64:ff9b::a00:7": true,
		"127.0.0.1": false, "127.9.9.9": false, "::1": false, "::ffff:127.0.0.1": false, "64:ff9b::7f00:1": false,
	} {
		addr := netip.MustParseAddr(text)
		if got := (Allow{}).Permits(addr); got != want {
			t.Errorf("%s: %v", text, got)
		}
		if got := Loopback().Permits(addr); got != (want || addr.Unmap().IsLoopback()) {
			t.Errorf("%s with loopback: %v", text, got)
		}
	}
	if (Allow{}).Permits(netip.Addr{}) {
		t.Error("no address is permitted")
	}
}
