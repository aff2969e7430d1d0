package proxy

import (
	"sync"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/proxy/quota"
)

// fleet is how many nodes keep limits together, as targets and topology say.
type fleet struct {
	mu   sync.Mutex
	size quota.Fleet
}

// tellFleet changes what is known of the fleet and tells the leases.
func (n *worldNode) tellFleet(change func(*quota.Fleet)) {
	n.fleet.mu.Lock()
	defer n.fleet.mu.Unlock()
	change(&n.fleet.size)
	n.limits.Leases().SetFleet(n.fleet.size)
}

// steer hands topology and plan to those who need them.
func (n *worldNode) steer(t *cells.Topology, plan *steer.Plan) error {
	if t != nil {
		n.tellFleet(func(f *quota.Fleet) {
			f.World, f.Region = 0, 0
			for _, c := range t.Cells() {
				f.World += len(c.Nodes)
				if c.ID.Region() == n.boot.ID.Region() {
					f.Region += len(c.Nodes)
				}
			}
		})
	}
	return n.tail.Update(t, plan)
}
