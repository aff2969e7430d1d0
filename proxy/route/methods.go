package route

import (
	"strings"

	"github.com/cellgate/cellgate/snapshot"
)

// known lists the methods that routes may name, in the order of their bits. "Other" methods are taken by routes that
// take all methods.
var known = snapshot.Methods()

const (
	otherMethod = uint32(1) << 31
	echoMethod  = uint32(1) << 30 // TRACK, and TRACE however it is written
	trace       = uint32(1) << 7
	// allMethods are those of a route that names none. Methods that give a request back as it has arrived, with what only
	// upstreams may see, have to be named (RFC 9110, section 9.3.8).
	allMethods = ^(echoMethod | trace)
)

func methodBit(m string) uint32 {
	switch m {
	case "GET":
		return 1
	case "POST":
		return 1 << 2
	}
	for i, k := range known {
		if k == m {
			return 1 << i
		}
	}
	if strings.EqualFold(m, "TRACE") || strings.EqualFold(m, "TRACK") {
		return echoMethod
	}
	return otherMethod
}

func methodMask(methods []string) (mask uint32, ok bool) {
	if len(methods) == 0 {
		return allMethods, true
	}
	for _, m := range methods {
		b := methodBit(m)
		if b == otherMethod || b == echoMethod {
			return 0, false
		}
		mask |= b
	}
	return mask, true
}

// allow is the value of the Allow header (RFC 9110, section 10.2.1).
func allow(mask uint32) string {
	var names []string
	for i, k := range known {
		if mask&(1<<i) != 0 {
			names = append(names, k)
		}
	}
	return strings.Join(names, ", ")
}
