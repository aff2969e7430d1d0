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
	nodes []node // depth first, so that a chain of single children lies in adjacent cache lines
	edges []edge // of parents with several literal children: open addressing, linear probing, at most two thirds full
	rules []rule
	preds []predicate
	hosts []host
	tails []span // in text
	text  string // what does not fit into nodes
	count int
}

// host is a pattern ("api.example.com", "*.example.com" or "" for any) with the reference of its root node.
type host struct {
	pattern string
	root    uint32
}

// node is one path segment below its parent, in one cache line. References name nodes: index + 1, 0 = none. Where nothing but
// one path of one rule lies below a node, it has no children: it ends that path itself, with what follows for a tail.
type node struct {
	parent  uint32
	child   uint32 // the literal child if there is one alone, or several
	param   uint32 // the child that takes any non-empty segment
	exact   uint32 // 1 + first of the rules of paths that end here; 0 = none
	prefix  uint32 // 1 + first of the rules of prefixes that end here; 0 = none
	methods uint32 // with single: methods and route of the one rule in exact
	route   uint32
	tail    uint32 // 1 + number of the tail of the paths that end here, with parameters as "{"; 0 = none
	single  bool
	size    uint8        // length of the segment, or outside
	segment [inline]byte // the segment, or with outside: offset and length in text, 4 bytes each
}

const (
	inline  = 30
	outside = 255
	several = ^uint32(0)
)

// edge leads to a child; tag is part of its hash and spares the look at most wrong children.
type edge struct{ tag, child uint32 }

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

func (p *predicate) cost() int {
	if p.query {
		return costQuery
	}
	return costHeader
}

type span struct{ at, size uint32 }

func (t *Table) str(s span) string { return t.text[s.at : s.at+s.size] }

// Routes is the number of routes in the table.
func (t *Table) Routes() int { return t.count }

// Bytes is the memory that the table holds.
func (t *Table) Bytes() int {
	n := len(t.nodes)*64 + len(t.edges)*8 + len(t.rules)*16 + len(t.preds)*20 + len(t.tails)*8 + len(t.text)
	for _, h := range t.hosts {
		n += 24 + len(h.pattern)
	}
	return n
}

// slot is where the probing for a child begins, and its tag.
func (t *Table) slot(parent uint32, segment string) (at int, tag uint32) {
	h := maphash.String(t.seed, segment) ^ uint64(parent)*0x9E3779B97F4A7C15
	h *= 0xD6E8FEB86659FD93
	hi, _ := bits.Mul64(h, uint64(len(t.edges)))
	return int(hi), uint32(h)
}

// child finds the literal child of a node for a segment; 0 = none.
func (t *Table) child(parent uint32, segment string) uint32 {
	c := t.nodes[parent-1].child
	if c == 0 {
		return 0
	}
	if c != several {
		if t.is(&t.nodes[c-1], segment) {
			return c
		}
		return 0
	}
	for i, tag := t.slot(parent, segment); ; {
		e := t.edges[i]
		if e.child == 0 {
			return 0
		}
		if e.tag == tag {
			if n := &t.nodes[e.child-1]; n.parent == parent && t.is(n, segment) {
				return e.child
			}
		}
		if i++; i == len(t.edges) {
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

// ends says whether the paths that end at the node end with rest.
func (t *Table) ends(n *node, rest string) bool {
	if n.tail == 0 || rest == "" {
		return n.tail == 0 && rest == ""
	}
	for tail := t.str(t.tails[n.tail-1]); tail != ""; {
		var want, segment string
		want, tail = cut(tail)
		if rest == "" {
			return false
		}
		if segment, rest = cut(rest); segment != want && (want != parameter || segment == "") {
			return false
		}
	}
	return rest == ""
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
