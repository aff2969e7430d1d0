package upstream

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"sync"
	"time"

	"github.com/cellgate/cellgate/snapshot"
)

// Registry keeps pools over swaps of snapshots: an upstream whose definition did not change keeps its connections. What is
// known of an endpoint lasts while its upstream has it, under whatever definition: an ejected one stays out.
type Registry struct {
	opts  Options
	names *names
	mu    sync.Mutex
	pools map[string]*Pool               // by content
	last  map[string]*Pool               // by id: the pool made last, among pools
	told  map[string][]snapshot.Endpoint // what discovery told last, as it is stored
}

// NewRegistry makes an empty registry.
func NewRegistry(opts Options) *Registry {
	r := &Registry{opts: opts, names: newNames(opts), pools: map[string]*Pool{}, last: map[string]*Pool{}}
	r.remember()
	return r
}

// Pools gives the pool of every upstream, in their order, making those that are new. It changes nothing on an error.
// Pools that are no longer named stay until Retire.
func (r *Registry) Pools(us []snapshot.Upstream) ([]*Pool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out, made := make([]*Pool, len(us)), map[string]*Pool{}
	for i, u := range us {
		key, err := contentKey(u)
		if err != nil {
			return nil, err
		}
		if p := r.pools[key]; p != nil {
			out[i] = p
			continue
		}
		p, err := newPool(u, &r.opts, r.names)
		if err != nil {
			return nil, err
		}
		if d := p.discovery; d != nil {
			if all := r.told[keyOf(p.ID, d.of)]; len(all) > 0 {
				p.found(all)
			}
		}
		if old := r.last[u.ID]; old != nil {
			p.adopt(old)
		}
		out[i], made[key] = p, p
	}
	for key, p := range made {
		r.pools[key] = p
		p.start()
	}
	if r.opts.Finder != nil {
		awaitFound(made)
	}
	for _, p := range out {
		r.last[p.ID] = p
	}
	return out, nil
}

// Retire lets go of all pools but these: idle connections are closed now, others when their exchange ends.
func (r *Registry) Retire(keep []*Pool) {
	kept := make(map[*Pool]bool, len(keep))
	for _, p := range keep {
		kept[p] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, p := range r.pools {
		if kept[p] {
			continue
		}
		delete(r.pools, key)
		if r.last[p.ID] == p {
			delete(r.last, p.ID)
		}
		p.Retire()
	}
}

// Sweep closes connections that lay idle for too long, takes in endpoints that there was no room for, and stores what names have come to resolve to.
func (r *Registry) Sweep(now time.Time) {
	r.names.save()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keep()
	for _, p := range r.pools {
		p.sweep(now, false)
		p.retry(now)
	}
}

// Stats are the numbers of all pools, sorted by id.
func (r *Registry) Stats(now time.Time) []Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Stats, 0, len(r.pools))
	for _, p := range r.pools {
		all = append(all, p.stats(now))
	}
	sort.Slice(all, func(i, j int) bool { return all[i].ID < all[j].ID })
	return all
}

func contentKey(u snapshot.Upstream) (string, error) {
	raw, err := json.Marshal(u)
	if err != nil {
		return "", fmt.Errorf("upstream: %w", err)
	}
	return string(raw), nil
}

// tlsConfig reads the author's TLS block. auto means off on loopback.
func tlsConfig(t snapshot.TLS) (cfg *tls.Config, auto bool, err error) {
	if t.Off {
		return nil, false, nil
	}
	cfg = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, NextProtos: []string{"http/1.1"},
		ClientSessionCache: tls.NewLRUClientSessionCache(64)}
	if t.CA != "" {
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM([]byte(t.CA)) {
			return nil, false, errors.New("upstream: tls.ca holds no certificate")
		}
	}
	if t.ClientCert != "" {
		pair, err := tls.X509KeyPair([]byte(t.ClientCert), []byte(t.ClientCert))
		if err != nil {
			return nil, false, fmt.Errorf("upstream: tls.client_cert: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, t == (snapshot.TLS{}), nil
}
