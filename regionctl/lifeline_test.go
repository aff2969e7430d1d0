package regionctl

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/report"
	"github.com/cellgate/cellgate/store"
)

// cutOff is a running world whose global store can be taken away from all controllers, and every region's from its own.
func cutOff(t *testing.T) *world {
	w := newWorld(t)
	w.globalGate = &gated{Store: w.global.Join()}
	for _, r := range w.regions {
		r.gate = &gated{Store: r.regional.Join()}
	}
	w.startAll()
	w.planned(5 * time.Second)
	w.eventually("every controller has seen its stores and processes", 5*time.Second, func() bool {
		for _, r := range w.regions {
			if !r.c.intent.ready() || !r.c.copied.ready() || len(r.c.nodes.Attached()) < 5 { // four nodes and a prober
				return false
			}
		}
		return true
	})
	return w
}

// lose takes the global store away, and waits until the controllers know.
func (w *world) lose(on bool) {
	w.globalGate.lost.Store(on)
	w.eventually("the controllers know about the store", 8*time.Second, func() bool {
		for _, r := range w.regions {
			if r.c.globalSeen.lost.Load() != on {
				return false
			}
		}
		return true
	})
}

func (n *node) evacuated(now time.Time) map[cells.CellID]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := map[cells.CellID]bool{}
	for _, e := range n.orders {
		if e.Standing(now) {
			out[e.Cell] = true
		}
	}
	return out
}

// everyNode waits until each node's orders are as said, and gives the time that it took.
func (w *world) everyNode(what string, limit time.Duration, ok func(*node) bool) time.Duration {
	w.t.Helper()
	began := time.Now()
	w.eventually(what, limit, func() bool {
		for _, n := range w.nodes {
			if !ok(n) {
				return false
			}
		}
		return true
	})
	return time.Since(began)
}

func (w *world) cellState(at cells.RegionID, id cells.CellID) cells.State {
	for _, c := range w.status(at).Cells {
		if c.ID == id {
			return c.State
		}
	}
	return ""
}

func TestEvacuationNeedsNeitherLeaderNorGlobalStore(t *testing.T) {
	t.Parallel()
	w := cutOff(t)
	w.lose(true)
	began := time.Now()
	code, f := w.ask("us-east", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a", Reason: "fire"}, nil)
	if code != 503 || !strings.Contains(f.Detail, "--break-glass") || time.Since(began) > slack*3*time.Second {
		t.Errorf("without breaking the glass: %d %v after %v", code, f, time.Since(began))
	}
	var e Evacuated
	req := EvacuateRequest{What: "eu-west/a", Reason: "fire", Over: "0s", Expires: "1h", BreakGlass: true}
	if code, f = w.ask("us-east", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a", BreakGlass: true}, nil); code != 400 {
		t.Errorf("without a reason: %d %v", code, f)
	}
	if code, f = w.ask("us-east", "POST", "/v1/evacuations", req, &e); code != 200 || e.Path != PathRegional || len(e.Reached) != 2 {
		t.Fatalf("%d %v %+v", code, f, e)
	}
	for _, r := range e.Reached {
		if !r.Taken || !r.Stored {
			t.Errorf("%+v", r)
		}
	}
	w.everyNode("every node knows", 2*time.Second, func(n *node) bool { return n.evacuated(time.Now())["eu-west/a"] })
	for id := range w.regions {
		if s := w.cellState(id, "eu-west/a"); s != cells.Evacuated {
			t.Errorf("%s says the cell is %s", id, s)
		}
	}
	var audit []AuditEntry
	if w.ask("us-east", "GET", "/v1/audit", nil, &audit); len(audit) == 0 || audit[0].What != "evacuate (break glass, regional)" || audit[0].Why != "fire" {
		t.Errorf("audit: %+v", audit)
	}

	// The store returns: it is told once, and the leader and its rollouts know.
	w.lose(false)
	global := func() []cells.Evacuation { return w.regions["eu-west"].c.globalOrders() }
	w.eventually("the global store knows", 10*time.Second, func() bool { g := global(); return len(g) == 1 && g[0].Standing(time.Now()) })
	guard, err := w.global.Join().Get(t.Context(), store.KeyGuard)
	must(t, err)
	time.Sleep(2500 * time.Millisecond)
	again, err := w.global.Join().Get(t.Context(), store.KeyGuard)
	must(t, err)
	if again.Modified != guard.Modified {
		t.Errorf("what was reconciled is written again and again: revision %d, then %d", guard.Modified, again.Modified)
	}
	w.eventually("the audit is forwarded", 5*time.Second, func() bool {
		entries, _, err := w.global.Join().List(t.Context(), store.PrefixAudit)
		return err == nil && contains(entries, "break glass, regional")
	})

	// Restored once, it stays restored: no region brings it back.
	if code, f := w.ask("eu-west", "POST", "/v1/restorations", RestoreRequest{What: "eu-west/a"}, &e); code != 200 || e.Path != PathGlobal {
		t.Fatalf("restore: %d %v %+v", code, f, e)
	}
	w.everyNode("every node knows of the restoration", 2*time.Second, func(n *node) bool { return !n.evacuated(time.Now())["eu-west/a"] })
	w.eventually("the order is forgotten", 10*time.Second, func() bool { return len(global()) == 0 })
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if g := global(); len(g) != 0 || w.regions["us-east"].c.evacuations() != nil && w.cellState("us-east", "eu-west/a") == cells.Evacuated {
			t.Fatalf("the order is back: %+v", g)
		}
	}
}

func contains(entries []store.Entry, word string) bool {
	for _, e := range entries {
		if strings.Contains(string(e.Value), word) {
			return true
		}
	}
	return false
}

func TestRestorationNeedsNeitherLeaderNorGlobalStore(t *testing.T) {
	t.Parallel()
	w := cutOff(t)
	if code, f := w.ask("eu-west", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a", Reason: "x", Over: "0s", BreakGlass: true}, nil); code != 200 {
		t.Fatal(f)
	}
	w.everyNode("every node knows", 2*time.Second, func(n *node) bool { return n.evacuated(time.Now())["eu-west/a"] })
	w.lose(true)
	var e Evacuated
	if code, f := w.ask("us-east", "POST", "/v1/restorations", RestoreRequest{What: "eu-west/a"}, &e); code != 200 || e.Path != PathRegional {
		t.Fatalf("%d %v %+v", code, f, e)
	}
	w.everyNode("every node knows of the restoration", 2*time.Second, func(n *node) bool { return !n.evacuated(time.Now())["eu-west/a"] })
	w.lose(false)
	w.eventually("the global store knows of the restoration", 10*time.Second, func() bool {
		g := w.regions["eu-west"].c.globalOrders()
		return len(g) == 0 || !g[0].Standing(time.Now())
	})
	if s := w.cellState("eu-west", "eu-west/a"); s == cells.Evacuated || s == cells.Evacuating {
		t.Errorf("the cell is %s after everything is back", s)
	}
}

// With every store gone, the order lives in the controllers' memory and on the nodes' disks, and is stored when they return.
func TestOrdersAndDenialsNeedNoStoreAtAll(t *testing.T) {
	t.Parallel()
	w := cutOff(t)
	for _, r := range w.regions {
		r.gate.lost.Store(true)
	}
	w.lose(true)
	var e Evacuated
	w.eventually("both regions take the order", 5*time.Second, func() bool {
		code, f := w.ask("us-east", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/b", Reason: "x", Over: "0s", BreakGlass: true}, &e)
		if code != 200 || e.Reached[0].Stored || e.Reached[1].Stored {
			t.Fatalf("%d %v %+v", code, f, e)
		}
		return e.Reached[0].Taken && e.Reached[1].Taken
	})
	var d Denied
	if code, f := w.ask("eu-west", "POST", "/v1/denials", DenyRequest{Kind: "user", ID: "mallory", Reason: "x"}, &d); code != 200 || d.Reached[0].Stored {
		t.Fatalf("%d %v %+v", code, f, d)
	}
	took := w.everyNode("every node knows both", 2*time.Second, func(n *node) bool { return n.evacuated(time.Now())["eu-west/b"] && n.denies("mallory") })
	t.Logf("known to %d nodes after %v", len(w.nodes), took)
	for _, r := range w.regions {
		r.gate.lost.Store(false)
	}
	w.eventually("the regions' stores know", 10*time.Second, func() bool {
		for _, r := range w.regions {
			entry, err := r.regional.Join().Get(t.Context(), store.KeyCopyOrders)
			denied, _, err2 := r.regional.Join().List(t.Context(), store.PrefixDenied)
			if err != nil || err2 != nil || !strings.Contains(string(entry.Value), "eu-west/b") || len(denied) != 1 {
				return false
			}
		}
		return true
	})
	// A controller that starts with nothing but its region's store goes on with both.
	w.regions["us-east"].stop()
	w.start("us-east")
	w.eventually("the new controller knows", 5*time.Second, func() bool {
		var list Denials
		w.ask("us-east", "GET", "/v1/denials", nil, &list)
		order, _ := w.regions["us-east"].c.order("eu-west/b")
		return len(list.Entries) == 1 && order.Standing(time.Now())
	})
}

// Controllers that start while no store answers know less than the nodes: they take nothing away by what they don't say, and end
// what they never heard of when they are told to.
func TestControllersThatStartWithoutStoresEndNothingUnasked(t *testing.T) {
	t.Parallel()
	w := cutOff(t)
	for _, r := range w.regions {
		r.gate.lost.Store(true)
	}
	w.lose(true)
	req := EvacuateRequest{What: "eu-west/b", Reason: "flood", Over: "0s", BreakGlass: true}
	if code, f := w.ask("us-east", "POST", "/v1/evacuations", req, nil); code != 200 {
		t.Fatal(code, f)
	}
	deny := DenyRequest{Kind: "user", ID: "mallory", Reason: "x"}
	if code, f := w.ask("us-east", "POST", "/v1/denials", deny, nil); code != 200 {
		t.Fatal(code, f)
	}
	held := func(n *node) bool { return n.evacuated(time.Now())["eu-west/b"] && n.denies("mallory") }
	w.everyNode("every node knows both", 2*time.Second, held)
	for id, r := range w.regions {
		r.stop()
		w.start(id)
	}
	w.eventually("the nodes are attached to the new controllers", 10*time.Second, func() bool {
		for _, r := range w.regions {
			if len(r.c.nodes.Attached()) < 5 {
				return false
			}
		}
		return true
	})
	req.What, req.Reason = "us-east/b", "another"
	if code, f := w.ask("eu-west", "POST", "/v1/evacuations", req, nil); code != 200 {
		t.Fatal(code, f)
	}
	w.everyNode("every node knows the new order, too", 2*time.Second, func(n *node) bool { return n.evacuated(time.Now())["us-east/b"] })
	w.everyNode("nobody has forgotten", 2*time.Second, held)

	var e Evacuated
	if code, f := w.ask("eu-west", "POST", "/v1/restorations", RestoreRequest{What: "eu-west/b"}, &e); code != 200 || len(e.Warnings) != 2 {
		t.Fatalf("%d %v %+v", code, f, e)
	}
	var d Denied
	if code, f := w.ask("eu-west", "POST", "/v1/denials:remove", deny, &d); code != 200 || len(d.Warnings) != 1 {
		t.Fatalf("%d %v %+v", code, f, d)
	}
	w.everyNode("both are ended", 2*time.Second, func(n *node) bool {
		return !n.evacuated(time.Now())["eu-west/b"] && n.evacuated(time.Now())["us-east/b"] && !n.denies("mallory")
	})
	for _, r := range w.regions {
		r.gate.lost.Store(false)
	}
	w.eventually("the lists are whole again", 10*time.Second, func() bool {
		for _, r := range w.regions {
			if !r.c.copied.ready() {
				return false
			}
		}
		return true
	})
	if code, _ := w.ask("eu-west", "POST", "/v1/denials:remove", DenyRequest{Kind: "user", ID: "nobody", Reason: "x"}, nil); code != 404 {
		t.Errorf("a removal of nothing: %d", code)
	}
	if code, _ := w.ask("eu-west", "POST", "/v1/restorations", RestoreRequest{What: "eu-west/a"}, nil); code == 200 {
		t.Error("a restoration of nothing is taken")
	}
}

// An order that would be lost with the controller that took it is not said to hold.
func TestAnOrderThatNobodyKeepsIsNotTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.globalGate = &gated{Store: w.global.Join()}
	w.globalGate.lost.Store(true)
	r := w.regions["eu-west"]
	r.gate = &gated{Store: r.regional.Join()}
	r.gate.lost.Store(true)
	w.start("eu-west")
	deny := DenyRequest{Kind: "user", ID: "mallory", Reason: "x"}
	orders := map[string]any{"/v1/denials": deny, "/v1/evacuations": EvacuateRequest{What: "eu-west/a", Reason: "x", Over: "0s", BreakGlass: true}}
	for path, order := range orders {
		if code, f := w.send(w.request("eu-west", "POST", path, order), nil); code != 503 || f.Reason != "not_kept" {
			t.Errorf("%s with no store, no other region and no node: %d %v", path, code, f)
		}
	}
	restore := RestoreRequest{What: "eu-west/a"}
	for range 2 { // what was said to nobody may be said again, as the answer asks
		if code, f := w.send(w.request("eu-west", "POST", "/v1/restorations", restore), nil); code != 503 || f.Reason != "not_kept" {
			t.Errorf("a restoration: %d %v", code, f)
		}
	}
	n := w.startNode("eu-west/a/1")
	w.eventually("the order holds once a node is there", 10*time.Second, func() bool {
		code, _ := w.ask("eu-west", "POST", "/v1/denials", deny, nil)
		return code == 200
	})
	w.eventually("the node knows", 2*time.Second, func() bool { return n.denies("mallory") })
	if code, f := w.ask("eu-west", "POST", "/v1/restorations", restore, nil); code != 200 {
		t.Errorf("restoring once a node is there: %d %v", code, f)
	}
}

func (n *node) denies(user string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return denylist.Compile(denylist.Live(n.denied, time.Now())).User("", user)
}

// Two operators who can each reach both regions meet in the first of them, whomever they ask.
func TestTwoOperatorsCannotEmptyTheWorldThroughTheRegions(t *testing.T) {
	t.Parallel()
	w := cutOff(t)
	w.lose(true)
	var wg sync.WaitGroup
	all := w.topology.Cells()
	codes := make([]int, len(all))
	for i, cell := range all {
		region := w.topology.Regions[(i+1)%2].ID
		wg.Go(func() {
			codes[i], _ = w.ask(region, "POST", "/v1/evacuations", EvacuateRequest{What: string(cell.ID), Reason: "x", Force: true, BreakGlass: true, Over: "0s"}, nil)
		})
	}
	wg.Wait()
	refused := 0
	for _, code := range codes {
		if code == 409 {
			refused++
		}
	}
	for id := range w.regions {
		usable := 0
		for _, c := range w.status(id).Cells {
			if c.State == cells.Active {
				usable++
			}
		}
		if refused != 1 || usable != 1 {
			t.Errorf("answers %v, %s sees %d cells usable", codes, id, usable)
		}
	}
	// More than half at once needs --force even behind the glass.
	for _, cell := range all {
		w.ask("eu-west", "POST", "/v1/restorations", RestoreRequest{What: string(cell.ID)}, nil)
	}
	w.ask("eu-west", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west", Reason: "x", BreakGlass: true}, nil)
	code, f := w.ask("us-east", "POST", "/v1/evacuations", EvacuateRequest{What: "us-east/a", Reason: "x", BreakGlass: true}, nil)
	if code != 409 || f.Reason != "max_share" || f.Flag != "--force" {
		t.Errorf("three of four cells: %d %+v", code, f)
	}
}

// A region's clock may be ahead of the one where the order is ended.
func TestOrdersOfAClockThatIsAheadCanBeEnded(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	c, ahead := w.regions["eu-west"].c, time.Now().UTC().Add(30*time.Second)
	c.ledger.add([]cells.Evacuation{{Form: 1, Cell: "eu-west/a", Reason: "x", Started: ahead, Expires: ahead.Add(time.Hour)}},
		[]denylist.Entry{{Kind: denylist.User, ID: "ann", Reason: "x", At: ahead, Expires: ahead.Add(time.Hour)}}, time.Now())
	if code, f := w.ask("eu-west", "POST", "/v1/restorations", RestoreRequest{What: "eu-west/a"}, nil); code != 200 {
		t.Fatal(f)
	}
	if code, f := w.ask("eu-west", "POST", "/v1/denials:remove", DenyRequest{Kind: "user", ID: "ann", Reason: "x"}, nil); code != 200 {
		t.Fatal(f)
	}
	for _, e := range c.evacuations() {
		if e.Standing(time.Now()) {
			t.Errorf("it stands still: %+v", e)
		}
	}
	if n := c.ledger.size(time.Now()); n != 0 {
		t.Errorf("%d denials are left", n)
	}
	if code, f := w.ask("eu-west", "POST", "/v1/denials", DenyRequest{Kind: "user", ID: "ann", Reason: "again"}, nil); code != 200 || c.ledger.size(time.Now()) != 1 {
		t.Errorf("denied again: %v, %d denials", f, c.ledger.size(time.Now()))
	}
}

// history records what concurrent operators asked and were answered.
type history struct {
	mu    sync.Mutex
	start time.Time
	ops   []porcupine.Operation
}

type askedOf struct {
	evacuate bool
	cell     int
}

// evacuationModel is one operator after the other: the state is the set of evacuated cells of n, and the last one stays.
// Through several regions, two who restore a cell at once may both be told that they did.
func evacuationModel(n int, once bool) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return 0 },
		Step: func(state, input, output any) (bool, any) {
			set, in, taken := state.(int), input.(askedOf), output.(bool)
			bit := 1 << in.cell
			if in.evacuate {
				allowed := (set|bit)^(1<<n-1) != 0
				if taken {
					return allowed, set | bit
				}
				return !allowed, set
			}
			if taken {
				return set&bit != 0 || !once, set &^ bit
			}
			return set&bit == 0, set
		},
	}
}

func (h *history) run(w *world, client int, region cells.RegionID, in askedOf, cell cells.CellID) {
	call := time.Since(h.start).Nanoseconds()
	var code int
	if in.evacuate {
		code, _ = w.ask(region, "POST", "/v1/evacuations", EvacuateRequest{What: string(cell), Reason: "x", Over: "0s", Force: true, BreakGlass: true}, nil)
	} else {
		var e Evacuated
		code, _ = w.ask(region, "POST", "/v1/restorations", RestoreRequest{What: string(cell)}, &e)
		if code == 200 && len(e.Warnings) > 0 && strings.Contains(strings.Join(e.Warnings, " "), "already") {
			code = 409 // nothing was there to restore
		}
	}
	if code != 200 && code != 409 {
		w.t.Errorf("%+v of %s: %d", in, cell, code)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: code == 200, Return: time.Since(h.start).Nanoseconds()})
}

// Operators at both regions order and restore at once. Whatever they were answered must have an order one after the other in
// which the safety rule held at every step.
func TestConcurrentOrdersAreLinearizable(t *testing.T) {
	t.Parallel()
	for name, through := range map[string]int{"global store": 0, "through one region": 1, "through both regions": 2} {
		t.Run(name, func(t *testing.T) {
			w := cutOff(t)
			if through > 0 {
				w.lose(true)
			}
			h, all := &history{start: time.Now()}, w.topology.Cells()
			var wg sync.WaitGroup
			for client := range 4 {
				wg.Go(func() {
					for i := range 6 {
						region := w.topology.Regions[client%2].ID
						if through == 1 {
							region = "us-east"
						}
						cell := (client + i*3) % len(all)
						h.run(w, client, region, askedOf{evacuate: (client+i)%3 != 2, cell: cell}, all[cell].ID)
					}
				})
			}
			wg.Wait()
			if len(h.ops) < 20 {
				t.Fatalf("only %d operations", len(h.ops))
			}
			if got := porcupine.CheckOperationsTimeout(evacuationModel(len(all), through < 2), h.ops, 20*time.Second); got != porcupine.Ok {
				t.Errorf("the history is %s: %+v", got, h.ops)
			}
		})
	}
}

func TestADenialReachesEveryNodeWithinTwoSecondsWithoutGlobalStore(t *testing.T) {
	t.Parallel()
	w := cutOff(t)
	w.lose(true)
	var d Denied
	if code, f := w.ask("eu-west", "POST", "/v1/denials", DenyRequest{Kind: "user", ID: "ann", Reason: "x", Region: "us-east"}, &d); code != 200 {
		t.Fatal(f)
	}
	for _, r := range d.Reached { // who says that he has stored it has
		entries, _, err := w.regions[r.Region].regional.Join().List(t.Context(), store.PrefixDenied)
		if err != nil || r.Stored != (len(entries) == 1) || !r.Stored {
			t.Errorf("%+v: %d entries in the region's store, %v", r, len(entries), err)
		}
	}
	took := w.everyNode("the nodes of the region know", 2*time.Second, func(n *node) bool { return n.denies("ann") == (n.id.Region() == "us-east") })
	t.Logf("us-east knows after %v, ordered at eu-west", took)
	if code, f := w.ask("us-east", "POST", "/v1/denials", DenyRequest{Kind: "user", ID: "bob", Reason: "x"}, &d); code != 200 || d.Entry.Expires.Sub(d.Entry.At) != unbounded {
		t.Fatalf("%v %+v", f, d)
	}
	w.everyNode("all nodes know", 2*time.Second, func(n *node) bool { return n.denies("bob") })
	if code, f := w.ask("eu-west", "POST", "/v1/denials:remove", DenyRequest{Kind: "user", ID: "bob", Reason: "mistake"}, &d); code != 200 || !d.Entry.Removed {
		t.Fatal(f)
	}
	w.everyNode("all nodes know of the removal", 2*time.Second, func(n *node) bool { return !n.denies("bob") })
	if code, f := w.ask("eu-west", "POST", "/v1/denials:remove", DenyRequest{Kind: "user", ID: "bob", Reason: "mistake"}, nil); code != 200 {
		t.Errorf("said again, as one must who was told that nobody kept it: %v", f)
	}
	var list Denials
	if w.ask("us-east", "GET", "/v1/denials?region=us-east", nil, &list); len(list.Entries) != 1 || list.Entries[0].ID != "ann" {
		t.Errorf("%+v", list)
	}
	if w.ask("us-east", "GET", "/v1/denials?region=eu-west", nil, &list); len(list.Entries) != 0 {
		t.Errorf("%+v", list)
	}
	var audit []AuditEntry
	if w.ask("us-east", "GET", "/v1/audit", nil, &audit); len(audit) == 0 || audit[0].What != "deny" || audit[0].On != "user bob" {
		t.Errorf("audit: %+v", audit)
	}
	before := time.Now()
	w.everyNode("beats come", 20*time.Second, func(n *node) bool { n.mu.Lock(); defer n.mu.Unlock(); return n.beat.After(before) })
}

func TestDenialsThatCannotBeAreRefused(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	c := w.regions["eu-west"].c
	for _, bad := range []DenyRequest{
		{Kind: "ip", ID: "1.2.3.4", Reason: "x"}, {Kind: "user", Reason: "x"}, {Kind: "user", ID: "a"}, {Kind: "key", ID: "cg_secret", Reason: "x"},
		{Kind: "user", ID: "a", Reason: "x", For: "-1h"}, {Kind: "user", ID: "a", Reason: "x", For: "ever"}, {Kind: "user", ID: "a", Reason: "x", For: "999999h"},
		{Kind: "route", ID: "r", Issuer: "https://i", Reason: "x"}, {Kind: "user", ID: "a", Reason: "x", For: "1ns"},
	} {
		if code, f := w.ask("eu-west", "POST", "/v1/denials", bad, nil); code != 400 {
			t.Errorf("%+v: %d %v", bad, code, f)
		}
	}
	if code, f := w.ask("eu-west", "POST", "/v1/denials", DenyRequest{Kind: "user", ID: "a", Reason: "x", Region: "mars"}, nil); code != 404 {
		t.Errorf("%d %v", code, f)
	}
	if code, f := w.ask("eu-west", "POST", "/v1/denials:remove", DenyRequest{Kind: "user", ID: "a", Reason: "x"}, nil); code != 404 {
		t.Errorf("%d %v", code, f)
	}
	hear := func(busy report.Busy) {
		c.evidence.Hear(report.Node{Form: report.Form, ID: "eu-west/a/1", Boot: "x", Seq: uint64(time.Now().UnixNano()), Window: time.Second, Busy: busy}, nil)
	}
	route := DenyRequest{Kind: "route", ID: "orders", Reason: "x"}
	if code, f := w.ask("eu-west", "POST", "/v1/denials", route, nil); code != 409 || f.Reason != "route_traffic_unknown" || f.Flag != "--confirm" {
		t.Errorf("unknown traffic: %d %+v", code, f)
	}
	hear(report.Busy{Requests: 1000, Routes: map[string]uint64{"orders": 11}})
	if code, f := w.ask("eu-west", "POST", "/v1/denials", route, nil); code != 409 || f.Reason != "busy_route" || f.Flag != "--confirm" || !f.Refused {
		t.Errorf("1.1%%: %d %+v", code, f)
	}
	hear(report.Busy{Requests: 1000, Routes: map[string]uint64{"orders": 10}})
	if code, f := w.ask("eu-west", "POST", "/v1/denials", route, nil); code != 200 {
		t.Errorf("1%%: %d %+v", code, f)
	}
	hear(report.Busy{Requests: 10, Routes: map[string]uint64{"all": 10}})
	if code, f := w.ask("eu-west", "POST", "/v1/denials", DenyRequest{Kind: "route", ID: "all", Reason: "x", Confirm: true}, nil); code != 200 {
		t.Errorf("confirmed: %d %+v", code, f)
	}
}

// Who mistypes in a hurry is told so, and what was denied under other words is named.
func TestDenialsOfWhatNobodyKnowsWarn(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	w.publishRoutes("eu-west", 2)
	w.eventually("the version is known", 5*time.Second, func() bool { return w.regions["eu-west"].c.liveNumber() > 0 })
	for id, want := range map[string]bool{"r0": false, "r00": true} {
		var d Denied
		if code, f := w.ask("eu-west", "POST", "/v1/denials", DenyRequest{Kind: "route", ID: id, Reason: "x", Confirm: true}, &d); code != 200 || strings.Contains(strings.Join(d.Warnings, " "), "has no route "+id) != want {
			t.Errorf("%s: %d %v %q", id, code, f, d.Warnings)
		}
	}
	var d Denied
	if _, f := w.ask("eu-west", "POST", "/v1/denials", DenyRequest{Kind: "key", ID: "sha256:0123456789abcdef", Reason: "x"}, &d); f != nil || !strings.Contains(strings.Join(d.Warnings, " "), "has no key") {
		t.Errorf("%v %q", f, d.Warnings)
	}
	if _, f := w.ask("eu-west", "POST", "/v1/denials", DenyRequest{Kind: "user", ID: "ann", Issuer: "https://i", Reason: "x"}, &d); f != nil {
		t.Fatal(f)
	}
	if code, f := w.ask("eu-west", "POST", "/v1/denials:remove", DenyRequest{Kind: "user", ID: "ann", Reason: "x"}, nil); code != 404 || !strings.Contains(f.Detail, "issuer https://i everywhere") {
		t.Errorf("%d %v", code, f)
	}
}

func TestAFullDenylistRefusesAndAlarmsBeforeThat(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var log strings.Builder
	var mu sync.Mutex
	w.log = slog.New(slog.NewTextHandler(lockedWriter{&mu, &log}, nil))
	c := w.start("eu-west").c
	fill := func(n int) {
		now := time.Now().UTC()
		var all []denylist.Entry
		for i := range n {
			all = append(all, denylist.Entry{Kind: denylist.User, ID: fmt.Sprint("u", i), Reason: "x", By: "t", At: now, Expires: now.Add(time.Hour)})
		}
		c.ledger.add(nil, all, now)
	}
	alarm := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(log.String(), "denylist is nearly full")
	}
	fill(7999)
	time.Sleep(200 * time.Millisecond)
	if alarm() {
		t.Error("an alarm below 80%")
	}
	fill(8000)
	w.eventually("the alarm", 5*time.Second, alarm)
	fill(denylist.MaxEntries - 1)
	req := DenyRequest{Kind: "user", ID: "one", Reason: "x"}
	w.eventually("the last one", time.Minute, func() bool { // a store that is busy says so, and to ask again
		code, _ := w.ask("eu-west", "POST", "/v1/denials", req, nil)
		return code == 200
	})
	if code, f := w.ask("eu-west", "POST", "/v1/denials", DenyRequest{Kind: "user", ID: "more", Reason: "x"}, nil); code != 409 || f.Reason != "denylist_full" || !f.Refused {
		t.Errorf("one too many: %d %+v", code, f)
	}
	if code, f := w.ask("eu-west", "POST", "/v1/denials", req, nil); code != 200 {
		t.Errorf("saying again what is denied: %d %v", code, f)
	}
	if code, f := w.ask("eu-west", "POST", "/v1/denials:remove", req, nil); code != 200 {
		t.Errorf("removing from a full list: %d %v", code, f)
	}
	if code, f := w.ask("eu-west", "POST", "/v1/denials", DenyRequest{Kind: "user", ID: "more", Reason: "x"}, nil); code != 200 {
		t.Errorf("after a removal: %d %v", code, f)
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	b  *strings.Builder
}

func (l lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func TestAUsersDenialLivesAsLongAsATokenCan(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	doc := routesDocument(2) + "policies:\n  - {id: a, jwt: {issuer: \"https://i\", audience: a, jwks: \"https://i/k\", max_token_lifetime: 2h}}\n  - {id: b, jwt: {issuer: \"https://j\", audience: a, jwks: \"https://j/k\", max_token_lifetime: 30m}}\n"
	if _, f := w.publish("eu-west", PublishRequest{Files: []PublishFile{{Name: "a.yaml", Data: doc}}}); f != nil {
		t.Fatal(f)
	}
	for req, want := range map[DenyRequest]time.Duration{
		{Kind: "user", ID: "a", Reason: "x"}:                                2*time.Hour + clockSlack,
		{Kind: "user", ID: "b", Reason: "x", For: "5m"}:                     5 * time.Minute,
		{Kind: "key", ID: "sha256:0123456789abcdef", Reason: "x"}:           defaultKey,
		{Kind: "route", ID: "r0", Reason: "x", Confirm: true}:               defaultRoute,
		{Kind: "token", ID: "t", Issuer: "https://i", Reason: "x", For: ""}: 2*time.Hour + clockSlack,
	} {
		var d Denied
		if code, f := w.ask("eu-west", "POST", "/v1/denials", req, &d); code != 200 || d.Entry.Expires.Sub(d.Entry.At) != want {
			t.Errorf("%+v: %v, lives %v, want %v", req, f, d.Entry.Expires.Sub(d.Entry.At), want)
		}
	}
}

// An order of the regions holds a rollout back in its region like any other (D7).
func TestARegionalOrderPausesRolloutsInItsRegion(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l, end := b.incumbent(b.global.Join())
	defer end()
	l.ledger.add([]cells.Evacuation{{Form: 1, Cell: "eu-west/a", Reason: "x", Started: b.now, Expires: b.now.Add(time.Hour)}}, nil, b.now)
	ev := l.rolloutEvidence(b.now)
	if len(ev.Evacuations) != 1 || !ev.Evacuations[0].Standing(b.now) {
		t.Fatalf("%+v", ev.Evacuations)
	}
}
