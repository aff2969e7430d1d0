// Package rollout simulates rollouts of good and of bad versions and puts them before the real judge: how often it blames a
// good one, how soon it finds a bad one. The world is one cell with a canary; its nodes speak in reports, as proxies do.
//
//	results := rollout.Run(rollout.Good(), 1000, 1)     // 1,000 seeded rollouts
//	fmt.Print(rollout.Summarize(rollout.Good(), results))
package rollout

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/report"
)

// The world: two minutes before the swap and two after it, in windows of 2 s.
const (
	nNodes    = 16 // node 0 is the canary
	nServices = 12
	window    = 2 * time.Second
	before    = 60
	after     = 60
	rps       = 200 // per node
)

// Causes of the counted failures.
const (
	gateway = iota
	upstream
	auth
	noRoute
	rejects
	missing
	nCauses
)

// world is one seeded rollout.
type world struct {
	r     *rand.Rand
	fault Fault
	Kinds
	level, trend float64 // requests per second and node, and by how much of it they grow over the bake
	latency      *latency

	mix              [nNodes][nServices]float64
	base             [nCauses][nServices]float64
	nodeErr, nodeLat [nNodes]float64
	cpuOff, cpuNoise [nNodes]float64
	memOff           [nNodes]float64
	svcErr, svcLat   [nServices]float64 // common to all nodes, slowly changing
	incident         incident
	hammer           hammer
	seq, seed        uint64
}

// Kinds are the ways in which a good rollout may look bad.
type Kinds struct {
	Incident bool // an upstream fails for everybody
	Hammer   bool // one client sends a bad token to the canary over and over
	Noisy    bool // the canary was always one of the noisy nodes
	Cold     bool // the canary has to make its connections anew
	Skewed   bool // the nodes' shares of the services differ strongly
}

// names are those of the kinds that it is: calm if none of them.
func (k Kinds) names() (out []string) {
	for _, one := range []struct {
		name string
		is   bool
	}{{"incident for all", k.Incident}, {"hammering client", k.Hammer}, {"noisy canary", k.Noisy}, {"quiet canary", !k.Noisy},
		{"cold canary", k.Cold}, {"skewed mix", k.Skewed}, {"calm", k == Kinds{}}} {
		if one.is {
			out = append(out, one.name)
		}
	}
	return out
}

type incident struct {
	service, from, to int
	rate              float64
	node              [nNodes]float64
}

type hammer struct {
	on             bool
	node, from, to int
	rate           float64 // per second
}

func newWorld(seed uint64, f Fault, l *latency) *world {
	r := rand.New(rand.NewPCG(seed, 99))
	w := &world{r: r, fault: f, latency: l, level: rps, seed: seed}
	if f.Load > 0 {
		w.level *= f.Load
	}
	w.Skewed = r.Float64() < .5
	w.services()
	for i := range nNodes {
		w.node(i)
	}
	w.troubles()
	w.Cold = r.Float64() < .5
	w.trend = .2 * (2*r.Float64() - 1)
	return w
}

func (w *world) services() {
	for s := range nServices {
		w.base[gateway][s] = .0005
		w.base[upstream][s] = math.Min(.05, math.Exp(math.Log(.004)+.9*w.r.NormFloat64()))
		w.base[auth][s] = math.Exp(math.Log(.01) + .7*w.r.NormFloat64())
		w.base[noRoute][s], w.base[rejects][s] = .004, .008
		w.base[missing][s] = math.Min(.2, math.Exp(math.Log(.01)+w.r.NormFloat64()))
	}
}

// node draws one node: its mix of services (Zipf, more or less alike), its persistent peculiarities.
func (w *world) node(i int) {
	alike, total := 30.0, 0.0
	if w.Skewed {
		alike = 2
	}
	for s := range nServices {
		w.mix[i][s] = gamma(w.r, alike) / float64(s+1)
		total += w.mix[i][s]
	}
	for s := range w.mix[i] {
		w.mix[i][s] /= total
	}
	sd := .12
	if w.r.Float64() < .1 {
		sd = .5
		w.Noisy = w.Noisy || i == 0
	}
	w.nodeErr[i] = math.Exp(sd * w.r.NormFloat64())
	w.nodeLat[i] = .04 * w.r.NormFloat64()
	w.cpuOff[i], w.memOff[i] = .1*w.r.NormFloat64(), .1*w.r.NormFloat64()
}

func (w *world) troubles() {
	if w.Incident = w.r.Float64() < .2; w.Incident {
		from := w.r.IntN(after - 10)
		w.incident = incident{service: w.r.IntN(nServices), from: from, to: from + 5 + w.r.IntN(25), rate: .2 + .8*w.r.Float64()}
		for i := range w.incident.node {
			w.incident.node[i] = math.Min(1/w.incident.rate, math.Exp(.2*w.r.NormFloat64()))
		}
	}
	if w.hammer.on = w.r.Float64() < .1; w.hammer.on {
		if w.r.IntN(2) == 0 {
			w.hammer.node = 1 + w.r.IntN(nNodes-1)
		}
		w.Hammer = w.hammer.node == 0
		w.hammer.from = w.r.IntN(after - 5)
		w.hammer.to = w.hammer.from + 5 + w.r.IntN(40)
		w.hammer.rate = 2 + 18*w.r.Float64()
	}
}

func (w *world) failing(s, t int) bool {
	return w.Incident && s == w.incident.service && t >= w.incident.from && t < w.incident.to
}

// step gives every node's report of window t; t < 0 is before the swap.
func (w *world) step(t int) []report.Node {
	w.seq++
	for s := range nServices {
		w.svcErr[s] = .9*w.svcErr[s] + .15*w.r.NormFloat64()
		w.svcLat[s] = .9*w.svcLat[s] + .04*w.r.NormFloat64()
	}
	out := make([]report.Node, nNodes)
	for i := range out {
		out[i] = w.report(i, t)
	}
	return out
}

// now is one node's circumstances in one window.
type now struct {
	canary, on bool // on: it is the canary, and the fault has begun
	t          int
	errors     [nCauses]float64
	pause      float64 // share of requests that a garbage collection holds up
	cold       float64 // share of requests that need a new connection
}

func (w *world) report(i, t int) report.Node {
	r, f := w.r, &w.fault
	n := now{t: t, canary: i == 0, on: i == 0 && t >= f.Start}
	level := w.level * window.Seconds() * (1 + w.trend*float64(t)/after) * gamma(r, 60)
	if n.on && f.Traffic > 0 {
		level *= f.Traffic
	}
	for c := range n.errors {
		n.errors[c] = gamma(r, 10) * w.nodeErr[i]
	}
	if r.Float64() < .02 {
		n.pause = .05 + .1*r.Float64()
	}
	if n.canary && w.Cold && t >= 0 {
		n.cold = .25 * math.Exp(-float64(t)*window.Seconds()/5)
	}
	if n.on {
		n.cold = math.Max(n.cold, f.Cold)
	}
	id := cells.NodeID(fmt.Sprintf("eu/a/%d", i))
	out := report.Node{Form: report.Form, ID: id, Boot: "1", Seq: w.seq, Window: window, Ready: true}
	for s := range nServices {
		service, host := w.stratum(i, s, level, &n)
		w.extra(i, s, &n, &service, &host)
		if host.Requests == 0 {
			continue
		}
		out.Services, out.Hosts = append(out.Services, service), append(out.Hosts, host)
		out.Counts.Add(service.Counts)
		out.Counts.Requests += host.Requests - service.Requests
		out.Counts.NoRoute += host.NoRoute
	}
	w.gauges(i, &n, &out)
	return out
}

// stratum draws a service's requests and what they come to. Each service has its own host.
func (w *world) stratum(i, s int, level float64, n *now) (service, host report.Stratum) {
	requests := poisson(w.r, level*w.mix[i][s])
	var k [nCauses]uint64
	for c := range nCauses {
		p := w.rate(c, i, s, n)
		if c <= upstream && w.r.Float64() < .25 { // clustered: a lost connection fails about four requests at once
			k[c] = min(4*poisson(w.r, float64(requests)*p/4), requests)
		} else {
			k[c] = min(poisson(w.r, float64(requests)*p), requests)
		}
	}
	name := fmt.Sprintf("s%02d", s)
	service = report.Stratum{ID: name, Counts: report.Counts{Requests: requests, Gateway: k[gateway], Upstream: k[upstream], Auth: k[auth], Limited: k[rejects], Missing: k[missing]}}
	host = report.Stratum{ID: name + ".example", Counts: report.Counts{Requests: requests, NoRoute: k[noRoute], Missing: k[missing]}}
	service.Warm, service.Cold = w.latencies(i, s, requests, n)
	return service, host
}

// rate is the probability of a failure.
func (w *world) rate(c, i, s int, n *now) float64 {
	f := &w.fault
	p := w.base[c][s] * n.errors[c]
	switch c {
	case gateway:
		p += n.cold * .004
		if n.on {
			p += f.Gateway
		}
	case upstream:
		p *= math.Exp(w.svcErr[s])
		if w.failing(s, n.t) {
			p += w.incident.rate * w.incident.node[i] * math.Exp(.1*w.r.NormFloat64())
		}
		if n.on && (f.Only == 0 || f.Only == s) {
			p += f.Upstream
		}
	case missing:
		if n.on && (f.Only == 0 || f.Only == s) {
			p += f.Missing
		}
	case auth:
		if n.on && f.Auth > 0 {
			p *= f.Auth
		}
	}
	return p
}

// extra adds the one hammering client, and the requests whose route is gone.
func (w *world) extra(i, s int, n *now, service, host *report.Stratum) {
	h := &w.hammer
	if h.on && i == h.node && s == 0 && n.t >= h.from && n.t < h.to {
		k := report.Counts{Requests: poisson(w.r, h.rate*window.Seconds())}
		k.Auth = k.Requests
		service.Counts.Add(k)
		host.Requests += k.Requests
		service.Heavy = &k
	}
	if n.on && w.fault.NoRoute > 0 && s == nServices-1 {
		k := poisson(w.r, w.fault.NoRoute*window.Seconds())
		host.Requests += k
		host.NoRoute += k
	}
}

func (w *world) gauges(i int, n *now, out *report.Node) {
	w.cpuNoise[i] = .8*w.cpuNoise[i] + .04*w.r.NormFloat64()
	cpu, mem := w.cpuOff[i]+w.cpuNoise[i], w.memOff[i]+.01*w.r.NormFloat64()
	if n.canary && n.t >= 0 && n.t < 15 {
		mem += .25 // two tables in memory until the old one is collected
	}
	if n.on {
		cpu += math.Log(1 + w.fault.CPU)
		mem += w.fault.Leak * float64(n.t-w.fault.Start) * window.Minutes()
	}
	out.CPU = time.Duration(float64(out.Counts.Requests) * math.Exp(cpu) * float64(50*time.Microsecond))
	out.RSS = int64(math.Exp(mem) * (100 << 20))
}
