//go:build long

package regionctl

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/store/disk"
	"github.com/cellgate/cellgate/store/mem"
	"github.com/cellgate/cellgate/trust"
)

// vast is 200 cells in ten regions, and clients in 4,000.
func vast() cells.Topology {
	var t cells.Topology
	for r := range 4000 {
		reg := cells.Region{ID: cells.RegionID(fmt.Sprintf("r%04d", r)), Clients: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{5, byte(r >> 8), byte(r), 0}), 24)}}
		for c := 0; r < 10 && c < 20; c++ {
			reg.Cells = append(reg.Cells, cells.Cell{
				ID: cells.CellID(fmt.Sprintf("r%04d/%02d", r, c)), HTTPS: 443, Limit: 1_000_000,
				Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(r), byte(c)})},
			})
		}
		t.Regions = append(t.Regions, reg)
	}
	for i := range 4000 {
		row := make([]int32, 10)
		for j := range row {
			row[j] = int32((i*7+j*31)%150 + 5)
		}
		t.LatencyMS = append(t.LatencyMS, row)
	}
	return t
}

// cpu is the processor time of this process so far.
func cpu() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // never fails with these arguments
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cost tells what a part of the way took.
func cost(t *testing.T, what string, do func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := cpu()
	do()
	used := cpu() - began
	runtime.ReadMemStats(&after)
	t.Logf("%-34s %6d ms CPU, %4d MB allocated", what, used.Milliseconds(), (after.TotalAlloc-before.TotalAlloc)>>20)
}

// A plan of 200 cells and 4,000 localities, whose every slot names another cell than the one before, is stored, copied to the
// region, found again after a restart without the global store, streamed to a router, and served by it after its own restart.
func TestPlanOf200CellsAnd4000LocalitiesGoesAllTheWay(t *testing.T) {
	b := newBench(t)
	b.topology = vast()
	dir := t.TempDir()
	open := func(name string) *disk.Store {
		s, err := disk.Open(filepath.Join(dir, name))
		must(t, err)
		return s
	}
	global, regional := open("global"), open("regional")
	l, end := b.incumbent(global)
	l.opt.Regional, l.regionalBlobs = regional, store.NewBlobs(regional)
	l.opt.SteeredNames = []string{"api.gw.test"}

	var want *steer.Plan
	must(t, b.step(l, false))
	l.stepping.state.Plan = shuffled(l.stepping.state.Plan)
	for _, id := range []cells.CellID{"r0000/00", "r0003/07"} { // a new plan, with all other slots as they are
		b.evacuate(global, l, id)
		cost(t, "a step, stored", func() { must(t, b.step(l, false)) })
		p, ok := l.plan()
		if !ok || p.Cells[0].Evacuation == 0 {
			t.Fatalf("no new plan: %v", p)
		}
		want = p
	}
	in, err := l.steerInputs(t.Context(), l.Epoch, b.now)
	must(t, err)
	cost(t, "of it the decision", func() { steer.Step(l.stepping.state, in, b.now.Add(time.Second)) })
	envelope := l.plans.get(l.stepping.rec.Plan.Blob)
	t.Logf("plan %d: %d KB signed, %d KB stored; the state beside it %d KB", want.Number, len(envelope.envelope)>>10, len(envelope.packed)>>10, l.stepping.rec.Bytes>>10)
	if len(envelope.envelope) < 8*store.MaxValue {
		t.Errorf("a plan of %d bytes proves nothing", len(envelope.envelope))
	}
	entries, _, err := global.List(t.Context(), "")
	must(t, err)
	for _, e := range entries {
		if len(e.Value) > store.MaxValue {
			t.Errorf("%s has %d bytes", e.Key, len(e.Value))
		}
	}
	cost(t, "the region's copy", func() { must(t, l.copyPlan(t.Context())) })
	end()
	must(t, global.Close())
	must(t, regional.Close())

	global, regional = open("global"), open("regional")
	defer global.Close()
	defer regional.Close()
	l, end = b.incumbent(global)
	var state steer.State
	cost(t, "the next leader reads the state", func() { state, err = l.readSteering(t.Context()) })
	must(t, err)
	samePlan(t, "the next leader's", &state.Plan, want)
	end()

	page := b.routed(regional)
	samePlan(t, "the router's", page, want)
}

// shuffled gives every slot another owner than its neighbours.
func shuffled(p steer.Plan) steer.Plan {
	rng := rand.New(rand.NewPCG(1, 2))
	for s := range p.Rows {
		for l := range p.Rows[s] {
			row := make(steer.Row, steer.Slots)
			for i := range row {
				row[i] = uint16(rng.IntN(len(p.Cells)))
			}
			p.Rows[s][l] = row
		}
	}
	return p
}

func (b *bench) evacuate(s store.Store, l *term, id cells.CellID) {
	ev := cells.Evacuation{Form: cells.EvacuationForm, Cell: id, Started: b.now, Expires: b.now.Add(time.Hour), Reason: "test"}
	rev, err := s.Commit(b.t.Context(), nil, []store.Op{store.Put(store.KeyEvacuation(id), encode(ev))})
	must(b.t, err)
	l.intent.see(b.t.Context(), rev)
}

func samePlan(t *testing.T, whose string, got, want *steer.Plan) {
	t.Helper()
	a, err := json.Marshal(got)
	must(t, err)
	b, err := json.Marshal(want)
	must(t, err)
	if string(a) != string(b) {
		t.Errorf("%s plan (%d, %d) is not the one that was published as (%d, %d)", whose, got.Epoch, got.Number, want.Epoch, want.Number)
	}
}

// routed runs a controller that has the region's store alone, and a router that attaches to it, is stopped and starts again
// from its disk: the plan that it then serves.
func (b *bench) routed(regional store.Store) *steer.Plan {
	t := b.t
	gone := &gated{Store: mem.New()}
	gone.lost.Store(true)
	nodes, err := net.Listen("tcp", b.freeAddr().String())
	must(t, err)
	api, err := net.Listen("tcp", b.freeAddr().String())
	must(t, err)
	c, err := New(Options{
		World: "gw.test", ID: "r0000/1", Region: "r0000", Topology: b.topology, Zone: "gw.test", Global: gone, Regional: regional,
		Signer: b.world.signer(trust.RoleController, "r0000/1"), Roots: b.roots, APICert: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &b.cert, nil }, NodeAPI: nodes, API: api,
		Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	b.background(c.Run)

	dir := filepath.Join(t.TempDir(), "plans")
	agent := b.router(dir)
	accepted := make(chan error, 8)
	client := nodeapi.NewClient(nodeapi.Options{
		Controllers: []string{nodes.Addr().String()}, TLS: trust.ClientTLS(b.world.signer(trust.RoleRouter, "r0000/2"), b.roots, trust.RoleController),
		Hello: func() *nodeapi.Hello { return &nodeapi.Hello{Boot: "r"} },
		Receive: func(d *nodeapi.Down) {
			if p := d.GetPlan(); p != nil {
				cost(t, "a router takes the plan", func() { accepted <- agent.Accept(p.Envelope, "push", time.Now()) })
			}
		},
	})
	b.background(client.Run)
	select {
	case err := <-accepted:
		must(t, err)
	case <-time.After(time.Minute):
		t.Fatal("no plan came")
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("%d plans on the router's disk, %v", len(files), err)
	}
	return b.router(dir).Held().Plan
}

// router is the part of a router that keeps plans, started on a directory.
func (b *bench) router(dir string) *globalrouter.Agent {
	zone, err := globalrouter.ReadZone("zone", []byte("$ORIGIN gw.test.\n@ 60 SOA ns.gw.test. a.gw.test. 1 60 60 60 60\n@ 60 NS ns.gw.test.\nns 60 A 127.0.0.1\n"))
	must(b.t, err)
	a := &globalrouter.Agent{
		Dir: dir, Zone: zone, Server: &globalrouter.Server{}, Log: slog.New(slog.DiscardHandler),
		Verify: func(envelope []byte, now time.Time) ([]byte, error) {
			raw, _, err := b.roots.Verify(trust.KindPlan, envelope, now, trust.RoleController)
			return raw, err
		},
	}
	must(b.t, a.Load())
	return a
}
