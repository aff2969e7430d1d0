package agent

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/trust"
)

// told is what the node's forwarding was told last.
type told struct {
	mu       sync.Mutex
	calls    int
	plan     uint64
	topology *cells.Topology
	owners   map[cells.CellID]bool // that the plan names
	fail     error
}

func (s *told) steer(t *cells.Topology, p *steer.Plan) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls, s.topology, s.plan, s.owners = s.calls+1, t, 0, map[cells.CellID]bool{}
	if p != nil {
		s.plan = p.Number
		for _, c := range p.Rows[0][0] {
			s.owners[p.Cells[c].ID] = true
		}
	}
	return s.fail
}

func (s *told) number() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plan
}

func withSteer(s *told) func(*Options) { return func(o *Options) { o.Steer = s.steer } }

func (s *told) names(id cells.CellID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owners[id]
}

// plan gives all clients to the cell beside the node's own.
func (c *controller) plan(epoch, number uint64) *nodeapi.Down { return c.planFor(epoch, number, 1) }

// planFor gives all clients to one of the two cells; the node's own is the first.
func (c *controller) planFor(epoch, number uint64, owner uint16) *nodeapi.Down {
	at := func(d byte) []netip.Addr { return []netip.Addr{netip.AddrFrom4([4]byte{127, 1, 1, d})} }
	row := make(steer.Row, steer.Slots)
	for i := range row {
		row[i] = owner
	}
	return signedPlan(c.sign(c.signer, trust.KindPlan, steer.Plan{
		Form: 1, Epoch: epoch, Number: number, TTL: 5, Names: map[string]int{"h0.example.com": 0},
		Cells: []steer.Cell{{ID: "eu-west/a", Addresses: at(1)}, {ID: "eu-west/b", Addresses: at(2)}}, Localities: []steer.Locality{{ID: "unknown", LatencyMS: []int32{1, 1}}},
		Sets: []steer.Set{{ID: "s", Cells: []uint16{0, 1}}}, Rows: [][]steer.Row{{row}},
	}))
}

func signedPlan(envelope []byte) *nodeapi.Down {
	return &nodeapi.Down{Message: &nodeapi.Down_Plan{Plan: &nodeapi.Signed{Envelope: envelope}}}
}

func (c *controller) topology() *nodeapi.Down {
	t := cells.Topology{Regions: []cells.Region{{ID: "eu-west", Cells: []cells.Cell{
		{ID: "eu-west/a", Addresses: []netip.Addr{netip.MustParseAddr("127.1.1.1")}, HTTPS: 1},
		{ID: "eu-west/b", Addresses: []netip.Addr{netip.MustParseAddr("127.1.1.2")}, HTTPS: 1},
	}}}}
	return &nodeapi.Down{Message: &nodeapi.Down_Topology{Topology: &nodeapi.Signed{Envelope: c.sign(c.signer, trust.KindTopology, t)}}}
}

func (c *controller) orders(change ...func(*cells.Evacuation)) *nodeapi.Down {
	e := cells.Evacuation{Form: 1, Cell: "eu-west/a", Reason: "r", By: "b", Started: time.Now().Add(-time.Minute).Truncate(time.Second), Expires: time.Now().Add(time.Hour)}
	list := []cells.Evacuation{}
	for _, f := range change {
		if f != nil {
			f(&e)
		}
		list = []cells.Evacuation{e}
	}
	return overrides(c.sign(c.signer, trust.KindOverrides, list))
}

func TestAPlanIsFollowedOnlyWhileTheCellIsEvacuatedAndTheOrderPermitsIt(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	s := &told{}
	dir := t.TempDir()
	p := w.node(dir, withSteer(s))
	topology := w.ctl.topology()
	w.ctl.post(topology, w.ctl.plan(1, 7))
	w.eventually("the topology", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.topology != nil })
	time.Sleep(50 * time.Millisecond)
	if s.number() != 0 || p.Status().Forwards != 0 {
		t.Fatal("an active cell follows a plan")
	}
	first := w.ctl.orders(nil)
	w.ctl.post(first)
	w.eventually("forwarding", func() bool { return s.number() == 7 && p.Status().Forwards == 7 })
	w.ctl.post(w.ctl.plan(1, 6), signedPlan([]byte("x")), signedPlan(w.ctl.sign(w.signer(trust.RoleProxy, "eu-west/b/1"), trust.KindPlan, steer.Plan{Number: 99})), w.ctl.plan(1, 8))
	w.eventually("the newest plan that is signed", func() bool { return s.number() == 8 })
	p.stop()

	w.ctl.post()
	again := &told{}
	p = w.node(dir, withSteer(again), func(o *Options) { o.Controllers = nil }) // every controller is dead
	w.eventually("forwarding after a restart", func() bool { return again.number() == 8 })
	p.stop()

	p = w.node(dir, withSteer(s))
	w.ctl.post(w.ctl.orders(func(e *cells.Evacuation) { e.Expires = e.Expires.Add(time.Hour); e.NoForward = true }))
	w.eventually("an order without forwarding", func() bool { return s.number() == 0 && p.Status().Evacuated })
	w.ctl.post(w.ctl.orders(func(e *cells.Evacuation) { e.Restored = time.Now() }))
	w.eventually("the restoration", func() bool { return !p.Status().Evacuated })
	w.ctl.post(w.ctl.orders(func(e *cells.Evacuation) { e.Started = time.Now() }))
	w.eventually("another order", func() bool { return p.Status().Evacuated })
	time.Sleep(100 * time.Millisecond)
	if s.number() != 0 {
		t.Errorf("the plan %d of an order that has ended is followed", s.number())
	}
	w.ctl.post(w.ctl.plan(1, 9))
	w.eventually("its own plan", func() bool { return s.number() == 9 })
}

// With the leader dead, no plan follows the order: the cell's clients are where routers send them by themselves.
func TestAnOrderThatNoPlanFollowsIsForwardedByItsFallbacks(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	s := &told{}
	p := w.node(t.TempDir(), withSteer(s))
	w.ctl.post(w.ctl.topology(), w.ctl.planFor(1, 7, 0))
	w.eventually("the topology", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.topology != nil })
	w.ctl.post(w.ctl.orders(func(e *cells.Evacuation) { e.Started, e.Over = time.Now().Truncate(time.Second), time.Hour }))
	w.eventually("the order", func() bool { return p.Status().Evacuated && s.number() == 7 })
	if !s.names("eu-west/a") {
		t.Error("the cell gave its clients away ahead of the order's time")
	}
	w.ctl.post(w.ctl.orders(func(e *cells.Evacuation) { e.Started, e.Over = time.Now().Add(-time.Minute), time.Minute+2*time.Second }))
	w.eventually("the next order, without the plan of the one before", func() bool { return s.number() == 0 })
	w.ctl.post(w.ctl.planFor(1, 8, 0))
	w.eventually("the plan", func() bool { return s.number() == 8 })
	w.eventually("the fallback, once the order's time is over", func() bool { return s.number() == 8 && !s.names("eu-west/a") && s.names("eu-west/b") })
	w.ctl.post(w.ctl.orders(func(e *cells.Evacuation) { e.Started, e.Restored = time.Now().Add(-time.Minute), time.Now() }))
	w.eventually("the end", func() bool { return !p.Status().Evacuated && s.number() == 0 })
}

// The plan that is held may come again under another signature, which can be verified for longer.
func TestAPlanSignedAnewIsKeptAndIsNoFault(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	var log bytes.Buffer
	a, err := New(Options{ID: node, Dir: t.TempDir(), Roots: w.roots, Apply: func(*program.Program, int) error { return nil }, Log: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	first, again, older := w.ctl.plan(1, 7).GetPlan().GetEnvelope(), w.ctl.plan(1, 7).GetPlan().GetEnvelope(), w.ctl.plan(1, 6).GetPlan().GetEnvelope()
	for _, envelope := range [][]byte{first, again} {
		a.steer.receive(envelope, nil)
		a.steer.step(time.Now())
	}
	if string(a.steer.kept.Plan.Envelope) != string(again) || strings.Contains(log.String(), "refused") {
		t.Errorf("kept the first: %v\n%s", string(a.steer.kept.Plan.Envelope) == string(first), log.String())
	}
	a.steer.receive(older, nil)
	a.steer.step(time.Now())
	if string(a.steer.kept.Plan.Envelope) != string(again) || !strings.Contains(log.String(), "refused") {
		t.Error("an older plan was taken")
	}
}

func TestADamagedSteeringFileAndAnUnusablePlanHinderNothing(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "steering.json"), []byte("{"), 0o600))
	s := &told{fail: errors.New("no")}
	p := w.node(dir, withSteer(s))
	w.ctl.post(w.ctl.topology(), w.ctl.orders(nil), target(w.ctl.target(1, 1, w.ctl.publish(1, "a", 3))))
	if a := w.ctl.ack(1, 1); a.Nack != "" || p.serving() != 1 {
		t.Errorf("%v", a)
	}
	w.eventually("the topology", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.calls > 0 })
}
