package proxy

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/proxy/hops"
	"github.com/cellgate/cellgate/proxy/http2"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/snapshot"
)

// Options are what a server is made of.
type Options struct {
	Auth      Authenticator // required
	Limits    Limiter       // required
	Recorders []Recorder
	// Trusted are the proxies in front of the node that are believed about their clients; nil = none.
	Trusted  hops.Trusted
	Upstream upstream.Options
}

// Server is the live state of one node's data plane: the table behind one atomic pointer, and what outlives tables.
type Server struct {
	opts      Options
	table     atomic.Pointer[table]
	pools     *upstream.Registry
	exchanges sync.Pool
	apply     sync.Mutex

	denied    atomic.Pointer[denylist.Set]
	draining  atomic.Bool
	reconnect atomic.Bool
	changed   atomic.Pointer[chan struct{}]
	tail      atomic.Pointer[Tail] // nil = no forwarding
	today     atomic.Pointer[date]

	// Written by: engines.
	Connections atomic.Int64
	InFlight    atomic.Int64 // tunnels too
	Tunnels     atomic.Int64
	Requests    atomic.Uint64
	Faults      [http2.Codes]atomic.Uint64 // HTTP/2 connections that were ended for what the client did, by error code
}

// table is what one snapshot came to on this node. It is immutable.
type table struct {
	program *program.Program
	share   int
	pools   []*upstream.Pool
	second  *program.Opinion // nil = there is nobody to ask
}

// New makes a server that serves nothing until Apply.
func New(opts Options) *Server {
	s := &Server{opts: opts, pools: upstream.NewRegistry(opts.Upstream)}
	s.exchanges.New = func() any { return &Exchange{server: s} }
	ch := make(chan struct{})
	s.changed.Store(&ch)
	return s
}

// Apply puts a program into service, with the number of nodes that share the cell's limits. Exchanges that are under way
// end with the table they began with. On an error nothing changes.
func (s *Server) Apply(p *program.Program, share int) error {
	s.apply.Lock()
	defer s.apply.Unlock()
	pools, err := s.pools.Pools(p.Upstreams)
	if err != nil {
		return fmt.Errorf("proxy: apply snapshot %d: %w", p.Number, err)
	}
	next := &table{program: p, share: max(share, 1), pools: pools}
	if old := s.table.Load(); old != nil && old.program == p {
		next.second = old.second
	} else if old != nil {
		next.second = program.NewOpinion(old.program, p, s.now())
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

// Ready says whether the node wants new clients: it has a program and is neither draining nor being left.
// It never depends on the control plane (CASES G53). A node that clients are asked to leave stays ready: it serves.
func (s *Server) Ready() bool { return s.table.Load() != nil && !s.draining.Load() }

// Leaving says whether clients are asked to make a new connection, elsewhere.
func (s *Server) Leaving() bool { return s.reconnect.Load() || s.draining.Load() }

// Reconnect asks clients to leave, or to stay again.
func (s *Server) Reconnect(on bool) {
	if s.reconnect.Swap(on) != on {
		s.announce()
	}
}

// Drain makes the node not ready and lets clients go; there is no way back.
func (s *Server) Drain() {
	if !s.draining.Swap(true) {
		s.announce()
	}
}

// Draining says whether Drain was called.
func (s *Server) Draining() bool { return s.draining.Load() }

// Changed is closed at the next change of Leaving or Draining.
func (s *Server) Changed() <-chan struct{} { return *s.changed.Load() }

func (s *Server) announce() {
	next := make(chan struct{})
	close(*s.changed.Swap(&next))
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
	Snapshot    uint64
	Checksum    snapshot.Digest
	Ready       bool
	Leaving     bool
	Connections int64
	InFlight    int64
	Tunnels     int64
	Requests    uint64
	Faults      [http2.Codes]uint64
	Upstreams   []upstream.Stats
}

// Snapshot reads the numbers.
func (s *Server) Snapshot() Stats {
	st := Stats{Ready: s.Ready(), Leaving: s.Leaving(), Connections: s.Connections.Load(), InFlight: s.InFlight.Load(), Tunnels: s.Tunnels.Load(),
		Requests: s.Requests.Load(), Upstreams: s.pools.Stats(time.Now())}
	for i := range st.Faults {
		st.Faults[i] = s.Faults[i].Load()
	}
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
	x.PeerText, x.clientText, x.Via, x.AltSvc = "", "", "", ""
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
	x.reset()
}

// date is the Date of an own answer (RFC 9110, section 6.6.1), formatted once a second.
func (s *Server) date(now time.Time) string {
	d := s.today.Load()
	if d == nil || d.second != now.Unix() {
		d = &date{now.Unix(), now.UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT")}
		s.today.Store(d)
	}
	return d.text
}

type date struct {
	second int64
	text   string
}

func (s *Server) now() time.Time { return time.Now() }
