package steer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// bounds of a plan that is read from outside: what is larger is refused whole.
const (
	maxCells      = 4096
	maxLocalities = 65536
	maxSets       = 16384
	maxNames      = 1 << 20
	maxDetours    = 1 << 17 // rows of all fallbacks together: 64 MB in a router
	maxTTL        = 7 * 24 * 3600
)

// DecodePlan reads the stored form and validates it, so that a router may index everything in it without a check.
func DecodePlan(raw []byte) (*Plan, error) {
	var p Plan
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return &p, nil
}

// Newer says whether p comes after q in the order of plans; a nil q is before everything.
func (p *Plan) Newer(q *Plan) bool {
	if q == nil {
		return true
	}
	return p.Epoch > q.Epoch || p.Epoch == q.Epoch && p.Number > q.Number
}

// WentBack says whether p comes from a store that forgot what q knew: it was restored from a backup, and a leader's epoch
// there may be higher all the same. Plans without a head, from before there was one, don't tell.
func (p *Plan) WentBack(q *Plan) bool { return q != nil && p.Head != 0 && p.Head < q.Head }

// Validate reports the first thing that makes the plan unfit to answer from.
func (p *Plan) Validate() error {
	switch {
	case p.Form < 1 || p.Form > Form:
		return fmt.Errorf("plan: form %d is not readable here", p.Form)
	case p.Number == 0:
		return fmt.Errorf("plan: number 0")
	case len(p.Cells) == 0 || len(p.Cells) > maxCells:
		return fmt.Errorf("plan: %d cells, not 1 to %d", len(p.Cells), maxCells)
	case len(p.Localities) == 0 || len(p.Localities) > maxLocalities:
		return fmt.Errorf("plan: %d localities, not 1 to %d", len(p.Localities), maxLocalities)
	case p.Localities[0].ID != Unknown:
		return fmt.Errorf("plan: the first locality must be %q", Unknown)
	case len(p.Sets) > maxSets || len(p.Names) > maxNames:
		return fmt.Errorf("plan: %d sets, %d names: at most %d and %d", len(p.Sets), len(p.Names), maxSets, maxNames)
	case p.TTL > maxTTL:
		return fmt.Errorf("plan: ttl %d s is longer than a week", p.TTL)
	case len(p.Rows) != len(p.Sets):
		return fmt.Errorf("plan: rows of %d sets, not of %d", len(p.Rows), len(p.Sets))
	}
	for _, check := range []func() error{p.validCells, p.validLocalities, p.validRows, p.validNames, p.validFallbacks} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (p *Plan) validCells() error {
	seen := map[string]bool{}
	for _, c := range p.Cells {
		if c.ID == "" || seen[string(c.ID)] || len(c.Addresses) == 0 {
			return fmt.Errorf("plan: cell %q has no id, no address or is doubled", c.ID)
		}
		for _, a := range c.Addresses {
			if !a.IsValid() || a.Zone() != "" || a.Is4In6() {
				return fmt.Errorf("plan: cell %q: address %q is not a plain IPv4 or IPv6 address", c.ID, a)
			}
		}
		seen[string(c.ID)] = true
	}
	return nil
}

func (p *Plan) validLocalities() error {
	seen := map[string]bool{}
	for _, l := range p.Localities {
		if l.ID == "" || seen[l.ID] {
			return fmt.Errorf("plan: locality %q is empty or doubled", l.ID)
		}
		seen[l.ID] = true
		for _, pre := range l.Prefixes {
			if !pre.IsValid() || pre.Addr().Is4In6() || pre != pre.Masked() {
				return fmt.Errorf("plan: locality %q: %s is not a plain prefix without host bits", l.ID, pre)
			}
		}
		if len(l.LatencyMS) != 0 && len(l.LatencyMS) != len(p.Cells) {
			return fmt.Errorf("plan: locality %q: %d latencies for %d cells", l.ID, len(l.LatencyMS), len(p.Cells))
		}
	}
	return nil
}

func (p *Plan) validRows() error {
	seen := map[string]bool{}
	for s, set := range p.Sets {
		if set.ID == "" || seen[set.ID] || len(set.Cells) == 0 || len(p.Rows[s]) != len(p.Localities) {
			return fmt.Errorf("plan: set %q is doubled, has no cells, or has rows for %d of %d localities", set.ID, len(p.Rows[s]), len(p.Localities))
		}
		seen[set.ID] = true
		for _, c := range set.Cells {
			if int(c) >= len(p.Cells) {
				return fmt.Errorf("plan: set %q names cell %d of %d", set.ID, c, len(p.Cells))
			}
		}
		member := p.members(s)
		for l, row := range p.Rows[s] {
			if err := p.validRow(s, l, row, member); err != nil {
				return err
			}
		}
	}
	return nil
}

// members says of each cell whether it is in the set.
func (p *Plan) members(set int) []bool {
	member := make([]bool, len(p.Cells))
	for _, c := range p.Sets[set].Cells {
		member[c] = true
	}
	return member
}

func (p *Plan) validRow(s, l int, row Row, member []bool) error {
	if len(row) != Slots {
		return fmt.Errorf("plan: row of %q at %q has %d slots, not %d", p.Sets[s].ID, p.Localities[l].ID, len(row), Slots)
	}
	for _, c := range row {
		if int(c) >= len(member) || !member[c] {
			return fmt.Errorf("plan: row of %q at %q names cell %d, which is not in the set", p.Sets[s].ID, p.Localities[l].ID, c)
		}
	}
	return nil
}

// validFallbacks wants each loss once, each of its atoms once, and no row that names a cell that is lost.
func (p *Plan) validFallbacks() error {
	at := p.losses()
	members := make([][]bool, len(p.Sets))
	last, rows := "", 0
	for i := range p.Fallbacks {
		f := &p.Fallbacks[i]
		if rows += len(f.Rows); at[f.Lost] == nil || f.Lost <= last || rows > maxDetours {
			return fmt.Errorf("plan: fallback for %q: no such cell or region, out of order, or more than %d rows", f.Lost, maxDetours)
		}
		last = f.Lost
		if err := p.validDetours(f, at[f.Lost], members); err != nil {
			return fmt.Errorf("fallback for %q: %w", f.Lost, err)
		}
	}
	return nil
}

// validDetours checks one fallback; members is filled in for the sets that it speaks of.
func (p *Plan) validDetours(f *Fallback, lost []int, members [][]bool) error {
	seen := map[[2]int]bool{}
	for _, d := range f.Rows {
		if d.Set < 0 || d.Set >= len(p.Sets) || len(d.Localities) == 0 {
			return fmt.Errorf("plan: set %d does not exist, or no locality", d.Set)
		}
		for _, l := range d.Localities {
			if l < 0 || l >= len(p.Localities) || seen[[2]int{d.Set, l}] {
				return fmt.Errorf("plan: locality %d does not exist or is doubled", l)
			}
			seen[[2]int{d.Set, l}] = true
		}
		if members[d.Set] == nil {
			members[d.Set] = p.members(d.Set)
		}
		if err := p.validRow(d.Set, d.Localities[0], d.Row, members[d.Set]); err != nil {
			return err
		}
		for _, c := range lost {
			if slices.Contains(d.Row, uint16(c)) {
				return fmt.Errorf("plan: it names its own cell %s", p.Cells[c].ID)
			}
		}
	}
	return nil
}

// losses maps each cell id and region id to the cells that are gone with it, in the order of the plan.
func (p *Plan) losses() map[string][]int {
	out := make(map[string][]int, 2*len(p.Cells))
	for c := range p.Cells {
		id := p.Cells[c].ID
		out[string(id)] = append(out[string(id)], c)
		if r := string(id.Region()); r != string(id) {
			out[r] = append(out[r], c)
		}
	}
	return out
}

func (p *Plan) validNames() error {
	for name, set := range p.Names {
		if name == "" || name != strings.ToLower(name) || strings.HasSuffix(name, ".") || len(name) > 253 {
			return fmt.Errorf("plan: name %q must be lower case without the final dot", name)
		}
		if set < 0 || set >= len(p.Sets) {
			return fmt.Errorf("plan: name %q points at set %d of %d", name, set, len(p.Sets))
		}
	}
	return nil
}
