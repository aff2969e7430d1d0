package program

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"slices"
	"strings"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/proxy/route"
	"github.com/cellgate/cellgate/snapshot"
)

// shard is one host shard compiled. The table depends on the shard's content alone, the routes also on the order of
// upstreams and policies.
type shard struct {
	digest   snapshot.Digest
	table    *route.Table
	routes   []Route
	branches []Branch // what Route.Branches points into
}

var errProgram = errors.New("program: the snapshot cannot be compiled")

// Compile makes the program of a snapshot. Shards whose content prev has compiled are taken over from it, their blobs
// need not be there; every blob that is read is verified first. The result shares nothing mutable with prev.
func Compile(s *snapshot.Snapshot, prev *Program) (*Program, error) {
	if err := s.Manifest.Verify(); err != nil {
		return nil, err
	}
	shared, err := snapshot.OpenShared(s)
	if err != nil {
		return nil, err
	}
	p := &Program{Number: s.Manifest.Number, Checksum: s.Manifest.Checksum, Policies: shared.Policies}
	p.Upstreams = withDefaults(shared.Upstreams)
	if err := p.compileCallers(s, shared, prev); err != nil {
		return nil, err
	}
	p.names = namesOf(shared)
	if err := p.compileShards(s, newResolver(shared), prev); err != nil {
		return nil, err
	}
	return p, p.compileIndex(shared.Tenants)
}

func withDefaults(upstreams []snapshot.Upstream) []snapshot.Upstream {
	pool := snapshot.DefaultPool()
	for i := range upstreams {
		u := &upstreams[i]
		u.Balance = cmp.Or(u.Balance, snapshot.DefaultBalance)
		u.Pool.MaxConnections = cmp.Or(u.Pool.MaxConnections, pool.MaxConnections)
		u.Pool.MaxPending = cmp.Or(u.Pool.MaxPending, pool.MaxPending)
	}
	return upstreams
}

// compileCallers fills Consumers and Identity; the identity of an unchanged shard is prev's, so that what is cached by its
// verifiers stays valid.
func (p *Program) compileCallers(s *snapshot.Snapshot, shared *snapshot.Config, prev *Program) error {
	plans := map[string]uint64{}
	for _, plan := range shared.Plans {
		plans[plan.ID] = plan.RatePerSec
	}
	p.rates = make(map[string]uint64, len(shared.Consumers))
	for _, c := range shared.Consumers {
		p.rates[c.ID] = plans[c.Plan]
		p.Consumers = append(p.Consumers, Consumer{ID: c.ID})
	}
	for _, ref := range s.Manifest.Shards {
		if ref.Key == snapshot.KeyConsumers || ref.Key == snapshot.KeyPolicies {
			p.callers += ref.Digest + "\n"
		}
	}
	if prev != nil && prev.callers == p.callers {
		p.Identity = prev.Identity
		return nil
	}
	identity, err := CompileIdentity(shared.Policies, shared.Consumers)
	if err != nil {
		return fmt.Errorf("%w: %w", errProgram, err)
	}
	p.Identity = identity
	return nil
}

// namesOf covers everything that a compiled Route holds by number.
func namesOf(shared *snapshot.Config) snapshot.Digest {
	h := sha256.New()
	for _, u := range shared.Upstreams {
		writeName(h, u.ID)
	}
	writeName(h, "")
	for _, p := range shared.Policies {
		writeName(h, p.ID)
	}
	return snapshot.Digest(hex.EncodeToString(h.Sum(nil)))
}

func writeName(h hash.Hash, name string) { fmt.Fprintf(h, "%q\n", name) }

func (p *Program) compileShards(s *snapshot.Snapshot, names *resolver, prev *Program) error {
	have := map[snapshot.Digest]*shard{}
	if prev != nil {
		for _, sh := range prev.shards {
			have[sh.digest] = sh
		}
	}
	for _, ref := range s.Manifest.Shards {
		if !strings.HasPrefix(ref.Key, snapshot.HostPrefix) {
			continue
		}
		old := have[ref.Digest]
		if old != nil && prev.names == p.names {
			p.shards = append(p.shards, old)
			p.reused++
			continue
		}
		blob, err := s.Blob(ref)
		if err != nil {
			return err
		}
		compiled, err := compileShard(ref.Digest, blob, names, old)
		if err != nil {
			return fmt.Errorf("%s: %w", ref.Key, err)
		}
		p.shards = append(p.shards, compiled)
	}
	return nil
}

// compileShard takes the table over from old, the same shard compiled under other names, when there is one.
func compileShard(digest snapshot.Digest, blob []byte, names *resolver, old *shard) (*shard, error) {
	sh := &shard{digest: digest}
	var b *route.Builder
	if old != nil {
		sh.table = old.table
	} else {
		b = route.NewBuilder()
	}
	err := snapshot.ReadRoutes(blob, func(r *snapshot.Route, record string) error {
		if b != nil {
			if err := b.Add(r); err != nil {
				return fmt.Errorf("%w: %w", errProgram, err)
			}
		}
		return sh.add(r, record, names)
	})
	if err != nil {
		return nil, err
	}
	if b != nil {
		sh.table = b.Table()
	}
	sh.link()
	return sh, nil
}

// add appends the compiled route; its Branches are counted only, until link.
func (sh *shard) add(r *snapshot.Route, record string, names *resolver) error {
	h := fnv.New64a()
	_, _ = io.WriteString(h, record) // it never fails
	to := Route{
		definition: h.Sum64(), ID: r.ID, Owner: r.Owner, Sticky: r.Sticky, Policy: -1, Limits: r.Limits,
		Timeout:  cmp.Or(r.Timeout, snapshot.DefaultTimeout),
		Retry:    Retry{Attempts: r.Retry.Attempts, On: conditions(r.Retry.Conditions)},
		Priority: cmp.Or(r.Priority, cells.PriorityNormal),
	}
	first := len(sh.branches)
	if r.Upstream != "" {
		sh.branches = append(sh.branches, Branch{names.upstream(r.Upstream), 1})
	}
	for _, d := range r.Split {
		sh.branches = append(sh.branches, Branch{names.upstream(d.Upstream), d.Weight})
	}
	if r.Auth != "" {
		to.Policy = names.policy(r.Auth)
		if to.Policy < 0 {
			return fmt.Errorf("%w: route %q names no policy %q", errProgram, r.ID, r.Auth)
		}
	}
	for _, b := range sh.branches[first:] {
		if b.Upstream < 0 {
			return fmt.Errorf("%w: route %q names an upstream that is not there", errProgram, r.ID)
		}
	}
	if len(sh.branches) == first {
		return fmt.Errorf("%w: route %q has no upstream", errProgram, r.ID)
	}
	to.Branches = sh.branches[first:]
	sh.routes = append(sh.routes, to)
	return nil
}

// link points every route's Branches into the one array, which has moved while it grew.
func (sh *shard) link() {
	at := 0
	for i := range sh.routes {
		n := len(sh.routes[i].Branches)
		sh.routes[i].Branches = sh.branches[at : at+n : at+n]
		at += n
	}
	sh.routes = slices.Clip(sh.routes)
}

func conditions(names []string) Condition {
	var c Condition
	for _, n := range names {
		switch n {
		case snapshot.RetryConnectFailure:
			c |= OnConnectFailure
		case snapshot.RetryReset:
			c |= OnReset
		case "502":
			c |= On502
		case "503":
			c |= On503
		case "504":
			c |= On504
		}
	}
	return c
}

func (p *Program) compileIndex(tenants []snapshot.Tenant) error {
	tables := make([]*route.Table, len(p.shards))
	for i, sh := range p.shards {
		tables[i] = sh.table
	}
	claims := map[string]int32{}
	for i, t := range tenants {
		p.tenants = append(p.tenants, t.ID)
		for _, h := range t.Hosts {
			claims[h] = int32(i)
		}
	}
	index, err := route.NewIndex(tables, claims)
	if err != nil {
		return fmt.Errorf("%w: %w", errProgram, err)
	}
	p.index = index
	return nil
}

// resolver turns ids into numbers.
type resolver struct{ upstreams, policies map[string]int32 }

func newResolver(shared *snapshot.Config) *resolver {
	r := &resolver{map[string]int32{}, map[string]int32{}}
	for i, u := range shared.Upstreams {
		r.upstreams[u.ID] = int32(i)
	}
	for i, p := range shared.Policies {
		r.policies[p.ID] = int32(i)
	}
	return r
}

func (r *resolver) upstream(id string) int32 { return number(r.upstreams, id) }
func (r *resolver) policy(id string) int32   { return number(r.policies, id) }

func number(m map[string]int32, id string) int32 {
	if n, ok := m[id]; ok {
		return n
	}
	return -1
}
