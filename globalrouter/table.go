package globalrouter

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/cellgate/cellgate/globalrouter/answer"
	"github.com/cellgate/cellgate/globalrouter/locate"
	"github.com/cellgate/cellgate/globalrouter/steer"
)

// Table is everything that an answer is made from: one zone and one plan, compiled. It is immutable.
type Table struct {
	zone *Zone
	fast *answer.Table
}

// Compile makes a table. plan and geo may be nil; blind says that there should be a plan but there is none: then what the
// zone does not have is answered with SERVFAIL instead of a denial.
func Compile(zone *Zone, plan *steer.Plan, geo []GeoEntry, blind bool) (*Table, error) {
	var l *locate.Table
	if plan != nil {
		if err := plan.Validate(); err != nil {
			return nil, err
		}
		var err error
		if l, err = localities(plan, geo); err != nil {
			return nil, err
		}
	}
	return &Table{zone: zone, fast: answer.New(zone.forFastPath(), plan, l, blind)}, nil
}

// Reroute is the same table, which has a plan, with other rows for the plan's atoms.
func (t *Table) Reroute(rows [][]steer.Row) *Table {
	return &Table{zone: t.zone, fast: t.fast.Reroute(rows)}
}

// Misfit is a name of a plan that the zone cannot take as it is.
type Misfit struct{ Name, Why string }

// Misfits lists the plan's names that are outside the zone, and are left out, and those at which the zone has an alias,
// which the plan then hides; sorted by name.
func (z *Zone) Misfits(plan *steer.Plan) []Misfit {
	var out []Misfit
	for name := range plan.Names {
		switch wire := wireName(name + "."); {
		case wire == "" || !below(wire, z.origin):
			out = append(out, Misfit{name, "is outside the zone " + z.Origin()})
		case len(z.names[wire][dns.TypeCNAME]) > 0:
			out = append(out, Misfit{name, "has a CNAME record in the zone"})
		}
	}
	slices.SortFunc(out, func(a, b Misfit) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// localities merges the plan's client prefixes with the geo file's; where both name the same prefix, the file wins.
func localities(plan *steer.Plan, geo []GeoEntry) (*locate.Table, error) {
	index := map[string]uint16{}
	all := map[netip.Prefix]uint16{}
	for i, l := range plan.Localities {
		index[l.ID] = uint16(i)
		for _, p := range l.Prefixes {
			all[p] = uint16(i)
		}
	}
	for _, g := range geo {
		i, ok := index[g.Locality]
		if !ok {
			return nil, fmt.Errorf("geo: line %d: the plan has no locality %q", g.Line, g.Locality)
		}
		all[g.Prefix] = i
	}
	entries := make([]locate.Entry, 0, len(all))
	for p, i := range all {
		entries = append(entries, locate.Entry{Prefix: p, Locality: i})
	}
	return locate.Build(entries)
}

// Plan is the plan that the table answers from, or nil.
func (t *Table) Plan() *steer.Plan { return t.fast.Plan() }

// Explain says what a client is told about a steered name; ok is false when the name is not steered.
func (t *Table) Explain(name string, client netip.Addr) (answer.Steered, bool) {
	var s answer.Scratch
	return t.fast.Explain(&s, wireName(name+"."), client, true)
}

// Answer gives the answer to the packet in b[:n], written into b or freshly made; nil means that nothing is sent.
func (t *Table) Answer(s *answer.Scratch, b []byte, n int, source netip.Addr, limit int) (out []byte, slow bool) {
	if n := t.fast.Answer(s, b, n, source, limit); n > 0 {
		return b[:n], false
	} else if n == answer.Drop {
		return nil, false
	}
	return t.slow(s, b[:n], source, limit), true
}
