package proxy

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/internal/hugepage"
	decisions "github.com/cellgate/cellgate/proxy/decide"
	"github.com/cellgate/cellgate/proxy/door"
	"github.com/cellgate/cellgate/proxy/hops"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/identity"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/shed"
	"github.com/cellgate/cellgate/proxy/tally"
	"github.com/cellgate/cellgate/proxy/tracecontext"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/snapshot"
)

// Options are what a server is made of.
type Options struct {
	Auth      Authenticator // required
	Limits    Limiter       // required
	Decisions *decisions.Decisions
	Voucher   identity.Voucher // nil = no upstream gets tokens
	Recorders []Recorder
	Shadow    Shadow // nil = nothing is tried
	// Sample is the share of the traces that begin here which are recorded, by whoever of the recorders keeps traces.
	Sample tracecontext.Ratio
	// Trusted are the proxies in front of the node that are believed about their clients; nil = none.
	Trusted  hops.Trusted
	Upstream upstream.Options
}

// Server is the live state of one node's data plane: the table behind one atomic pointer, and what outlives tables.
type Server struct {
	door.Door
	tally.Tally // written by: engines
	opts        Options
	table       atomic.Pointer[table]
	pools       *upstream.Registry
	exchanges   sync.Pool
	apply       sync.Mutex

	denied atomic.Pointer[denylist.Set]
	tail   atomic.Pointer[Tail] // nil = no forwarding
	today  http1.Date
	level  atomic.Uint32 // shed.Level
}

// table is what one snapshot came to on this node. It is immutable.
type table struct {
	program *program.Program
	pools   []*upstream.Pool
	instead []*upstream.Pool // of each upstream the one that is asked while its breakers are open; nil = none
	second  *program.Opinion // nil = there is nobody to ask
}

// New makes a server that serves nothing until Apply.
func New(opts Options) *Server {
	s := &Server{opts: opts, pools: upstream.NewRegistry(opts.Upstream)}
	s.exchanges.New = func() any { return &Exchange{server: s} }
	return s
}

// Apply puts a program into service. Exchanges that are under way end with the table they began with. On an error nothing
// changes.
func (s *Server) Apply(p *program.Program) error {
	s.apply.Lock()
	defer s.apply.Unlock()
	pools, err := s.pools.Pools(p.Upstreams)
	if err != nil {
		return fmt.Errorf("proxy: apply snapshot %d: %w", p.Number, err)
	}
	next := &table{program: p, pools: pools, instead: make([]*upstream.Pool, len(pools))}
	for i, n := range p.Fallbacks {
		next.instead[i] = pools[n]
	}
	if old := s.table.Load(); old != nil && old.program == p {
		next.second = old.second
	} else if old != nil {
		next.second = program.NewOpinion(old.program, p, time.Now())
	}
	for _, b := range p.Fresh() {
		hugepage.Collapse(b)
	}
	s.table.Store(next)
	s.pools.Retire(pools)
	return nil
}

// Program is what is being served; nil before the first Apply.
func (s *Server) Program() *program.Program {
	if t := s.table.Load(); t != nil {
		return t.program
	}
	return nil
}

// Deny replaces the list of routes that are refused; callers are the Authenticator's. It holds from the next request on.
func (s *Server) Deny(set *denylist.Set) { s.denied.Store(set) }

// Ready says whether the node wants new clients: it has a program and is not draining, unless a successor takes them.
// It never depends on the control plane (CASES G53). A node that clients are asked to leave stays ready: it serves.
func (s *Server) Ready() bool {
	return s.table.Load() != nil && s.Open()
}

// Run keeps house until ctx ends: idle upstream connections don't stay for ever.
func (s *Server) Run(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			s.pools.Retire(nil)
			return nil
		case now := <-tick.C:
			s.pools.Sweep(now)
			s.forget(now)
		}
	}
}

// Stats are the server's numbers at one moment.
type Stats struct {
	tally.Numbers
	Snapshot  uint64
	Checksum  snapshot.Digest
	Ready     bool
	Level     shed.Level
	Upstreams []upstream.Stats
}

// Snapshot reads the numbers.
func (s *Server) Snapshot() Stats {
	st := Stats{Numbers: s.Now(), Ready: s.Ready(), Level: shed.Level(s.level.Load()), Upstreams: s.pools.Stats(time.Now())}
	if p := s.Program(); p != nil {
		st.Snapshot, st.Checksum = p.Number, p.Checksum
	}
	return st
}

// Acquire gives an empty exchange.
func (s *Server) Acquire() *Exchange {
	x := s.exchanges.Get().(*Exchange)
	x.reset()
	return x
}

// Release takes the exchange back; the engine must not touch it any more.
func (s *Server) Release(x *Exchange) {
	x.leave(x.now)
	x.PeerText, x.from.Text, x.Via, x.AltSvc, x.Certificates = "", "", "", "", nil
	x.Request.Blank() // it may refer to a buffer that is someone else's from now on
	s.exchanges.Put(x)
}

// Finish records the exchange and makes it empty for the next request of the same connection.
func (x *Exchange) Finish(now time.Time) {
	s := x.server
	s.Requests.Add(1)
	if len(s.opts.Recorders) > 0 {
		x.record(now)
	}
	x.leave(now)
	x.reset()
}
