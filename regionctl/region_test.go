package regionctl

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/health"
	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/trust"
)

// gated is a store that can be lost: calls fail, watches stay silent.
type gated struct {
	store.Store
	lost atomic.Bool
	slow atomic.Int64 // nanoseconds that every commit waits for the disk
}

var errLost = errors.New("the store is gone")

func (g *gated) Get(ctx context.Context, key string) (store.Entry, error) {
	if g.lost.Load() {
		return store.Entry{}, errLost
	}
	return g.Store.Get(ctx, key)
}

func (g *gated) List(ctx context.Context, prefix string) ([]store.Entry, store.Revision, error) {
	if g.lost.Load() {
		return nil, 0, errLost
	}
	return g.Store.List(ctx, prefix)
}

func (g *gated) Keys(ctx context.Context, prefix string) ([]store.Entry, store.Revision, error) {
	if g.lost.Load() {
		return nil, 0, errLost
	}
	return g.Store.Keys(ctx, prefix)
}

func (g *gated) Commit(ctx context.Context, conds []store.Cond, ops []store.Op) (store.Revision, error) {
	if g.lost.Load() {
		return 0, errLost
	}
	if !pause.For(ctx, time.Duration(g.slow.Load())) {
		return 0, ctx.Err()
	}
	return g.Store.Commit(ctx, conds, ops)
}

func (g *gated) Lease(ctx context.Context, ttl time.Duration) (store.Lease, error) {
	if g.lost.Load() {
		return nil, errLost
	}
	return g.Store.Lease(ctx, ttl)
}

func (g *gated) Watch(ctx context.Context, prefix string) <-chan store.Event {
	out := make(chan store.Event)
	go func() {
		defer close(out)
		for g.lost.Load() {
			if !pause.For(ctx, 20*time.Millisecond) {
				return
			}
		}
		for ev := range g.Store.Watch(ctx, prefix) {
			select {
			case out <- ev:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

func TestAControllerThatKnowsNothingYetDoesNotSayVersionZero(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.globalGate = &gated{Store: w.global.Join()}
	w.globalGate.lost.Store(true)
	w.start("eu-west")
	for _, path := range []string{"/v1/status", "/v1/config/versions", "/v1/config/versions/latest", "/v1/rollouts", "/v1/rollouts/current"} {
		if code, f := w.ask("eu-west", "GET", path, nil, nil); code != 503 || f.Reason != "starting" {
			t.Errorf("%s of a blind controller: %d %v", path, code, f)
		}
	}
	w.globalGate.lost.Store(false)
	w.eventually("status is answered", 5*time.Second, func() bool {
		code, _ := w.ask("eu-west", "GET", "/v1/status", nil, nil)
		return code == 200
	})
}

// A region whose controller starts while the global store is gone serves a new node from its own copy.
func TestRegionGoesOnWithItsCopyWhileTheGlobalStoreIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.start("eu-west")
	w.start("us-east")
	for _, c := range w.topology.Cells() {
		for _, n := range c.Nodes {
			w.startNode(n.ID)
		}
	}
	w.publishRoutes("eu-west", 5)
	w.eventually("version 1 everywhere", 10*time.Second, func() bool {
		for _, n := range w.nodes {
			if n.serves() != 1 {
				return false
			}
		}
		return true
	})
	w.regions["us-east"].stop()
	r.stop()
	w.globalGate = &gated{Store: w.global.Join()}
	w.globalGate.lost.Store(true)
	w.start("eu-west")
	fresh := w.startNode("eu-west/a/1") // an empty disk: it asks for everything
	w.eventually("a new node serves the copy", 15*time.Second, func() bool { return fresh.serves() == 1 })
	code, f := w.ask("eu-west", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a", Reason: "x"}, nil)
	if code != 503 && code != 500 {
		t.Errorf("an order without the global store: %d %v", code, f)
	}
	w.eventually("status says so, and which version the nodes know", 5*time.Second, func() bool {
		var s Status
		code, _ := w.ask("eu-west", "GET", "/v1/status", nil, &s)
		return code == 200 && len(s.Warnings) >= 2 && s.Version == 1
	})
	w.globalGate.lost.Store(false)
	w.eventually("it leads again", 10*time.Second, func() bool { return w.regions["eu-west"].c.leading.Load() })
	if p := w.publishRoutes("eu-west", 6); p.Version != 2 {
		t.Errorf("published %d", p.Version)
	}
}

func TestAnotherControllerLeadsWhenTheLeaderStopsAndEndsItsRollout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.startAll()
	w.publishRoutes("eu-west", 3)
	w.eventually("version 1 everywhere", 10*time.Second, func() bool { return w.allServe(1) })
	leader, other := w.regions["eu-west"], w.regions["us-east"]
	if other.c.leading.Load() {
		leader, other = other, leader
	}
	// On a busy machine a rollout may be over before anybody looks; then there is another one.
	newest := w.publishRoutes(other.id, 4).Version
	w.eventually("a rollout is under way", 10*time.Second, func() bool {
		s := w.status(other.id)
		if s.Rollout == nil && s.Version == newest && w.allServe(newest) {
			newest = w.publishRoutes(other.id, int(newest)+3).Version
		}
		return s.Rollout != nil && s.Rollout.State == "baking"
	})
	leader.stop()
	w.eventually("another leads", 10*time.Second, func() bool { return other.c.leading.Load() })
	w.eventually("its rollout ends", 30*time.Second, func() bool {
		s := w.status(other.id)
		for _, n := range w.nodes {
			if n.serves() != newest {
				return false
			}
		}
		return s.Rollout == nil
	})
	for _, r := range w.status(other.id).Regions {
		if r.ID == leader.id && r.Leader {
			t.Error("status still names the old leader")
		}
	}
}

// Where clients are sent doesn't depend on the region's store: its routers get new plans while it is gone.
func TestRoutersGetNewPlansWhileTheRegionsStoreIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gate := &gated{Store: w.regions["eu-west"].regional.Join()}
	w.regions["eu-west"].gate = gate
	w.start("eu-west")
	var number, orders, verdicts atomic.Uint64
	c := nodeapi.NewClient(nodeapi.Options{
		Controllers: w.controllers("eu-west"), TLS: trust.ClientTLS(w.signer(trust.RoleRouter, "eu-west/1"), w.roots, trust.RoleController),
		Hello: func() *nodeapi.Hello { return &nodeapi.Hello{Boot: "r"} },
		Receive: func(d *nodeapi.Down) {
			switch m := d.Message.(type) {
			case *nodeapi.Down_Plan:
				raw, _, err := w.roots.Verify(trust.KindPlan, m.Plan.Envelope, time.Now(), trust.RoleController)
				if err != nil {
					t.Error(err)
				}
				if p, err := steer.DecodePlan(raw); err != nil || p.Number <= number.Swap(p.Number) {
					t.Errorf("plan %v, %v", p, err)
				}
			case *nodeapi.Down_Overrides:
				orders.Add(1)
			case *nodeapi.Down_Verdicts:
				raw, _, err := w.roots.Verify(trust.KindVerdicts, m.Verdicts.Envelope, time.Now(), trust.RoleController)
				var v health.Verdicts
				if err == nil {
					err = json.Unmarshal(raw, &v)
				}
				if _, known := v.Cells["eu-west/a"]; err != nil || v.Form != health.VerdictsForm || !known {
					t.Errorf("verdicts %+v, %v", v, err)
				}
				verdicts.Add(1)
			case *nodeapi.Down_Target:
				t.Error("a router got a target")
			}
		},
	})
	w.background(c.Run)
	w.eventually("a first plan", 10*time.Second, func() bool { return number.Load() > 0 && orders.Load() == 1 })
	gate.lost.Store(true)
	before := number.Load()
	if code, f := w.ask("eu-west", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a", Reason: "x", Over: "0s", Force: true}, nil); code != 200 {
		t.Fatal(f)
	}
	w.eventually("the plan without the cell", 10*time.Second, func() bool { return number.Load() > before && orders.Load() == 2 })
	heard := verdicts.Load()
	w.eventually("verdicts go on coming although none changes", 10*time.Second, func() bool { return verdicts.Load() >= heard+3 })
}
