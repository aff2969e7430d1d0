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

// Builder collects the routes of one table after the other; what it needs for one it keeps for the next.
type Builder struct {
	ids   map[step]uint32 // draft reference of each edge
	draft []draftNode
	table Table
	text  strings.Builder
	spans map[string]span
	tails map[string]uint32
	names []string // of one rule's predicates
}

// step is an edge of the draft; a root has no parent and its host for segment. References are index + 1.
type step struct {
	parent  uint32
	segment string
}

type draftNode struct {
	step
	exact, prefix []rule
	param         uint32
	first, next   uint32 // literal children: the newest, and of a child the one before it
	fan           int    // number of literal children
}

// NewBuilder starts an empty table.
func NewBuilder() *Builder {
	return &Builder{ids: map[step]uint32{}, spans: map[string]span{}, tails: map[string]uint32{}}
}

// Add puts the route under the next number. The route is not kept; its strings are, until Table.
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
	end := &b.draft[ref-1]
	if r.Match.Path != "" {
		end.exact = append(end.exact, new)
	} else {
		end.prefix = append(end.prefix, new)
	}
	b.table.count++
	return nil
}

func (b *Builder) predicates(r *rule, want map[string]string, query bool) {
	if r.npreds == 0 {
		r.preds = uint32(len(b.table.preds))
	}
	b.names = slices.AppendSeq(b.names[:0], maps.Keys(want))
	slices.Sort(b.names)
	for _, name := range b.names {
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

func (b *Builder) root(host string) uint32 { return b.node(step{0, host}, false) }

func (b *Builder) child(parent uint32, segment string, parameters bool) uint32 {
	isParam := parameters && strings.HasPrefix(segment, "{")
	if isParam {
		segment = parameter
	}
	return b.node(step{parent, segment}, isParam)
}

// node finds or makes the node of a step and hangs it to its parent.
func (b *Builder) node(s step, isParam bool) uint32 {
	if id, ok := b.ids[s]; ok {
		return id
	}
	b.draft = append(b.draft, draftNode{step: s})
	id := uint32(len(b.draft))
	b.ids[s] = id
	if s.parent == 0 {
		return id
	}
	parent := &b.draft[s.parent-1]
	if isParam {
		parent.param = id
		return id
	}
	b.draft[id-1].next, parent.first = parent.first, id
	parent.fan++
	return id
}

// Table lays the table out flat. The Builder is empty afterwards.
func (b *Builder) Table() *Table {
	defer b.clear()
	t := &b.table
	t.seed = maphash.MakeSeed()
	t.nodes = make([]node, 0, len(b.draft))
	edges := 0
	for i := range b.draft {
		if b.draft[i].fan > 1 {
			edges += b.draft[i].fan
		}
	}
	t.edges = make([]edge, edges+edges/2+1)
	for i := range b.draft {
		if d := &b.draft[i]; d.parent == 0 {
			t.hosts = append(t.hosts, host{strings.Clone(d.segment), b.settle(uint32(i)+1, 0)})
		}
	}
	t.text = b.text.String()
	done := *t
	return &done
}

func (b *Builder) clear() {
	clear(b.ids)
	clear(b.spans)
	clear(b.tails)
	clear(b.draft)
	b.draft, b.table = b.draft[:0], Table{}
	b.text.Reset()
}

// settle lays out the draft node and what hangs below it, a single child first; the depth is at most MaxSegments + 1.
func (b *Builder) settle(draft, parent uint32) uint32 {
	t, d := &b.table, &b.draft[draft-1]
	end, tail := b.only(d)
	t.nodes = append(t.nodes, b.flat(d, end, tail, parent))
	ref := uint32(len(t.nodes))
	if end != d {
		return ref
	}
	if d.fan == 1 {
		child := b.settle(d.first, ref)
		t.nodes[ref-1].child = child
	}
	if d.param != 0 {
		param := b.settle(d.param, ref)
		t.nodes[ref-1].param = param
	}
	if d.fan > 1 {
		t.nodes[ref-1].child = several
		for c := d.first; c != 0; c = b.draft[c-1].next {
			t.link(ref, b.draft[c-1].segment, b.settle(c, ref))
		}
	}
	return ref
}

// only follows single children from d. If nothing lies below it but one path with one rule that has no predicates, it gives
// the end of that path and what leads there, else d itself.
func (b *Builder) only(d *draftNode) (end *draftNode, tail string) {
	for end = d; len(end.exact)+len(end.prefix) == 0 && (end.fan == 1) != (end.param != 0) && end.fan <= 1; {
		end = &b.draft[max(end.first, end.param)-1]
		tail += "/" + end.segment
	}
	if len(end.exact) == 1 && end.exact[0].npreds == 0 && len(end.prefix) == 0 && end.fan == 0 && end.param == 0 {
		return end, tail
	}
	return d, ""
}

// flat is the node of d, with the rules of the paths that end at end.
func (b *Builder) flat(d, end *draftNode, tail string, parent uint32) node {
	n := node{parent: parent, exact: b.rules(end.exact), prefix: b.rules(end.prefix)}
	if len(end.exact) == 1 && end.exact[0].npreds == 0 {
		n.single, n.methods, n.route = true, end.exact[0].methods, end.exact[0].route
	}
	if tail != "" {
		n.tail = b.tail(tail)
	}
	switch {
	case parent == 0: // the host is in Table.hosts
	case len(d.segment) <= inline:
		n.size = uint8(copy(n.segment[:], d.segment))
	default:
		at := b.intern(d.segment)
		n.size = outside
		binary.LittleEndian.PutUint32(n.segment[0:], at.at)
		binary.LittleEndian.PutUint32(n.segment[4:], at.size)
	}
	return n
}

func (b *Builder) tail(s string) uint32 {
	if b.tails[s] == 0 {
		b.table.tails = append(b.table.tails, b.intern(s))
		b.tails[s] = uint32(len(b.table.tails))
	}
	return b.tails[s]
}

// link enters the edge from parent to child.
func (t *Table) link(parent uint32, segment string, child uint32) {
	i, tag := t.slot(parent, segment)
	for t.edges[i].child != 0 {
		if i++; i == len(t.edges) {
			i = 0
		}
	}
	t.edges[i] = edge{tag, child}
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
