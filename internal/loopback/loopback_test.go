package loopback

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
)

func TestBlocksAreGivenOnceUntilTheyAreReleased(t *testing.T) {
	seen := map[netip.Prefix]bool{}
	var all []*Block
	for range 20 {
		b := For(t)
		if seen[b.Prefix] || b.Bits() != 16 || !b.Prefix.Addr().IsLoopback() || !b.Contains(b.Addr(3, 4)) {
			t.Fatalf("%s, given before: %v", b, seen[b.Prefix])
		}
		seen[b.Prefix] = true
		all = append(all, b)
	}
	second := all[0].Addr(0, 0).As4()[1]
	if _, err := claim(second); !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("a taken block is given again: %v", err)
	}
	all[0].Release()
	world, err := net.Listen("unix", "@cellgate/"+all[0].String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := claim(second); !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("the block of a running world is given: %v", err)
	}
	world.Close()
	b, err := claim(second)
	if err != nil {
		t.Fatal(err)
	}
	b.Release()
}
