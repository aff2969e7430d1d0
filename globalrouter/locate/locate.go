// Package locate maps a client's address to its locality: longest prefix match over a leaf-pushed trie,
// with the ECS scope that the match is good for.
package locate

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// Entry says that the prefix belongs to the locality. Locality 0 is "unknown" and the default of every address.
type Entry struct {
	Prefix   netip.Prefix
	Locality uint16
}

// Bounds of a table; a build beyond them is refused.
const (
	MaxEntries = 4 << 20
	maxLeaves  = 16 << 20
	maxBlocks  = 512 << 10 // 1 KiB each
)

// Table is immutable. The zero value knows nothing: every address is locality 0 with scope 0.
type Table struct {
	v4, v6 trie
}

// trie has strides of 16 and then 8 bits. A slot is either a leaf, locality<<8 | scope, or child | the number of a block of 256 slots.
type trie struct {
	root   []uint32
	blocks []uint32
}

const child = 1 << 31

// Build makes a table. A prefix that is given twice with different localities is an error, and so are host bits.
func Build(entries []Entry) (*Table, error) {
	if len(entries) > MaxEntries {
		return nil, fmt.Errorf("locate: %d prefixes, at most %d", len(entries), MaxEntries)
	}
	var four, six []prefix
	for _, e := range entries {
		if !e.Prefix.IsValid() || e.Prefix.Addr().Is4In6() || e.Prefix != e.Prefix.Masked() {
			return nil, fmt.Errorf("locate: %s is not a plain prefix without host bits", e.Prefix)
		}
		p := prefix{len: uint8(e.Prefix.Bits()), locality: e.Locality}
		if e.Prefix.Addr().Is4() {
			a := e.Prefix.Addr().As4()
			p.hi = uint64(binary.BigEndian.Uint32(a[:])) << 32
			four = append(four, p)
		} else {
			p.hi, p.lo = halves(e.Prefix.Addr())
			six = append(six, p)
		}
	}
	t := new(Table)
	if err := t.v4.build(four, 32); err != nil {
		return nil, err
	}
	if err := t.v6.build(six, 128); err != nil {
		return nil, err
	}
	return t, nil
}

// Lookup4 gives the locality of an IPv4 address in host order, and the length of the widest prefix around it in which every
// address has the same locality.
func (t *Table) Lookup4(a uint32) (locality uint16, scope uint8) {
	if t.v4.root == nil {
		return 0, 0
	}
	e := t.v4.root[a>>16]
	if e&child != 0 {
		e = t.v4.blocks[(e&^child)<<8|a>>8&0xff]
		if e&child != 0 {
			e = t.v4.blocks[(e&^child)<<8|a&0xff]
		}
	}
	return uint16(e >> 8), uint8(e)
}

// Lookup6 is Lookup4 for an IPv6 address in two halves.
func (t *Table) Lookup6(hi, lo uint64) (locality uint16, scope uint8) {
	if t.v6.root == nil {
		return 0, 0
	}
	e := t.v6.root[hi>>48]
	for depth := 16; e&child != 0; depth += 8 {
		e = t.v6.blocks[uint64(e&^child)<<8|stride(hi, lo, depth)]
	}
	return uint16(e >> 8), uint8(e)
}

// Lookup is either of the two, by family; an IPv4-mapped address counts as IPv4.
func (t *Table) Lookup(a netip.Addr) (locality uint16, scope uint8) {
	if a = a.Unmap(); a.Is4() {
		b := a.As4()
		return t.Lookup4(binary.BigEndian.Uint32(b[:]))
	}
	if !a.IsValid() {
		return 0, 0
	}
	return t.Lookup6(halves(a))
}

func halves(a netip.Addr) (hi, lo uint64) {
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

// stride is the 8 bits from depth on.
func stride(hi, lo uint64, depth int) uint64 {
	if depth < 64 {
		return hi >> (56 - depth) & 0xff
	}
	return lo >> (120 - depth) & 0xff
}

// prefix is left-aligned in 128 bits, IPv4 in the upper 32.
type prefix struct {
	hi, lo   uint64
	len      uint8
	locality uint16
}

func (p prefix) bit(depth int) uint64 {
	if depth < 64 {
		return p.hi >> (63 - depth) & 1
	}
	return p.lo >> (127 - depth) & 1
}

func compare(a, b prefix) int {
	switch {
	case a.hi != b.hi:
		return 1 - 2*int(b2u(a.hi < b.hi))
	case a.lo != b.lo:
		return 1 - 2*int(b2u(a.lo < b.lo))
	default:
		return int(a.len) - int(b.len)
	}
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func (t *trie) build(ps []prefix, width int) error {
	slices.SortFunc(ps, compare)
	unique := ps[:0]
	for _, p := range ps {
		if n := len(unique); n > 0 && compare(unique[n-1], p) == 0 {
			if unique[n-1].locality != p.locality {
				return fmt.Errorf("locate: prefix %s has two localities", p.netip(width))
			}
			continue
		}
		unique = append(unique, p)
	}
	if len(unique) == 0 {
		return nil
	}
	b := builder{trie: t, width: width}
	t.root = make([]uint32, 1<<16)
	if whole, value := b.split(unique, prefix{}, 0); whole {
		b.leaf(prefix{locality: value})
	}
	return b.err
}

type builder struct {
	*trie
	width, leaves int
	err           error
}

// split walks the subtree at node, whose inherited locality is node.locality. When it is of one locality, it says so and
// leaves the writing to its parent, so that a leaf is as wide as can be; otherwise it has written everything below.
func (b *builder) split(ps []prefix, node prefix, depth int) (whole bool, value uint16) {
	if len(ps) > 0 && int(ps[0].len) == depth {
		node.locality = ps[0].locality
		ps = ps[1:]
	}
	if len(ps) == 0 || depth == b.width || b.err != nil {
		return true, node.locality
	}
	at, _ := slices.BinarySearchFunc(ps, 1, func(p prefix, _ int) int { return int(p.bit(depth)) - 1 })
	zero, one := node, node
	zero.len, one.len = uint8(depth+1), uint8(depth+1)
	if depth < 64 {
		one.hi |= 1 << (63 - depth)
	} else {
		one.lo |= 1 << (127 - depth)
	}
	w0, v0 := b.split(ps[:at], zero, depth+1)
	w1, v1 := b.split(ps[at:], one, depth+1)
	if w0 && w1 && v0 == v1 {
		return true, v0
	}
	if w0 {
		zero.locality = v0
		b.leaf(zero)
	}
	if w1 {
		one.locality = v1
		b.leaf(one)
	}
	return false, 0
}

// leaf writes one leaf into the block that its length belongs to.
func (b *builder) leaf(p prefix) {
	if b.leaves++; b.leaves > maxLeaves && b.err == nil {
		b.err = fmt.Errorf("locate: more than %d leaves", maxLeaves)
	}
	if b.err != nil {
		return
	}
	value := uint32(p.locality)<<8 | uint32(p.len)
	at, depth, slots := int(p.hi>>48), 16, b.root
	for int(p.len) > depth {
		e := slots[at]
		if e&child == 0 {
			n := len(b.blocks) >> 8
			if n == maxBlocks {
				b.err = fmt.Errorf("locate: more than %d blocks", maxBlocks)
				return
			}
			e = child | uint32(n)
			slots[at] = e
			b.blocks = append(b.blocks, make([]uint32, 256)...)
		}
		slots = b.blocks
		at = int(e&^child)<<8 | int(stride(p.hi, p.lo, depth))
		depth += 8
	}
	for i := range 1 << (depth - int(p.len)) {
		slots[at+i] = value
	}
}

func (p prefix) netip(width int) netip.Prefix {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], p.hi)
	binary.BigEndian.PutUint64(b[8:], p.lo)
	if width == 32 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte(b[:4])), int(p.len))
	}
	return netip.PrefixFrom(netip.AddrFrom16(b), int(p.len))
}
