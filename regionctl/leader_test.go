package regionctl

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/health"
	"github.com/cellgate/cellgate/regionctl/rollout"
	"github.com/cellgate/cellgate/report"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/store/mem"
	"github.com/cellgate/cellgate/store/storetest"
	"github.com/cellgate/cellgate/trust"
)

// bench is a leader's work done by hand: no sockets, no loops, a clock of its own.
type bench struct {
	*world
	now     time.Time
	signer_ *trust.Signer
	served  map[cells.NodeID]uint64
	seq     uint64
	high    map[cells.RegionID]rollout.Target // the newest target seen of each region
}

func newBench(t *testing.T) *bench {
	b := &bench{world: newWorld(t), now: time.Now(), served: map[cells.NodeID]uint64{}, high: map[cells.RegionID]rollout.Target{}}
	b.signer_ = b.world.signer(trust.RoleController, "eu-west/1")
	return b
}

// incumbent is a controller that leads over the store, until the test or the returned function ends it.
func (b *bench) incumbent(s store.Store) (*term, func()) {
	b.t.Helper()
	c, err := New(Options{
		World: "gw.test", ID: "eu-west/1", Region: "eu-west", Topology: b.topology, Zone: "gw.test", PermitLoopback: true,
		TTL: time.Second, Bake: 3 * time.Second, Ramp: 10 * time.Second, OnInsufficient: rollout.OnInsufficientProceed,
		Global: s, Regional: mem.New(), Signer: b.signer_, Roots: b.roots,
		Now: func() time.Time { return b.now }, Log: slog.New(slog.DiscardHandler),
	})
	must(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	mirrored := make(chan struct{})
	go func() { defer close(mirrored); c.intent.run(ctx, s) }()
	elected, ended := make(chan *store.Term), make(chan struct{})
	go func() {
		defer close(ended)
		store.Campaign(ctx, s, store.Candidacy{Key: store.KeyLeader, Value: encode(leaderRecord{Form: 1, ID: "eu-west/1"}), TTL: time.Minute}, func(ctx context.Context, t *store.Term) error {
			select {
			case elected <- t:
			case <-ctx.Done():
				return nil
			}
			<-ctx.Done()
			return nil
		})
	}()
	t := &term{Controller: c, Term: <-elected}
	c.intent.see(ctx, store.Revision(t.Epoch))
	return t, func() { cancel(); <-ended; <-mirrored }
}

// publishRoutes gives a configuration of n routes the next number, past the API.
func (b *bench) publishDirect(c *Controller, n int) *versionRecord {
	b.t.Helper()
	cfg, problems := snapshot.Decode([]snapshot.File{{Name: "a", Data: []byte(routesDocument(n))}}, snapshot.Loopback())
	must(b.t, problems.Err())
	rec, err := c.publish(b.t.Context(), publication{build: func(*snapshot.Config, *versionRecord) (*snapshot.Config, error) { return cfg, nil }})
	must(b.t, err)
	return rec
}

// beat lets every node do what the targets in the store say and report it, and time pass.
func (b *bench) beat(c *Controller) {
	b.t.Helper()
	b.now = b.now.Add(time.Second)
	b.seq++
	for _, region := range b.topology.Regions {
		if e, err := b.global.Get(context.Background(), store.KeyTarget(region.ID)); err == nil {
			b.obey(c, region, e.Value)
		}
	}
	for _, cell := range b.topology.Cells() {
		for _, n := range cell.Nodes {
			b.report(c, n.ID)
		}
	}
	var seen []health.Seen
	cfg := c.healthConfig()
	for _, from := range cfg.Vantages {
		for _, cell := range cfg.Cells {
			seen = append(seen, health.Seen{Probe: report.Probe{Form: report.Form, From: from, Cell: cell, OK: true}, Arrived: b.now})
		}
	}
	c.verdicts.step(seen, cfg, b.now)
}

func (b *bench) obey(c *Controller, region cells.Region, envelope []byte) {
	target, err := c.target(envelope)
	must(b.t, err)
	old := b.high[region.ID]
	if target.Epoch < old.Epoch || target.Epoch == old.Epoch && target.Number < old.Number {
		b.t.Fatalf("target of %s went from (%d, %d) back to (%d, %d)", region.ID, old.Epoch, old.Number, target.Epoch, target.Number)
	}
	b.high[region.ID] = *target
	for _, cell := range region.Cells {
		for _, n := range cell.Nodes {
			if v, ok := target.For(n.ID); ok {
				b.served[n.ID] = v.Number
			}
		}
	}
}

func (b *bench) report(c *Controller, id cells.NodeID) {
	n := report.Node{Form: report.Form, ID: id, Boot: "b", Seq: b.seq, Window: time.Second, Ready: true}
	n.Snapshot = report.Snapshot{Known: b.served[id], Stored: b.served[id], Served: b.served[id]}
	c.evidence.Hear(n, nil)
}

func (b *bench) all(version uint64) bool {
	for _, cell := range b.topology.Cells() {
		for _, n := range cell.Nodes {
			if b.served[n.ID] != version {
				return false
			}
		}
	}
	return true
}

// The leader dies at every one of its writes, before and after the write is durable; each time the next leader ends the
// rollout, and no target ever goes back.
func TestRolloutSurvivesTheLeadersDeathAtEveryWrite(t *testing.T) {
	t.Parallel()
	for _, persisted := range []bool{false, true} {
		at := 1
		for newBench(t).rolloutWithDeath(at, persisted) {
			at++
		}
		if at < 15 { // six rings, each with a release, a bake, its end and targets
			t.Errorf("only %d writes in a whole rollout", at-1)
		}
	}
}

// rolloutWithDeath rolls version 2 out with a leader that dies at its write number at; false when there was no such write.
func (b *bench) rolloutWithDeath(at int, persisted bool) bool {
	first, end := b.incumbent(b.global.Join())
	b.publishDirect(first.Controller, 2)
	for range 5 {
		must(b.t, first.stepRollout(context.Background()))
		b.beat(first.Controller)
	}
	if !b.all(1) || first.rolling.state.Phase != rollout.Live {
		b.t.Fatalf("version 1: %v, %s %s", b.served, first.rolling.state.Phase, first.rolling.state.Why)
	}
	b.publishDirect(first.Controller, 3)
	end()

	faulty := &storetest.Faulty{Store: b.global.Join()}
	doomed, end := b.incumbent(faulty)
	faulty.Fail(at, persisted)
	died := false
	for range 80 {
		if err := doomed.stepRollout(context.Background()); errors.Is(err, storetest.ErrFault) {
			died = true
			break
		} else if err != nil {
			b.t.Fatal(err)
		}
		if b.beat(doomed.Controller); !doomed.rolling.state.Active() {
			break
		}
	}
	end()
	next, end := b.incumbent(b.global.Join())
	defer end()
	for range 80 {
		if err := next.stepRollout(context.Background()); err != nil && !errors.Is(err, store.ErrConflict) {
			b.t.Fatal(err)
		}
		if b.beat(next.Controller); b.all(2) && !next.rolling.state.Active() {
			break
		}
	}
	s, _, err := next.rolloutState(context.Background())
	must(b.t, err)
	if !b.all(2) || s.Phase != rollout.Live || s.Stable.Number != 2 {
		b.t.Fatalf("write %d (persisted: %v): %v, %s %s", at, persisted, b.served, s.Phase, s.Why)
	}
	return died
}

func TestRefusedVersionIsRolledBackUnderANewNumberWithTheOldChecksum(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l, end := b.incumbent(b.global.Join())
	defer end()
	one := b.publishDirect(l.Controller, 2)
	for range 30 {
		must(t, l.stepRollout(t.Context()))
		b.beat(l.Controller)
	}
	b.publishDirect(l.Controller, 3)
	for range 120 {
		if err := l.stepRollout(t.Context()); err != nil && !errors.Is(err, store.ErrConflict) {
			t.Fatal(err)
		}
		b.beat(l.Controller)
		for _, cell := range b.topology.Cells() {
			for _, n := range cell.Nodes {
				if b.served[n.ID] == 2 { // it knows the version and will not have it
					b.seq++
					r := report.Node{Form: report.Form, ID: n.ID, Boot: "b", Seq: b.seq, Window: time.Second, Ready: true}
					r.Snapshot = report.Snapshot{Known: 2, Served: 1, Nack: "my own checks fail"}
					l.evidence.Hear(r, nil)
				}
			}
		}
	}
	if !b.all(3) {
		t.Fatalf("served: %v", b.served)
	}
	three, _, err := l.version(t.Context(), 3)
	must(t, err)
	if three.Manifest.Checksum != one.Manifest.Checksum || three.Manifest.RollbackOf != 1 {
		t.Errorf("version 3: %+v", three.Manifest)
	}
	two, _, err := l.version(t.Context(), 2)
	must(t, err)
	if got := l.versionStatus(two); got != "rolled_back" {
		t.Errorf("version 2 is %s", got)
	}
	if got := l.versionStatus(three); got != "live" {
		t.Errorf("version 3 is %s", got)
	}
}

func TestDeposedLeaderChangesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	old, end := b.incumbent(b.global.Join())
	b.publishDirect(old.Controller, 2)
	end()
	next, end := b.incumbent(b.global.Join())
	defer end()
	must(t, next.stepRollout(t.Context()))
	b.publishDirect(next.Controller, 3) // something to do
	before, _, err := b.global.List(t.Context(), "")
	must(t, err)
	old.intent = next.intent // it still reads, and thinks that it leads
	if err := old.stepRollout(t.Context()); !errors.Is(err, store.ErrConflict) {
		t.Errorf("the deposed leader's step: %v", err)
	}
	in, err := old.steerInputs(t.Context(), old.Epoch, b.now)
	must(t, err)
	if _, err := old.stepPlan(t.Context(), in, b.now, true); !errors.Is(err, store.ErrConflict) {
		t.Errorf("the deposed leader's plan: %v", err)
	}
	after, _, err := b.global.List(t.Context(), "")
	must(t, err)
	if hash(before) != hash(after) {
		t.Error("the store has changed")
	}
}

func hash(entries []store.Entry) string {
	h := sha256.New()
	for _, e := range entries {
		fmt.Fprintf(h, "%s %d %s\n", e.Key, e.Modified, e.Value)
	}
	return string(h.Sum(nil))
}

func TestPlansAreKeptWithinTheirBound(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l, end := b.incumbent(b.global.Join())
	defer end()
	l.opt.SteeredNames = []string{"api.gw.test"}
	for i := range keepPlans + 15 {
		b.now = b.now.Add(2 * time.Second)
		l.names = names{}
		l.opt.SteeredNames = append(l.opt.SteeredNames, fmt.Sprintf("n%d.gw.test", i))
		in, err := l.steerInputs(t.Context(), l.Epoch, b.now)
		must(t, err)
		_, err = l.stepPlan(t.Context(), in, b.now, false)
		must(t, err)
	}
	must(t, l.trimHistory(t.Context()))
	kept, _, err := b.global.List(t.Context(), store.PrefixPlans)
	must(t, err)
	p, ok := l.plan()
	if !ok || len(kept) != keepPlans || kept[len(kept)-1].Key != store.KeyPastPlan(p.Epoch, p.Number) {
		t.Errorf("%d plans are kept, the newest is number %d", len(kept), p.Number)
	}
}
