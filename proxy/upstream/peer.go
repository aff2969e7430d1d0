package upstream

import (
	"crypto/tls"
	"time"

	"github.com/cellgate/cellgate/snapshot"
)

// The bulkhead towards one other cell, and its times: a peer that can't be had is soon known, since the request can still
// be served here. How long the answer may take is the route's matter.
func peerDefinition(id string, endpoints []string) snapshot.Upstream {
	return snapshot.Upstream{
		ID: id, Endpoints: endpoints, Pool: snapshot.Pool{MaxConnections: 256},
		Timeouts: snapshot.Timeouts{Connect: 500 * time.Millisecond, ResponseHeader: time.Hour, Idle: time.Hour},
	}
}

// NewPeers makes the pool to the peer listeners of another cell. It belongs to no snapshot: its owner sweeps and retires it.
func NewPeers(id string, endpoints []string, cfg *tls.Config) (*Pool, error) {
	opts := Options{Allow: snapshot.Loopback()}
	p, err := newPool(peerDefinition(id, endpoints), &opts, newNames(opts))
	if err != nil {
		return nil, err
	}
	p.tls, p.auto = cfg, false
	p.maxPending = 0 // who would have to wait is served here
	return p, nil
}

// Sweep closes connections that lay idle for too long.
func (p *Pool) Sweep(now time.Time) { p.sweep(now, false) }

// start begins what goes on beside the exchanges, until Retire.
func (p *Pool) start() {
	if p.health.Path != "" {
		p.probes = p.watch(p.health)
	}
	if p.discovery != nil && p.opts.Finder != nil {
		p.follow()
	}
}

// Retire closes idle connections now, others when their exchange ends.
func (p *Pool) Retire() {
	p.discovery.end()
	p.probes.end()
	p.mu.Lock()
	p.retired.Store(true)
	p.mu.Unlock()
	p.sweep(time.Time{}, true)
	p.askShares()
}
