// Package split divides requests among weighted branches, the same client always to the same branch.
//
//	i := split.Pick(n, weight, split.Point(route, user))   // sticky: the same on every node
//	i := split.Pick(n, weight, random)                     // by chance
package split

import "math/bits"

// Pick is the branch whose share of the line holds the point. Shares stand in order and fill the whole line, so when the
// last one grows at the others' cost it keeps whom it had. Branches without weight get nothing unless none has any.
func Pick(n int, weight func(int) uint32, point uint64) int {
	var total uint64
	for i := range n {
		total += uint64(weight(i))
	}
	at, _ := bits.Mul64(point, total)
	for i := range n {
		w := uint64(weight(i))
		if at < w {
			return i
		}
		at -= w
	}
	return n - 1
}

// The parameters of FNV-1a, 64 bits.
const (
	offset = 0xcbf29ce484222325
	prime  = 0x100000001b3
)

// Point is where a client stands on a route's line: FNV-1a of "route NUL id", finalised as in SplitMix64, since FNV leaves
// the upper bits poor. It must never change: clients would change sides.
func Point(route, id string) uint64 {
	v := uint64(offset)
	for i := range len(route) {
		v = (v ^ uint64(route[i])) * prime
	}
	v *= prime // the NUL
	for i := range len(id) {
		v = (v ^ uint64(id[i])) * prime
	}
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}

// PointOf is where in the split of a route a request falls: by its user, or else its consumer, or by the consumer alone, as
// sticky says, the same on every node (A6); at chance when nobody is known that it could go by, or sticky says nothing.
func PointOf(route, sticky, user, consumer string, chance uint64) uint64 {
	id := ""
	switch sticky {
	case "user":
		if id = user; id == "" {
			id = consumer
		}
	case "consumer":
		id = consumer
	}
	if id == "" {
		return chance
	}
	return Point(route, id)
}
