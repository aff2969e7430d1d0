package proxy

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/cellgate/cellgate/proxy/meter"
	"github.com/cellgate/cellgate/proxy/path"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/report"
)

// change is what the node's reports say of its last swap to other contents. The zero value: there was none.
type change struct {
	mu      sync.Mutex
	version uint64
	before  map[string]uint64 // requests of the changed routes until the swap
	lost    []string
}

// swap compares two programs by what the node was asked for under the old one.
func (c *change) swap(old, now *program.Program, asked map[string]uint64, witnesses []meter.Witness) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old == nil || old.Checksum == now.Checksum {
		if c.version != 0 {
			c.version = now.Number
		}
		return
	}
	d := program.Compare(old, now)
	c.version, c.before, c.lost = now.Number, map[string]uint64{}, lost(old, now, d, witnesses)
	ids := slices.SortedFunc(maps.Keys(d.Changed), func(a, b string) int {
		return cmp.Or(cmp.Compare(asked[b], asked[a]), cmp.Compare(a, b))
	})
	for _, id := range ids[:min(len(ids), report.MaxChanged)] {
		if asked[id] > 0 {
			c.before[id] = asked[id]
		}
	}
}

// lost are the routes of which the new program refuses a request that the old one has a route for. A route that is gone by
// name is not among them: its author said so.
func lost(old, now *program.Program, d program.Difference, witnesses []meter.Witness) (ids []string) {
	for _, w := range witnesses {
		req := program.Request{Host: w.Host, Method: w.Method, Path: path.Clean(w.Path)}
		var m program.Match
		if old.Lookup(&req, &m) != reason.None || m.Route.ID != w.Route || d.Removed[w.Route] {
			continue // headers or the query have decided, which a witness doesn't have
		}
		if now.Lookup(&req, &m) != reason.None && len(ids) < report.MaxChanged {
			ids = append(ids, w.Route)
		}
	}
	slices.Sort(ids)
	return ids
}

// observe tells it, with the requests of each route so far. Counts that went back, because a series made room, are none.
func (c *change) observe(asked func() map[string]uint64, refused map[string]uint64) *report.Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.version == 0 {
		return nil
	}
	out := &report.Change{Version: c.version, Refused: refused, Lost: c.lost}
	if len(c.before) > 0 {
		out.Asked = map[string]uint64{}
		total := asked()
		for id, was := range c.before {
			out.Asked[id] = total[id] - min(was, total[id])
		}
	}
	return out
}
