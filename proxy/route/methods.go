package route

import (
	"strings"

	"github.com/cellgate/cellgate/snapshot"
)

// known lists the methods that routes may name, in the order of their bits. "Other" methods are taken by routes that
// take all methods.
var known = snapshot.Methods()

const (
	allMethods  = ^uint32(0)
	otherMethod = uint32(1) << 31
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
	return otherMethod
}

func methodMask(methods []string) (mask uint32, ok bool) {
	if len(methods) == 0 {
		return allMethods, true
	}
	for _, m := range methods {
		b := methodBit(m)
		if b == otherMethod {
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
