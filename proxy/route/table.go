// Package route finds the route of a request: host, then path segment by segment, then method, then header and query
// predicates, never by a scan. Tables are flat and hold no pointers; one table is compiled per shard, once per content.
//
// Precedence: an exact host beats *.example.com beats any host; within a host an exact path beats a parameter, segment by
// segment from the left; every full path beats every prefix; the longest prefix wins. On one path more predicates
// beat fewer, and named methods beat all methods. A route whose predicates or method fail is passed over for the next
// less specific one; when no route takes the request, it is 405 if the method alone failed somewhere, else 404.
package route

import (
	"hash/maphash"
	"math/bits"
	"strings"

	"github.com/cellgate/cellgate/proxy/path"
)

// Request is what routing looks at. Host is in the form of path.Host. Headers may be nil.
type Request struct {
	Host    string
	Method  string
	Path    path.Clean
	Query   string // raw, without '?'
	Headers Headers
}

// Headers looks a request header up by its lower-case name; ok is false when it is absent.
type Headers interface {
	Get(name string) (value string, ok bool)
}

// Table holds the compiled routes of some hosts. It is immutable. A route is known by its number: the order of Add.
type Table struct {
	seed  maphash.Seed
	nodes []node // open addressing with linear probing, at most three quarters full
	roots []root
	rules []rule
	preds []predicate
	hosts []string // pattern of roots[i]: "api.example.com", "*.example.com" or "" for any
	text  string   // what does not fit into nodes
	count int
}

// node is one path segment below its parent, in one cache line, so that a look-up costs one miss a segment.
type node struct {
	parent  uint32 // reference of the parent; 0 = the slot is empty
	exact   uint32 // 1 + first of the rules of paths that end here; 0 = none
	prefix  uint32 // 1 + first of the rules of prefixes that end here; 0 = none
	param   uint32 // reference of the child that takes any non-empty segment; 0 = none
	methods uint32 // with single: methods and route of the one rule in exact
	route   uint32
	single  bool
	size    uint8        // length of the segment, or outside
	segment [inline]byte // the segment, or with outside: offset and length in text, 4 bytes each
}

const (
	inline  = 38
	outside = 255
)

// References name nodes: a slot number + 1, or isRoot | number of a root.
const isRoot = 1 << 31

type root struct {
	param  uint32
	prefix uint32
}

// rule is one route on one path; the rules of a path are adjacent in order of precedence, the last one marked.
type rule struct {
	methods uint32
	route   uint32
	preds   uint32
	npreds  uint16
	last    bool
}

// predicate wants one header or query parameter to have one value.
type predicate struct {
	name, value span
	query       bool
}

type span struct{ at, size uint32 }

func (t *Table) str(s span) string { return t.text[s.at : s.at+s.size] }

// Routes is the number of routes in the table.
func (t *Table) Routes() int { return t.count }

// Bytes is the memory that the table holds.
func (t *Table) Bytes() int {
	n := len(t.nodes)*64 + len(t.roots)*8 + len(t.rules)*16 + len(t.preds)*20 + len(t.text)
	for _, h := range t.hosts {
		n += 16 + len(h)
	}
	return n
}

func (t *Table) start(parent uint32, segment string) uint32 {
	h := maphash.String(t.seed, segment) ^ uint64(parent)*0x9E3779B97F4A7C15
	h *= 0xD6E8FEB86659FD93
	hi, _ := bits.Mul64(h, uint64(len(t.nodes)))
	return uint32(hi)
}

// child finds the node of a literal segment below parent; 0 = none.
func (t *Table) child(parent uint32, segment string) uint32 {
	if len(t.nodes) == 0 {
		return 0
	}
	for i := t.start(parent, segment); ; {
		n := &t.nodes[i]
		if n.parent == parent && t.is(n, segment) {
			return i + 1
		}
		if n.parent == 0 {
			return 0
		}
		if i++; int(i) == len(t.nodes) {
			i = 0
		}
	}
}

func (t *Table) is(n *node, segment string) bool {
	if n.size == outside {
		return len(segment) > inline && t.str(n.outside()) == segment
	}
	return int(n.size) == len(segment) && string(n.segment[:n.size]) == segment
}

func (n *node) outside() span { return span{le32(n.segment[0:4]), le32(n.segment[4:8])} }

func le32(b []byte) uint32 {
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}

// cut takes the first segment of a rest that starts with a slash; what follows is "" or starts with a slash again.
func cut(rest string) (segment, after string) {
	rest = rest[1:]
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		return rest[:i], rest[i:]
	}
	return rest, ""
}
