package route

import (
	"unsafe"

	"github.com/cellgate/cellgate/proxy/prefetch"
)

// Ahead goes the likely way of a look-up in advance of it, along literal segments of an exact host. Each step asks the memory for
// what the next one reads, and leaves it time to come: nothing depends on what it finds. The zero value goes nowhere.
type Ahead struct {
	t    *Table
	ref  uint32 // the node to look at; 0 = the way is at its end
	rest string // of the path, behind that node
	edge int    // where to look for the child for the next segment
	tag  uint32 // the child's; with edge < 0 there is no such look
}

// Ahead begins the way of a path and takes its first step. The table's number is for whoever has the routes.
func (x *Index) Ahead(host, path string) (a Ahead, table int32) {
	s := x.exact(host)
	if s == nil || !s.routes {
		s = &x.any
	}
	if !s.routes || path == "" {
		return Ahead{}, 0
	}
	a = Ahead{t: x.tables[s.table], ref: s.root, rest: path, edge: -1}
	a.Step()
	return a, s.table
}

// Step goes on until it needs what isn't there yet. It is true when the way has led to a route.
func (a *Ahead) Step() (route uint32, ok bool) {
	if a.ref != 0 && a.edge >= 0 {
		a.cross()
		return 0, false
	}
	for a.ref != 0 {
		n := &a.t.nodes[a.ref-1]
		if n.single && (a.rest == "" || n.tail != 0) {
			a.ref = 0
			return n.route, true
		}
		if a.rest == "" || n.child == 0 {
			a.ref = 0
			break
		}
		segment, after := cut(a.rest)
		a.rest = after
		if n.child == several {
			a.edge, a.tag = a.t.slot(a.ref, segment)
			prefetch.Line(unsafe.Pointer(&a.t.edges[a.edge]))
			break
		}
		a.ref = n.child // it lies right behind
	}
	return 0, false
}

// cross follows an edge. The edges of one cache line are looked at, in which nearly all children are.
func (a *Ahead) cross() {
	edges := a.t.edges[a.edge:min(a.edge+8, len(a.t.edges))]
	a.ref, a.edge = 0, -1
	for _, e := range edges {
		if e.child == 0 {
			return
		}
		if e.tag == a.tag {
			a.ref = e.child
			prefetch.Line(unsafe.Pointer(&a.t.nodes[e.child-1]))
			return
		}
	}
}
