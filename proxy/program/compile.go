package program

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"slices"
	"strings"
	"unsafe"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/proxy/route"
	"github.com/cellgate/cellgate/proxy/transform"
	"github.com/cellgate/cellgate/snapshot"
)

// shard is one host shard compiled. The table depends on the shard's content alone, the routes also on the order of
// upstreams and policies.
type shard struct {
	digest snapshot.Digest
	table  *route.Table
	routes []Route
	patterns
	asked map[string][]int32 // by host, the policies for which clients are asked for certificates; indexes into Program.Policies
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
	p := &Program{Number: s.Manifest.Number, Checksum: s.Manifest.Checksum, Policies: shared.Policies, applied: applied(shared.Policies), IdentityKeys: shared.IdentityKeys}
	p.Upstreams = withDefaults(shared.Upstreams)
	p.Fallbacks = fallbacks(shared.Upstreams)
	if err := p.compileCallers(s, shared, prev); err != nil {
		return nil, err
	}
	p.names = namesOf(shared)
	if err := p.compileShards(s, newResolver(shared), prev); err != nil {
		return nil, err
	}
	if err := p.compileTrusts(); err != nil {
		return nil, err
	}
	return p, p.compileIndex(shared.Tenants)
}

func fallbacks(upstreams []snapshot.Upstream) map[int]int {
	at, all := map[string]int{}, map[int]int{}
	for i, u := range upstreams {
		at[u.ID] = i
	}
	for i, u := range upstreams {
		if to, ok := at[u.Fallback]; ok {
			all[i] = to
		}
	}
	return all
}

func withDefaults(upstreams []snapshot.Upstream) []snapshot.Upstream {
	pool := snapshot.DefaultPool()
	for i := range upstreams {
		u := &upstreams[i]
		u.Balance = cmp.Or(u.Balance, snapshot.DefaultBalance)
		u.Protocol = cmp.Or(u.Protocol, snapshot.DefaultProtocol)
		u.Pool.MaxConnections = cmp.Or(u.Pool.MaxConnections, pool.MaxConnections)
		u.Pool.MaxPending = cmp.Or(u.Pool.MaxPending, pool.MaxPending)
	}
	return upstreams
}

// compileCallers fills Consumers and Identity; the identity of an unchanged shard is prev's, so that what is cached by its
// verifiers stays valid.
func (p *Program) compileCallers(s *snapshot.Snapshot, shared *snapshot.Config, prev *Program) error {
	plans := map[string]snapshot.Plan{}
	for _, plan := range shared.Plans {
		plans[plan.ID] = plan
	}
	compiled := map[string]*Plan{}
	p.plans = make(map[string]*Plan, len(shared.Consumers))
	for _, c := range shared.Consumers {
		if compiled[c.Plan] == nil {
			compiled[c.Plan] = planOf(plans[c.Plan])
			p.tries = p.tries || compiled[c.Plan].Day.Tried || compiled[c.Plan].Rate.Tried
		}
		p.plans[c.ID] = compiled[c.Plan]
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
	for i := range shared.Policies {
		writeName(h, shared.Policies[i].ID)
		writeName(h, shared.Policies[i].Kind()+shared.Policies[i].Mode) // by which a route's policies are told apart
		if shared.Policies[i].CertificateBound() {
			writeName(h, "bound") // by which clients are asked for certificates
		}
		if t := shared.Policies[i].Transform; t != nil { // and this is what terms hold
			raw, _ := json.Marshal(t) // it is what was read
			writeName(h, string(raw))
		}
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
	var made []*shard
	b := route.NewBuilder()
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
		compiled, err := compileShard(ref.Digest, blob, names, old, b)
		if err != nil {
			return fmt.Errorf("%s: %w", ref.Key, err)
		}
		p.shards, made = append(p.shards, compiled), append(made, compiled)
	}
	p.pack(made, have)
	return nil
}

// compileShard takes the table over from old, the same shard compiled under other names, when there is one; else b, which is
// empty, builds it. After an error b is of no use.
func compileShard(digest snapshot.Digest, blob []byte, names *resolver, old *shard, b *route.Builder) (*shard, error) {
	sh := &shard{digest: digest}
	seen, paths, h := terms{}, patternWriter{}, fnv.New64a()
	err := snapshot.ReadRoutes(blob, func(r *snapshot.Route, record string) error {
		if old == nil {
			if err := b.Add(r); err != nil {
				return fmt.Errorf("%w: %w", errProgram, err)
			}
		}
		t, err := seen.of(r, names)
		if err != nil {
			return err
		}
		h.Reset()
		_, _ = h.Write(unsafe.Slice(unsafe.StringData(record), len(record))) // it neither fails nor keeps what it is given
		sh.routes = append(sh.routes, Route{r.ID, t, h.Sum64()})
		paths.add(r.Match.Path, r.Match.PathPrefix)
		sh.ask(r.Match.Host, asking(r, names))
		return nil
	})
	if err != nil {
		return nil, err
	}
	sh.patterns = paths.done()
	if old != nil {
		sh.table = old.table
	} else {
		sh.table = b.Table()
	}
	return sh, nil
}

// pack lets what the shards hold lie side by side: routes, their ids, and the tables that no earlier program has. A shard that
// goes on in later programs keeps all of it, which is as much again at the most.
func (p *Program) pack(shards []*shard, earlier map[snapshot.Digest]*shard) {
	var tables []*route.Table
	var ids strings.Builder
	n := 0
	for _, sh := range shards {
		if n += len(sh.routes); earlier[sh.digest] == nil {
			tables = append(tables, sh.table)
		}
		for i := range sh.routes {
			ids.WriteString(sh.routes[i].ID)
		}
	}
	all, text := make([]Route, 0, n), ids.String()
	for _, sh := range shards {
		at := len(all)
		all = append(all, sh.routes...)
		sh.routes = all[at:len(all):len(all)]
		for i := range sh.routes {
			size := len(sh.routes[i].ID)
			sh.routes[i].ID, text = text[:size], text[size:]
		}
	}
	p.fresh = [][]byte{route.Pack(tables), unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(all))), n*int(unsafe.Sizeof(Route{})))}
}

// Fresh is the memory of what this compilation has made, to be looked at by nobody: its pages may be asked to be large.
func (p *Program) Fresh() [][]byte { return p.fresh }

// terms are the different ones of a shard.
type terms map[termsKey]*Terms

type termsKey struct {
	Settings
	branches string // eight bytes each
	policies string // ids
	path     string // of the route, where one of them rewrites it
}

// of gives the terms of a route, the same for all routes that say the same.
func (m terms) of(r *snapshot.Route, names *resolver) (*Terms, error) {
	s := Settings{
		Owner: r.Owner, Sticky: r.Sticky, Policy: -1, CORS: -1, Decision: -1, Limits: r.Limits,
		Timeout:  cmp.Or(r.Timeout, snapshot.DefaultTimeout),
		Retry:    Retry{Attempts: r.Retry.Attempts, On: conditions(r.Retry.Conditions)},
		Priority: cmp.Or(r.Priority, cells.PriorityNormal), Hedge: r.Hedge,
	}
	if r.Auth != "" {
		if s.Policy = names.policy(r.Auth); s.Policy < 0 {
			return nil, fmt.Errorf("%w: route %q names no policy %q", errProgram, r.ID, r.Auth)
		}
	}
	rules, shadows, transforms, rewritten, err := s.policies(r, names)
	if err != nil {
		return nil, fmt.Errorf("route %q: %w", r.ID, err)
	}
	var room [8]Branch
	branches := room[:0]
	if r.Upstream != "" {
		branches = append(branches, Branch{names.upstream(r.Upstream), 1})
	}
	for _, d := range r.Split {
		branches = append(branches, Branch{names.upstream(d.Upstream), d.Weight})
	}
	var text []byte
	for _, b := range branches {
		if b.Upstream < 0 {
			return nil, fmt.Errorf("%w: route %q names an upstream that is not there", errProgram, r.ID)
		}
		text = binary.LittleEndian.AppendUint64(text, uint64(b.Upstream)<<32|uint64(b.Weight))
	}
	if len(branches) == 0 {
		return nil, fmt.Errorf("%w: route %q has no upstream", errProgram, r.ID)
	}
	key := termsKey{s, string(text), strings.Join(r.Policies, "\n"), rewritten}
	if m[key] == nil {
		s.own()
		key.Settings, key.policies, key.path = s, strings.Clone(key.policies), strings.Clone(key.path)
		m[key] = newTerms(s, branches, rules)
		m[key].Shadows, m[key].Named = shadows, key.policies
		if len(transforms) > 0 {
			m[key].Edits = transform.Compile(transforms, &r.Match)
		}
	}
	return m[key], nil
}

// termsOfOne are terms with the one branch that most have, side by side.
type termsOfOne struct {
	Terms
	branch [1]Branch
}

func newTerms(s Settings, branches []Branch, rules []int32) *Terms {
	l := &s.Limits
	of := Terms{Settings: s, Rules: rules, Tenant: rateOf(l.Tenant, l.Scope, l.OnStoreLoss, l.Mode), User: rateOf(l.User, l.Scope, l.OnStoreLoss, l.Mode)}
	if len(branches) > 1 {
		of.Branches = slices.Clone(branches)
		return &of
	}
	t := &termsOfOne{of, [1]Branch(branches)}
	t.Branches = t.branch[:]
	return &t.Terms
}

// own takes the strings out of the blob that they lie in, which nothing else needs any longer.
func (s *Settings) own() {
	s.Owner, s.Sticky, s.Priority = strings.Clone(s.Owner), strings.Clone(s.Sticky), cells.Priority(strings.Clone(string(s.Priority)))
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
		if t.Limits.Rate.Requests > 0 {
			if p.limited == nil {
				p.limited, p.rates = map[string]snapshot.TenantLimits{}, map[string]*Rule{}
			}
			rate := rateOf(t.Limits.Rate, t.Limits.Scope, t.Limits.OnStoreLoss, t.Limits.Mode)
			p.tries = p.tries || rate.Tried
			p.limited[t.ID], p.rates[t.ID] = t.Limits, &rate
			if t.ID == snapshot.Platform {
				p.all = &rate
			}
		}
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
type resolver struct {
	shared              *snapshot.Config
	upstreams, policies map[string]int32
	certificates        bool // some policy takes them
}

func newResolver(shared *snapshot.Config) *resolver {
	r := &resolver{shared: shared, upstreams: map[string]int32{}, policies: map[string]int32{}}
	for i, u := range shared.Upstreams {
		r.upstreams[u.ID] = int32(i)
	}
	for i, p := range shared.Policies {
		r.policies[p.ID], r.certificates = int32(i), r.certificates || asksClients(&p)
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
