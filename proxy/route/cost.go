package route

// MaxCost bounds what one look-up in one host's routes may take. Literals and parameters that are mixed in many positions
// make a look-up branch, twofold in each; the routes of one path and their predicates add up. At the bound a look-up takes
// a fraction of a millisecond, whatever the request.
const MaxCost = 2048

// The measure of steps, in about 100 ns: a node may lie anywhere in memory, a query parameter is searched in up to 8 KiB.
const (
	costNode   = 4
	costRule   = 1
	costHeader = 2
	costQuery  = 8
)

// Dear is a host whose routes cost more than MaxCost for some request, with a route on the dearest way.
type Dear struct {
	Host  string
	Cost  int
	Route uint32
}

// Dear lists the hosts that pass MaxCost. Call it before Table.
func (b *Builder) Dear() (all []Dear) {
	for i := range b.draft {
		d := &b.draft[i]
		if d.parent != 0 {
			continue
		}
		if cost, route := b.cost(uint32(i) + 1); cost > MaxCost {
			all = append(all, Dear{d.segment, cost, route})
		}
	}
	return all
}

// cost is the most that a look-up at the node and below it can take: it tries the rules of the node, one literal child
// and the parameter. route is the last one on the dearest way; the depth is at most MaxSegments + 1.
func (b *Builder) cost(ref uint32) (cost int, route uint32) {
	d := &b.draft[ref-1]
	cost = costNode + b.rulesCost(d.exact) + b.rulesCost(d.prefix)
	for _, rs := range [][]rule{d.prefix, d.exact} {
		if len(rs) > 0 {
			route = rs[len(rs)-1].route
		}
	}
	dearest, below := 0, uint32(0)
	for c := d.first; c != 0; c = b.draft[c-1].next {
		if k, r := b.cost(c); k > dearest {
			dearest, below = k, r
		}
	}
	cost += dearest
	if d.param != 0 {
		k, r := b.cost(d.param)
		if cost += k; k >= dearest {
			dearest, below = k, r
		}
	}
	if dearest > 0 {
		route = below
	}
	return cost, route
}

func (b *Builder) rulesCost(rs []rule) (cost int) {
	for _, r := range rs {
		cost += costRule
		for i := range uint32(r.npreds) {
			cost += b.table.preds[r.preds+i].cost()
		}
	}
	return cost
}
