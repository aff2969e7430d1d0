package regionctl

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/regionctl/rollout"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/store/mem"
)

// backup copies everything of a store; restore makes a store of it, whose revisions begin anew, as an etcd of an old
// backup is behind the one that was lost.
func (w *world) backup() []store.Entry {
	w.t.Helper()
	all, _, err := w.global.List(context.Background(), "")
	must(w.t, err)
	return all
}

func (w *world) restore(backup []store.Entry) {
	w.t.Helper()
	w.global = mem.New()
	s := w.global.Join()
	for _, e := range backup {
		if e.Key == store.KeyLeader {
			continue // its lease ran out
		}
		_, err := s.Commit(context.Background(), nil, []store.Op{store.Put(e.Key, e.Value)})
		must(w.t, err)
	}
}

func (w *world) stopAll() {
	for _, r := range w.regions {
		r.stop()
	}
}

func (w *world) publishAndServe(routes int) uint64 {
	w.t.Helper()
	v := w.publishRoutes("eu-west", routes).Version
	w.eventually("every node serves what was published", 10*time.Second, func() bool { return w.allServe(v) })
	return v
}

func (n *node) highest() rollout.Target {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.target
}

// The world publishes 1 to 5, the global store is restored from a backup made at 2: every node goes on with 5, controllers
// say so and publish nothing, and after `recover` numbers go on above 5 and reach every node.
func TestRestoreFromAnOldBackupTakesNothingBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.startAll()
	w.eventually("a leader", 5*time.Second, func() bool { _, ok := w.regions["eu-west"].c.leader(); return ok })
	w.publishAndServe(1)
	w.publishRoutes("eu-west", 2)
	backup := w.backup()
	w.publishRoutes("eu-west", 3)
	w.publishRoutes("eu-west", 4)
	if v := w.publishAndServe(5); v != 5 {
		t.Fatalf("version %d, not 5", v)
	}
	before := map[cells.NodeID]rollout.Target{}
	for _, n := range w.nodes {
		before[n.id] = n.highest()
	}
	w.stopAll()
	w.restore(backup)
	for _, r := range w.topology.Regions {
		w.start(r.ID)
	}

	w.eventually("controllers say that the store went back", 10*time.Second, func() bool {
		for _, r := range w.topology.Regions {
			var s Status
			if code, _ := w.ask(r.ID, "GET", "/v1/status", nil, &s); code != http.StatusOK || !strings.Contains(strings.Join(s.Warnings, "\n"), "went back") {
				return false
			}
		}
		return true
	})
	if _, f := w.publish("us-east", PublishRequest{Files: []PublishFile{{Name: "a.yaml", Data: routesDocument(6)}}, Confirm: true}); f == nil || f.Reason != "store_went_back" {
		t.Fatalf("a store that went back gave out a number: %v", f)
	}
	for _, n := range w.nodes {
		if n.serves() != 5 {
			t.Fatalf("%s went back to %d", n.id, n.serves())
		}
	}

	var r Recovered
	if code, f := w.ask("us-east", "POST", "/v1/recovery", RecoverRequest{}, &r); code != http.StatusConflict || !f.Refused || f.Flag != "--confirm" {
		t.Fatalf("without --confirm: %d %v", code, f)
	}
	w.eventually("both controllers hear each other", 5*time.Second, func() bool {
		code, f := w.ask("us-east", "POST", "/v1/recovery", RecoverRequest{Confirm: true, Reason: "test"}, &r)
		if f != nil && f.Reason != "unheard" {
			t.Fatalf("recover: %d %v", code, f)
		}
		return f == nil
	})
	if r.Head != 5 || r.StoreHead != 2 || len(r.Adopted) != 1 || r.Adopted[0] != 5 || r.Contents != 5 {
		t.Fatalf("recovered: %+v", r)
	}
	if v := w.publishAndServe(6); v != 6 {
		t.Fatalf("the next version is %d", v)
	}
	for _, n := range w.nodes {
		old, now := before[n.id], n.highest()
		if now.Epoch <= old.Epoch || now.Head < 6 {
			t.Errorf("%s: target went from (%d, %d) to (%d, %d)", n.id, old.Epoch, old.Number, now.Epoch, now.Number)
		}
	}
	if s := w.status("eu-west"); strings.Contains(strings.Join(s.Warnings, "\n"), "went back") {
		t.Errorf("still told: %q", s.Warnings)
	}
	var versions []Version
	w.ask("eu-west", "GET", "/v1/config/versions", nil, &versions)
	if len(versions) != 4 || versions[2].Number != 5 { // 1, 2, 5, 6
		t.Errorf("versions: %+v", versions)
	}
}

// Controllers that live on see it too, and when no copy has the contents of the highest number, it is still not given out again.
func TestRecoveryWithoutCopiesNumbersOnAboveWhatNodesSay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.startAll()
	w.publishAndServe(1)
	backup := w.backup()
	w.publishRoutes("eu-west", 2)
	w.publishAndServe(3)
	w.stopAll()
	w.restore(backup)
	for _, r := range w.topology.Regions {
		w.regions[r.ID].regional = mem.New()
		w.start(r.ID)
	}
	var r Recovered
	w.eventually("a recovery that knows what nodes serve", 10*time.Second, func() bool {
		code, f := w.ask("eu-west", "POST", "/v1/recovery", RecoverRequest{DryRun: true}, &r)
		return code == http.StatusOK && f == nil && r.Head == 3
	})
	if code, f := w.ask("eu-west", "POST", "/v1/recovery", RecoverRequest{Confirm: true, Force: true}, &r); code != http.StatusOK {
		t.Fatalf("recover: %d %v", code, f)
	}
	if r.Contents != 1 || len(r.Warnings) == 0 {
		t.Errorf("recovered: %+v", r)
	}
	if v := w.publishAndServe(4); v != 4 {
		t.Fatalf("the next version is %d", v)
	}
}

// A controller that is cut off from the global store hears from the others what is published there. Its mirror is behind
// then, but nobody has restored anything.
func TestACutOffControllerDoesNotSayThatTheStoreWentBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	gate := &gated{Store: b.global.Join()}
	c, end := b.incumbent(gate)
	defer end()
	b.publishDirect(c.Controller, 1)
	shown, _ := c.shown()
	says := func() string {
		for range 2 {
			if c.compareLineage(b.now) {
				c.confirmLineage(t.Context())
			}
			b.now = b.now.Add(2 * lineagePatience)
		}
		return c.lineage.told()
	}
	if why := says(); why != "" {
		t.Fatalf("at first: %s", why)
	}
	gate.lost.Store(true)
	c.lineage.mu.Lock()
	c.lineage.most.raise(shown.Epoch+5, shown.Head+1) // as others tell
	c.lineage.mu.Unlock()
	if why := says(); why != "" {
		t.Errorf("while it is cut off: %s", why)
	}
	gate.lost.Store(false) // the store answers, and knows no more than before
	if why := says(); !strings.Contains(why, "went back") {
		t.Errorf("the store is behind and it says %q", why)
	}
}
