package route

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"

	"github.com/cellgate/cellgate/snapshot"
)

// MaxSegments bounds the segments of a pattern (A8).
const MaxSegments = 32

// parameter is the key of the child that takes any segment. A clean path holds no '{'.
const parameter = "{"

// Builder collects the routes of one table.
type Builder struct {
	ids   map[edge]uint32 // draft node + 1 per edge
	hosts map[string]uint32
	names []string
	draft []draftNode // parents stand before their children
	roots []draftEnds
	table Table
	text  strings.Builder
	spans map[string]span
}

type edge struct {
	parent  uint32 // draft node + 1, or isRoot | root
	segment string
}

type draftNode struct {
	edge
	draftEnds
	param uint32 // draft node + 1
}

type draftEnds struct{ exact, prefix []rule }

// NewBuilder starts an empty table.
func NewBuilder() *Builder {
	return &Builder{ids: map[edge]uint32{}, hosts: map[string]uint32{}, spans: map[string]span{}}
}

// Add puts the route under the next number. The route is not kept, its strings are.
func (b *Builder) Add(r *snapshot.Route) error {
	mask, ok := methodMask(r.Match.Methods)
	if !ok {
		return fmt.Errorf("route %q: unknown method among %q", r.ID, r.Match.Methods)
	}
	new := rule{methods: mask, route: uint32(b.table.count)}
	b.predicates(&new, r.Match.Headers, false)
	b.predicates(&new, r.Match.Query, true)
	ref, err := b.place(&r.Match)
	if err != nil {
		return fmt.Errorf("route %q: %w", r.ID, err)
	}
	ends := b.ends(ref)
	if r.Match.Path != "" {
		ends.exact = append(ends.exact, new)
	} else {
		ends.prefix = append(ends.prefix, new)
	}
	b.table.count++
	return nil
}

func (b *Builder) predicates(r *rule, want map[string]string, query bool) {
	if r.npreds == 0 {
		r.preds = uint32(len(b.table.preds))
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		p := predicate{name: b.intern(name), value: b.intern(want[name]), query: query}
		b.table.preds = append(b.table.preds, p)
		r.npreds++
	}
}

func (b *Builder) intern(s string) span {
	at, ok := b.spans[s]
	if !ok {
		at = span{uint32(b.text.Len()), uint32(len(s))}
		b.text.WriteString(s)
		b.spans[s] = at
	}
	return at
}

// place walks the pattern from its host down, making what is missing, and gives the reference of its end.
func (b *Builder) place(m *snapshot.Match) (uint32, error) {
	ref := b.root(m.Host)
	rest := m.Path
	if rest == "" {
		rest = strings.TrimSuffix(m.PathPrefix, "/")
		if rest == "" && m.PathPrefix == "/" {
			return ref, nil
		}
	}
	if rest == "" || rest[0] != '/' || strings.Count(rest, "/") > MaxSegments {
		return 0, fmt.Errorf("pattern %q%q cannot be compiled", m.Path, m.PathPrefix)
	}
	for rest != "" {
		var segment string
		segment, rest = cut(rest)
		ref = b.child(ref, segment, m.Path != "")
	}
	return ref, nil
}

func (b *Builder) root(host string) uint32 {
	i, ok := b.hosts[host]
	if !ok {
		i = uint32(len(b.roots))
		b.hosts[host] = i
		b.names = append(b.names, host)
		b.roots = append(b.roots, draftEnds{})
		b.table.roots = append(b.table.roots, root{})
	}
	return isRoot | i
}

func (b *Builder) child(parent uint32, segment string, parameters bool) uint32 {
	isParam := parameters && strings.HasPrefix(segment, "{")
	if isParam {
		segment = parameter
	}
	e := edge{parent, segment}
	id, ok := b.ids[e]
	if !ok {
		b.draft = append(b.draft, draftNode{edge: e})
		id = uint32(len(b.draft))
		b.ids[e] = id
	}
	if isParam && parent&isRoot != 0 {
		b.table.roots[parent&^isRoot].param = id
	} else if isParam {
		b.draft[parent-1].param = id
	}
	return id
}

func (b *Builder) ends(ref uint32) *draftEnds {
	if ref&isRoot != 0 {
		return &b.roots[ref&^isRoot]
	}
	return &b.draft[ref-1].draftEnds
}

// Table lays the table out flat. The Builder must not be used afterwards.
func (b *Builder) Table() *Table {
	t := &b.table
	t.seed = maphash.MakeSeed()
	t.hosts = b.names
	t.nodes = make([]node, len(b.draft)+len(b.draft)/2)
	final := make([]uint32, len(b.draft)+1) // draft reference → final reference
	for i := range b.draft {
		final[i+1] = b.settle(&b.draft[i], final)
	}
	for i := range b.draft {
		t.nodes[final[i+1]-1].param = final[b.draft[i].param]
	}
	for i := range t.roots {
		t.roots[i].param = final[t.roots[i].param]
		t.roots[i].prefix = b.rules(b.roots[i].prefix)
	}
	t.text = b.text.String()
	return t
}

// settle gives the draft node its slot; its parent has one already.
func (b *Builder) settle(d *draftNode, final []uint32) uint32 {
	t := &b.table
	n := node{parent: d.parent, exact: b.rules(d.exact), prefix: b.rules(d.prefix)}
	if d.parent&isRoot == 0 {
		n.parent = final[d.parent]
	}
	if len(d.exact) == 1 && d.exact[0].npreds == 0 {
		n.single, n.methods, n.route = true, d.exact[0].methods, d.exact[0].route
	}
	if len(d.segment) <= inline {
		n.size = uint8(copy(n.segment[:], d.segment))
	} else {
		at := b.intern(d.segment)
		n.size = outside
		binary.LittleEndian.PutUint32(n.segment[0:], at.at)
		binary.LittleEndian.PutUint32(n.segment[4:], at.size)
	}
	i := t.start(n.parent, d.segment)
	for t.nodes[i].parent != 0 {
		if i++; int(i) == len(t.nodes) {
			i = 0
		}
	}
	t.nodes[i] = n
	return i + 1
}

func (b *Builder) rules(rs []rule) uint32 {
	if len(rs) == 0 {
		return 0
	}
	slices.SortStableFunc(rs, func(x, y rule) int {
		if c := cmp.Compare(y.npreds, x.npreds); c != 0 {
			return c
		}
		return cmp.Compare(bool2int(x.methods == allMethods), bool2int(y.methods == allMethods))
	})
	first := uint32(len(b.table.rules))
	b.table.rules = append(b.table.rules, rs...)
	b.table.rules[len(b.table.rules)-1].last = true
	return first + 1
}

func bool2int(b bool) int {
	if b {
		return 1
	}
	return 0
}
