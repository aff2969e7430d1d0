// Package tail decides where a request goes that still comes to an evacuated cell: to the owner of its client's slot in
// the published plan, which is where DNS sends the client by now, and where the plan has charged it.
package tail

import (
	"fmt"
	"net/netip"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/answer"
	"github.com/cellgate/cellgate/globalrouter/locate"
	"github.com/cellgate/cellgate/globalrouter/steer"
)

// Table is one plan, compiled for one cell. It is immutable.
type Table struct {
	plan   *steer.Plan
	locate *locate.Table
}

// New compiles the plan. It gives nil while the plan names the cell anywhere, or names cells only because all are down:
// before the plan that drops the cell is published, forwarding would follow weights that charged nobody for it.
// The plan must be valid.
func New(plan *steer.Plan, own cells.CellID) (*Table, error) {
	if plan.AllDown || names(plan, own) {
		return nil, nil
	}
	var entries []locate.Entry
	for i, l := range plan.Localities {
		for _, p := range l.Prefixes {
			entries = append(entries, locate.Entry{Prefix: p, Locality: uint16(i)})
		}
	}
	l, err := locate.Build(entries)
	if err != nil {
		return nil, fmt.Errorf("tail: %w", err)
	}
	return &Table{plan, l}, nil
}

func names(plan *steer.Plan, own cells.CellID) bool {
	for i := range plan.Cells {
		if plan.Cells[i].ID != own {
			continue
		}
		for _, rows := range plan.Rows {
			for _, row := range rows {
				for _, c := range row {
					if int(c) == i {
						return true
					}
				}
			}
		}
	}
	return false
}

// Cell is the cell that a client of the host belongs to now; ok is false for a host that the plan doesn't steer.
// It doesn't allocate.
func (t *Table) Cell(host string, client netip.Addr) (cell cells.CellID, ok bool) {
	set, ok := t.plan.Names[host]
	if !ok {
		return "", false
	}
	locality, _ := t.locate.Lookup(client)
	if int(locality) >= len(t.plan.Localities) {
		locality = 0
	}
	return t.plan.Cells[t.plan.Rows[set][locality][answer.Slot(t.plan.Sets[set], client)]].ID, true
}

// The load, in thousandths of a node's limit, from which requests of an evacuated cell find no room any more. The node's
// own clients have the rest.
const (
	roomBackground = 800
	roomNormal     = 850
	roomCritical   = 950
)

// Room says whether a node under this load, in thousandths of its limit, takes one more request from elsewhere.
func Room(load int64, p cells.Priority) bool {
	switch p {
	case cells.PriorityCritical:
		return load < roomCritical
	case cells.PriorityBackground:
		return load < roomBackground
	}
	return load < roomNormal
}
