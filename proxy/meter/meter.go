// Package meter counts what a node's exchanges come to: for Prometheus by tenant and route, and for the node's report by
// window. Recording takes no lock that is contended and doesn't allocate.
//
//	m := meter.New()                     // a proxy.Recorder
//	registry.MustRegister(m)             // a prometheus.Collector
//	window := m.Window(now)              // counts since the last call, for report.Node
//
// At the bound: maxRoutes pairs of tenant and route, maxCallers consumers and maxTargets upstreams have series of their own;
// newcomers are counted under "other" until one that has been idle for an hour makes room. Strata of the report: see maxStrata.
package meter

import (
	"hash/maphash"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/record"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/report"
)

// Bounds of the series of one node (K1), whose sum over everything that a node counts is tested where all of it meets. With 27
// codes, two histograms of 17 and 6 others a route has 67 at most, an upstream has 27.
const (
	maxRoutes  = 400
	maxCallers = 400
	maxTargets = 250
	idle       = time.Hour
	other      = "other"
)

// codes have series of their own; the rest is counted under its class, such as "4xx".
func codes() []int {
	return []int{200, 201, 202, 204, 206, 301, 302, 304, 400, 401, 403, 404, 405, 408, 409, 413, 429, 499, 500, 502, 503, 504}
}

// bounds are the upper bounds of the latency histograms, inclusive.
func bounds() []time.Duration {
	us, ms := time.Microsecond, time.Millisecond
	return []time.Duration{100 * us, 250 * us, 500 * us, ms, 2500 * us, 5 * ms, 10 * ms, 25 * ms, 50 * ms, 100 * ms, 250 * ms, 500 * ms, time.Second, 5 * time.Second}
}

const (
	nCodes  = 22 + 5 // those with a series, then 1xx … 5xx
	nBounds = 14 + 1
)

// Meter implements proxy.Recorder.
type Meter struct {
	code   [600]uint8
	bounds []time.Duration
	routes *table
	called *table
	sent   *table
	mask   uint32
	shards []shard

	seed     maphash.Seed
	services kind
	hosts    kind
	expired  time.Time // written by: Window
	seen     [maxRoutes + 1]atomic.Pointer[Witness]
}

var _ proxy.Recorder = (*Meter)(nil)

type pair struct{ tenant, name string }

// shard is one part of the counters; an exchange picks one at random, so that its lock is hardly ever waited for.
// Written by: whoever holds mu. The padding keeps neighbours off its cache lines.
type shard struct {
	mu      sync.Mutex
	series  [maxRoutes + 1]*series // by number of the pair; 0 is other
	reasons [64]uint64
	known   uint64 // exchanges of authenticated callers
	limited [maxCallers + 1]uint64
	targets [maxTargets + 1]*target // by number of the upstream; 0 is other
	parts   [record.Parts]histogram
	checks  checks
	wires   [nWires][2]uint64 // exchanges by protocol, plain and over TLS
	window  Window
	latency [report.SketchBuckets]uint32
	added   [report.SketchBuckets]uint32
	// Strata by their number; 0 is report.Other.
	services [maxStrata + 1]*stratum
	hosts    [maxStrata + 1]*stratum
	_        [64]byte
}

// series are the counters of one tenant's route.
type series struct {
	codes             [nCodes]uint64
	latency, own      histogram // own: the gateway's part of it
	in, out           uint64
	retries           uint64
	truncated         uint64
	gateway, upstream uint64 // failures, by whose
}

// Window is what happened since the last one.
type Window struct {
	Counts  report.Counts
	Latency report.Sketch
	Added   report.Sketch
	// Services and Hosts are the parts of the traffic, at most toldStrata each.
	Services, Hosts []report.Stratum
}

// New makes a meter with a few shards per core.
func New() *Meter {
	n := uint32(1)
	for int(n) < 4*runtime.GOMAXPROCS(0) && n < 64 {
		n *= 2
	}
	m := &Meter{bounds: bounds(), routes: newTable(maxRoutes), called: newTable(maxCallers), sent: newTable(maxTargets), mask: n - 1, shards: make([]shard, n),
		seed: maphash.MakeSeed(), services: kind{ids: newTable(maxStrata)}, hosts: kind{ids: newTable(maxStrata)}}
	for status := range m.code {
		m.code[status] = uint8(len(codes()) + min(max(status/100, 1), 5) - 1)
	}
	for i, c := range codes() {
		m.code[c] = uint8(i)
	}
	return m
}

// Record implements proxy.Recorder. The node's answers to readiness probes are nobody's requests.
func (m *Meter) Record(r *proxy.Record) {
	if r.Route == "" && r.Path == proxy.ReadyPath {
		return
	}
	if r.Handed || r.Reason == reason.ForwardRefused {
		m.passed(r)
		return // the cell that served it counts it
	}
	route := m.routes.number(pair{r.Tenant, r.Route}, r.Start)
	caller := 0
	if limited(r.Reason) {
		caller = m.called.number(pair{r.Tenant, r.Consumer}, r.Start)
	}
	sent := -1
	if len(r.Tries) > 0 {
		sent = m.sent.number(pair{"", r.UpstreamID}, r.Start)
	}
	service, host := m.strataOf(r)
	var what report.Counts
	tally(&what, r)
	m.witness(route, r)
	s := &m.shards[rand.Uint32()&m.mask]
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.series[route]
	if one == nil {
		one = &series{}
		s.series[route] = one
	}
	m.count(one, r)
	if sent >= 0 {
		s.tries(sent, m, r)
	}
	s.judged(r)
	s.reasons[min(int(r.Reason), len(s.reasons)-1)]++
	if limited(r.Reason) {
		s.limited[caller]++
	}
	if r.User != "" || r.Consumer != "" {
		s.known++
	}
	s.window.Counts.Add(what)
	s.stratify(m, service, host, &what, r)
	s.latency[report.Bucket(r.Total)]++
	s.added[report.Bucket(r.Total-r.Upstream)]++
}

// passed counts a request that another cell served.
func (m *Meter) passed(r *proxy.Record) {
	s := &m.shards[rand.Uint32()&m.mask]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reasons[min(int(r.Reason), len(s.reasons)-1)]++
}

func (m *Meter) count(s *series, r *proxy.Record) {
	s.codes[m.code[min(max(r.Status, 0), len(m.code)-1)]]++
	s.latency.count(m.bounds, r.Total)
	s.own.count(m.bounds, max(r.Total-r.Upstream, 0))
	s.in += uint64(max(r.BytesIn, 0))
	s.out += uint64(max(r.BytesOut, 0))
	s.retries += uint64(max(retried(r.Tries), 0))
	if r.Truncated {
		s.truncated++
	}
	switch why := r.Reason; {
	case r.Status < 500, why == reason.DeadlineExpired, why == reason.RouteDenied: // the client's and the operator's doing
	case why != reason.None && why.Gateway():
		s.gateway++
	default:
		s.upstream++
	}
}

// retried is how many attempts followed the first, hedges apart.
func retried(tries []record.Attempt) (n int) {
	for i := range tries {
		if !tries[i].Hedge {
			n++
		}
	}
	return n - 1
}

func limited(why reason.Reason) bool {
	return why == reason.RateTenant || why == reason.RateConsumer || why == reason.RateUser || why == reason.QuotaConsumer
}

// tally sorts an exchange by whose failure it was. The client's own mistakes are nobody's failure.
func tally(c *report.Counts, r *proxy.Record) {
	c.Requests++
	switch why := r.Reason; {
	case limited(why):
		c.Limited++
	case why == reason.Overloaded:
		c.Shed++
	case why == reason.NoRoute || why == reason.MethodNotAllowed:
		c.NoRoute++
	case why >= reason.TokenMissing && why <= reason.ConsumerRefused:
		c.Auth++
	case why == reason.None && (r.Status == 404 || r.Status == 405 || r.Status == 410):
		c.Missing++
	case why == reason.DeadlineExpired || why == reason.RouteDenied || r.Status < 500:
	case why.Gateway():
		c.Gateway++
	default:
		c.Upstream++
	}
}

// Window gives the counts since the last call and begins a new one. It has one caller.
func (m *Meter) Window(now time.Time) Window {
	var w Window
	services, hosts := sums{clients: map[clientOf]report.Counts{}}, sums{clients: map[clientOf]report.Counts{}}
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		w.Counts.Add(s.window.Counts)
		for b := range s.latency {
			w.Latency.Add(b, s.latency[b])
			w.Added.Add(b, s.added[b])
		}
		s.window = Window{}
		clear(s.latency[:])
		clear(s.added[:])
		services.take(&s.services)
		hosts.take(&s.hosts)
		s.mu.Unlock()
	}
	w.Services, w.Hosts = m.services.told(&services), m.hosts.told(&hosts)
	m.watch(services.watched(), hosts.watched())
	if now.Sub(m.expired) > time.Minute {
		m.expired = now
		m.expire(now.Add(-idle))
	}
	return w
}

// watch lets every shard count these clients, each of which has had some of their connections.
func (m *Meter) watch(services, hosts map[int][]uint64) {
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		for n, clients := range services {
			at(&s.services, n).heavy.watch(clients)
		}
		for n, clients := range hosts {
			at(&s.hosts, n).heavy.watch(clients)
		}
		s.mu.Unlock()
	}
}
