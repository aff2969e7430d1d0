package peer

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/tail"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/reason"
)

// Forwarder is a node's part in forwarding between cells: where to, while its own cell is evacuated, and whether there is
// room, while others are. Until Update it forwards nothing and takes everything.
type Forwarder struct {
	opt   ForwarderOptions
	route atomic.Pointer[routes] // nil = everything is served here
	limit atomic.Int64           // of the node, in milli-requests per second; 0 = unknown
	load  atomic.Int64           // in thousandths of limit

	mu    sync.Mutex
	pools map[cells.CellID]*destination

	handed, stayed, taken, refused atomic.Uint64
}

// ForwarderOptions are what a Forwarder needs; all are required.
type ForwarderOptions struct {
	ID cells.NodeID
	// TLS connects to proxies of the cell and to no other.
	TLS func(cell cells.CellID) *tls.Config
	// Finished counts the exchanges of the node so far.
	Finished func() uint64
}

// destination is the pool to one cell.
type destination struct {
	*upstream.Pool
	endpoints []string
}

// routes is one plan with the pools of the cells that it names. It is immutable.
type routes struct {
	table *tail.Table
	pools map[cells.CellID]*destination
}

var (
	_ proxy.Tail           = (*Forwarder)(nil)
	_ proxy.Recorder       = (*Forwarder)(nil)
	_ prometheus.Collector = (*Forwarder)(nil)
)

// NewForwarder makes one that knows nothing yet.
func NewForwarder(opt ForwarderOptions) *Forwarder {
	return &Forwarder{opt: opt, pools: map[cells.CellID]*destination{}}
}

// Update takes the newest topology, and the plan by which an evacuated cell forwards; nil = it does not. On an error
// nothing is forwarded.
func (f *Forwarder) Update(topology *cells.Topology, plan *steer.Plan) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	own := f.opt.ID.Cell()
	if c, ok := topology.Cell(own); ok {
		f.limit.Store(int64(c.Limit) / int64(max(len(c.Nodes), 1)))
	}
	var next *routes
	var err error
	if plan != nil {
		next, err = f.compile(topology, plan, own)
	}
	f.route.Store(next)
	f.retire(next)
	return err
}

func (f *Forwarder) compile(topology *cells.Topology, plan *steer.Plan, own cells.CellID) (*routes, error) {
	table, err := tail.New(plan, own)
	if err != nil || table == nil {
		return nil, err
	}
	next := &routes{table, map[cells.CellID]*destination{}}
	for _, c := range plan.Cells {
		known, _ := topology.Cell(c.ID)
		var at []string
		for _, n := range known.Nodes {
			if n.Peer.IsValid() {
				at = append(at, n.Peer.String())
			}
		}
		if len(at) == 0 || c.ID == own {
			continue
		}
		if next.pools[c.ID], err = f.destination(c.ID, at); err != nil {
			return nil, err
		}
	}
	return next, nil
}

// destination keeps the pool of a cell whose endpoints are the same as before.
func (f *Forwarder) destination(id cells.CellID, at []string) (*destination, error) {
	if d := f.pools[id]; d != nil && slices.Equal(d.endpoints, at) {
		return d, nil
	}
	p, err := upstream.NewPeers("peer:"+string(id), at, f.opt.TLS(id))
	if err != nil {
		return nil, fmt.Errorf("peer: cell %s: %w", id, err)
	}
	return &destination{p, at}, nil
}

// retire keeps the pools of next and lets go of the others.
func (f *Forwarder) retire(next *routes) {
	kept := map[cells.CellID]*destination{}
	if next != nil {
		kept = next.pools
	}
	for id, d := range f.pools {
		if kept[id] != d {
			d.Retire()
		}
	}
	f.pools = kept
}

// Pool implements proxy.Tail.
func (f *Forwarder) Pool(host string, client netip.Addr) *upstream.Pool {
	r := f.route.Load()
	if r == nil {
		return nil
	}
	id, ok := r.table.Cell(host, client)
	if !ok {
		return nil
	}
	d := r.pools[id]
	if d == nil {
		return nil
	}
	return d.Pool
}

// Room implements proxy.Tail.
func (f *Forwarder) Room(p cells.Priority) bool { return tail.Room(f.load.Load(), p) }

// Forwarding says whether the node hands requests on now.
func (f *Forwarder) Forwarding() bool { return f.route.Load() != nil }

// Run measures the load and sweeps pools until ctx ends.
func (f *Forwarder) Run(ctx context.Context) error {
	tick := time.NewTicker(loadEvery)
	defer tick.Stop()
	last, begin, rate := f.executed(), time.Now(), 0.0
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			f.mu.Lock()
			defer f.mu.Unlock()
			f.route.Store(nil)
			f.retire(nil)
			return nil
		case now := <-tick.C:
			count := f.executed()
			rate += (float64(int64(count-last))/now.Sub(begin).Seconds() - rate) / 2
			last, begin = count, now
			f.measured(rate)
			if n%20 == 0 {
				f.sweep(now)
			}
		}
	}
}

// executed counts what the node has done itself. Requests that it refused are no load: counted, they would keep it full.
func (f *Forwarder) executed() uint64 {
	gone := f.handed.Load() + f.refused.Load()
	return f.opt.Finished() - gone
}

const loadEvery = 250 * time.Millisecond // half of the load's memory

func (f *Forwarder) measured(rate float64) {
	load := int64(0)
	if limit := f.limit.Load(); limit > 0 {
		load = int64(rate * 1e6 / float64(limit))
	}
	f.load.Store(load)
}

func (f *Forwarder) sweep(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.pools {
		d.Sweep(now)
	}
}

// Record implements proxy.Recorder.
func (f *Forwarder) Record(r *proxy.Record) {
	switch {
	case r.Handed:
		f.handed.Add(1)
	case r.Stayed:
		f.stayed.Add(1)
	case r.Via != "" && r.Reason == reason.ForwardRefused:
		f.refused.Add(1)
	case r.Via != "":
		f.taken.Add(1)
	}
}

// Describe implements prometheus.Collector.
func (f *Forwarder) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(f, ch) }

// Collect implements prometheus.Collector.
func (f *Forwarder) Collect(ch chan<- prometheus.Metric) {
	sent := prometheus.NewDesc("cellgate_proxy_forwarded_total", "Requests that came to the evacuated cell, by what became of them: handed to another cell, or kept because none could be had.", []string{"outcome"}, nil)
	got := prometheus.NewDesc("cellgate_proxy_forwards_received_total", "Requests that proxies of evacuated cells handed on to here, by what became of them.", []string{"outcome"}, nil)
	for _, c := range []struct {
		desc    *prometheus.Desc
		value   *atomic.Uint64
		outcome string
	}{{sent, &f.handed, "handed"}, {sent, &f.stayed, "kept"}, {got, &f.taken, "served"}, {got, &f.refused, "refused"}} {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(c.value.Load()), c.outcome)
	}
	on := 0.0
	if f.Forwarding() {
		on = 1
	}
	ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("cellgate_proxy_forwarding", "1 while requests are handed to other cells.", nil, nil), prometheus.GaugeValue, on)
	ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("cellgate_proxy_load_ratio", "Requests per second over the node's share of its cell's limit.", nil, nil), prometheus.GaugeValue, float64(f.load.Load())/1000)
}
