// Package loopback gives every test address blocks of its own, so that neither tests that run side by side nor two runs on one
// machine ever want the same address:
//
//	block := loopback.For(t)             // until the test ends
//	net.Listen("tcp", block.Addr(1, 1).String()+":7000")
package loopback

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// Blocks are given out from 127.128.0.0/16 to 127.253.0.0/16. Those below are for worlds that people start.
const (
	first = 128
	last  = 253
	// patience is how long Claim waits when all are taken.
	patience = time.Minute
)

// Block is a /16 of loopback addresses that its owner shares with nobody.
type Block struct {
	netip.Prefix
	claim net.Listener
}

// Claim takes a block until Release or the end of the process, whatever ends it: the claim is a socket in the kernel's abstract
// namespace, which is as wide as the loopback interface.
func Claim() (*Block, error) {
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		begin := rand.IntN(last - first + 1)
		for i := range last - first + 1 {
			b, err := claim(byte(first + (begin+i)%(last-first+1)))
			if !errors.Is(err, syscall.EADDRINUSE) {
				return b, err
			}
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("all loopback blocks from 127.%d to 127.%d are taken", first, last)
		}
	}
}

func claim(second byte) (*Block, error) {
	block := netip.PrefixFrom(netip.AddrFrom4([4]byte{127, second, 0, 0}), 16)
	own, err := net.Listen("unix", "@cellgate-test/"+block.String())
	if err != nil {
		return nil, fmt.Errorf("claim of %s: %w", block, err)
	}
	// A world outlives the test that started it when that test is killed; it has a claim of its own.
	world, err := net.Listen("unix", "@cellgate/"+block.String())
	if err != nil {
		own.Close()
		return nil, fmt.Errorf("claim of %s: %w", block, err)
	}
	world.Close()
	return &Block{block, own}, nil
}

// For claims a block until the test ends.
func For(t testing.TB) *Block {
	t.Helper()
	b, err := Claim()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Release)
	return b
}

// Release gives the block back.
func (b *Block) Release() { _ = b.claim.Close() }

// Addr is an address of the block: 127.N.third.fourth.
func (b *Block) Addr(third, fourth byte) netip.Addr {
	a := b.Prefix.Addr().As4()
	return netip.AddrFrom4([4]byte{a[0], a[1], third, fourth})
}
