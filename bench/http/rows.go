//go:build linux

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// ours is the candidate whose ratios to the others are wanted.
const ours = "cellgate"

// row is one line of the table: who is measured under which load.
type row struct {
	name, what string
	load       load
	candidates []candidate
	user       bool // count user time alone, and the difference to the candidate "bare"
	bound      map[string]bound
	unfilled   bool // the load can't saturate a core: utilisation is not asked for
	swap       bool // compare throughput and memory with the candidate "steady"
}

// candidate is one process under measurement and where it takes this row's load.
type candidate struct {
	name, process string
	port          int
}

// bound is what a ratio must and should be.
type bound struct{ must, aim float64 }

func rows() []row {
	three := func(nginx, haproxy, own int) []candidate {
		return []candidate{{"nginx", "nginx", nginx}, {"haproxy", "haproxy", haproxy}, {ours, "cellgate", own}}
	}
	return []row{
		{name: "plain", what: "HTTP/1.1, 64 connections, 1 KB", load: load{paths: spread, connections: 64},
			candidates: three(nginxPlain, haproxyPlain, ownPlain), bound: map[string]bound{"nginx": {1, .8}, "haproxy": {1, .8}}},
		{name: "tls", what: "TLS 1.3, HTTP/1.1, 64 connections, 1 KB", load: load{paths: spread, connections: 64, tls: true},
			candidates: three(nginxTLS, haproxyTLS, ownTLS), bound: map[string]bound{"nginx": {.95, .8}, "haproxy": {.95, .8}}},
		{name: "h2", what: "HTTP/2 over TLS, 16 connections × 8 streams, 1 KB, one token", load: load{paths: spread, connections: 16, streams: 8, tls: true},
			candidates: three(nginxH2, haproxyTLS, ownTLS), bound: map[string]bound{"nginx": {.8, .6}, "haproxy": {1.1, .85}}},
		{name: "handshake", what: "a full TLS 1.3 handshake and one request per connection", load: load{paths: spread, connections: 32, tls: true, once: true},
			candidates: three(nginxTLS, haproxyTLS, ownTLS), bound: map[string]bound{"nginx": {1, .9}}, unfilled: true},
		{name: "jwt", what: "10,000 rotating ES256 tokens and a limit", load: load{paths: spread, connections: 64, tokens: 10000},
			candidates: []candidate{{"haproxy", "haproxy", haproxyJWT}, {ours, "cellgate", ownPlain}}, bound: map[string]bound{"haproxy": {.20, .12}}},
		{name: "policy", what: "what routes, tokens, buckets, log and metrics add (user time)", load: load{paths: spread, connections: 64}, user: true,
			candidates: []candidate{{"bare", "bare", ownBare}, {ours, "cellgate", ownPlain}}},
		{name: "large", what: "HTTP/1.1, 64 connections, 100 KB", load: load{paths: large, connections: 64},
			candidates: three(nginxPlain, haproxyPlain, ownPlain), bound: map[string]bound{"nginx": {1.2, 1}}, unfilled: true},
		{name: "swap", what: "a snapshot of 100,000 routes with 1% changed shards every second", load: load{paths: spread, connections: 64}, swap: true,
			candidates: []candidate{{"steady", "steady", ownSteady}, {ours, "swapping", ownSwapping}}},
	}
}

// besides is the row with the other build as well, whose ports lie so far behind those of ours.
func (r row) besides(ports int) row {
	for _, c := range r.candidates {
		if c.process == "cellgate" && r.bound != nil {
			r.candidates = append(r.candidates, candidate{"other", "other", c.port + ports})
			r.bound = maps.Clone(r.bound)
			r.bound["other"] = bound{1, 1}
		}
	}
	return r
}

// sample is one candidate's part of one round.
type sample struct {
	cost     float64 // µs of CPU per request
	rate     float64 // requests per second
	busy     float64 // share of its core
	wanted   float64 // share of the time that its busiest thread ran or was ready to
	memory   float64 // MB resident afterwards
	p50, p99 time.Duration
	void     string // why it doesn't count; empty = it does
}

type result struct {
	row    row
	rounds []map[string]sample
}

func measure(s *stage, r row, o options) (*result, error) {
	res := &result{row: r}
	for _, c := range r.candidates { // connections, caches: what a process has after its first seconds
		if _, err := r.load.drive(s, c.port, o.length); err != nil {
			return nil, fmt.Errorf("row %s, %s: %w", r.name, c.name, err)
		}
	}
	for round := range o.rounds {
		samples := map[string]sample{}
		for i := range r.candidates {
			c := r.candidates[(i+round)%len(r.candidates)] // nobody is always first
			one, err := s.sample(r, c, o)
			if err != nil {
				return nil, fmt.Errorf("row %s, %s: %w", r.name, c.name, err)
			}
			samples[c.name] = one
			fmt.Printf("  %-9s round %d  %-9s %7.2f µs %8.0f req/s  busy %.2f wanted %.2f  p50 %v p99 %v  %s\n", r.name, round+1, c.name, one.cost, one.rate, one.busy, one.wanted, one.p50, one.p99, one.void)
		}
		res.rounds = append(res.rounds, samples)
	}
	return res, nil
}

// valid are the values of one candidate's rounds that count.
func (r *result) valid(name string, value func(sample) float64) []float64 {
	var vs []float64
	for _, round := range r.rounds {
		if s := round[name]; s.void == "" {
			vs = append(vs, value(s))
		}
	}
	return vs
}

// against is the median, over rounds in which both count, of how we compare with the peer.
func (r *result) against(peer string, compare func(own, peer sample) float64) (median float64, rounds int) {
	var vs []float64
	for _, round := range r.rounds {
		own, other := round[ours], round[peer]
		if own.void == "" && other.void == "" {
			vs = append(vs, compare(own, other))
		}
	}
	return medianOf(vs), len(vs)
}

func medianOf(vs []float64) float64 {
	if len(vs) == 0 {
		return 0
	}
	slices.Sort(vs)
	return (vs[(len(vs)-1)/2] + vs[len(vs)/2]) / 2
}

func (r *result) print(w io.Writer) {
	fmt.Fprintf(w, "%s: %s\n", r.row.name, r.row.what)
	for _, c := range r.row.candidates {
		cost := r.valid(c.name, func(s sample) float64 { return s.cost })
		p50 := time.Duration(medianOf(r.valid(c.name, func(s sample) float64 { return float64(s.p50) })))
		p99 := time.Duration(medianOf(r.valid(c.name, func(s sample) float64 { return float64(s.p99) })))
		fmt.Fprintf(w, "  %-9s %7.2f µs   p50 %v  p99 %v   (%d of %d rounds)\n", c.name, medianOf(cost), p50, p99, len(cost), len(r.rounds))
	}
	for _, f := range r.figures() {
		fmt.Fprintln(w, " ", f)
	}
	fmt.Fprintln(w)
}

// figure is one line of what is promised, and what it came to.
type figure struct {
	row, what string
	value     float64
	rounds    int
	bound     bound
	least     bool // the bounds are from below
}

// String is a line of the table: the figure, and whether it is what it must and should be.
func (f figure) String() string {
	sign := "≤"
	if f.least {
		sign = "≥"
	}
	return fmt.Sprintf("%-10s %-20s %5.2f   must %s %.2f %-12s aim %s %.2f %-12s (%d rounds)", f.row, f.what, f.value, sign, f.bound.must, f.mark(f.bound.must), sign, f.bound.aim, f.mark(f.bound.aim), f.rounds)
}

func (f figure) mark(bound float64) string {
	switch {
	case f.rounds == 0:
		return "not measured"
	case f.least && f.value >= bound, !f.least && f.value <= bound:
		return "met"
	}
	return "missed"
}

// figures are what the row promises.
func (r *result) figures() (all []figure) {
	add := func(peer, what string, b bound, least bool, compare func(own, other sample) float64) {
		value, n := r.against(peer, compare)
		all = append(all, figure{r.row.name, what, value, n, b, least})
	}
	switch {
	case r.row.user:
		add("bare", "adds, µs", bound{2, 1}, false, func(own, bare sample) float64 { return own.cost - bare.cost })
	case r.row.swap:
		add("steady", "throughput", bound{.95, 1}, true, func(own, other sample) float64 { return own.rate / other.rate })
		add("steady", "memory", bound{1.3, 1.3}, false, func(own, other sample) float64 { return own.memory / other.memory })
	}
	for _, peer := range slices.SortedFunc(maps.Keys(r.row.bound), cmp.Compare) {
		add(peer, ours+" ÷ "+peer, r.row.bound[peer], false, func(own, other sample) float64 { return own.cost / other.cost })
	}
	return all
}
