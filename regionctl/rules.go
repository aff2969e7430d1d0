package regionctl

import (
	"slices"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/health"
)

// maxSharePercent is how much of a traffic class's capacity may be evacuated at once.
const maxSharePercent = 50

// classUse is what an order would leave of one traffic class.
type classUse struct {
	touched     bool
	all, left   cells.MilliRPS
	cells, free int
	evacuated   int
}

// sparesEnough applies the rules that need nothing but the orders and the topology: some usable cell of each class stays,
// which nothing overrides, and no more than maxSharePercent of a class's capacity goes at once, unless forced. One cell
// alone is never too much.
func (c *Controller) sparesEnough(o *orders, ids []cells.CellID, order cells.Evacuation) error {
	for class, u := range c.use(o, ids, order.Started) {
		if u.touched && u.free == 0 {
			return refused("last_cell", "", "%s would leave no usable cell for its traffic class", join(ids))
		}
		if u.touched && !order.Force && u.evacuated > 1 && (u.all-u.left)*100 > u.all*maxSharePercent {
			return refused("max_share", "--force", "evacuating %s would take %d%% of the capacity of class %s away at once, at most %d%%",
				join(ids), (u.all-u.left)*100/max(u.all, 1), class, maxSharePercent)
		}
	}
	return nil
}

// use counts, for each class, what is left when the ids go as well. A cell that is known to be down counts as capacity
// that was not evacuated, but not as usable.
func (c *Controller) use(o *orders, ids []cells.CellID, now time.Time) map[cells.Class]classUse {
	verdicts, uses := c.verdicts.get(), map[cells.Class]classUse{}
	for _, cell := range c.opt.Topology.Cells() {
		u := uses[cell.Class]
		u.cells++
		u.all += cell.Limit
		going := slices.Contains(ids, cell.ID)
		u.touched = u.touched || going
		switch {
		case going || o.all[cell.ID].Standing(now):
			u.evacuated++
		default:
			u.left += cell.Limit
			if verdicts[cell.ID] != health.Unhealthy {
				u.free++
			}
		}
		uses[cell.Class] = u
	}
	return uses
}
