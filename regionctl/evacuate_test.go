package regionctl

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/report"
	"github.com/cellgate/cellgate/store"
)

// loaded makes every node of the running controllers report the rate, in requests per second.
func (w *world) loaded(rps uint64) {
	for _, r := range w.regions {
		if r.c == nil {
			continue
		}
		for _, cell := range w.topology.Cells() {
			for _, n := range cell.Nodes {
				r.c.evidence.Hear(report.Node{Form: report.Form, ID: n.ID, Boot: "load", Seq: uint64(time.Now().UnixNano()), Window: time.Second, Ready: true, Counts: report.Counts{Requests: rps}}, nil)
			}
		}
	}
}

func (w *world) planned(limit time.Duration) {
	w.eventually("a plan", limit, func() bool { _, ok := w.regions["eu-west"].c.plan(); return ok })
}

func TestEvacuationIsRefusedWhenTheRestCannotCarryIt(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	w.planned(5 * time.Second)
	// Each cell has a limit of 100 rps and a target of 70; four cells of 60 leave no room for a fifth part of 60.
	w.eventually("the load is known", 10*time.Second, func() bool {
		w.loaded(30)
		var h Headroom
		w.ask("eu-west", "GET", "/v1/capacity/headroom", nil, &h)
		_, f := w.ask("eu-west", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a", Reason: "x", DryRun: true}, nil)
		return f != nil
	})
	w.loaded(30)
	code, f := w.ask("eu-west", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a", Reason: "x"}, nil)
	if code != 409 || !f.Refused || f.Flag != "--force" || f.Reason != "no_headroom" || len(f.Outcomes) != 1 {
		t.Errorf("%d %+v", code, f)
	}
	var e Evacuated
	if code, f := w.ask("eu-west", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a", Reason: "x", Force: true}, &e); code != 200 || !e.Orders[0].Force {
		t.Errorf("forced: %d %v", code, f)
	}
}

func TestLastUsableCellIsNeverEvacuated(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	w.planned(5 * time.Second)
	for _, id := range []string{"us-east", "eu-west/b"} {
		if code, f := w.ask("eu-west", "POST", "/v1/evacuations", EvacuateRequest{What: id, Reason: "x", Force: true}, nil); code != 200 {
			t.Fatalf("%s: %d %v", id, code, f)
		}
	}
	for _, force := range []bool{false, true} {
		code, f := w.ask("eu-west", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a", Reason: "x", Force: force}, nil)
		if code != 409 || !f.Refused || f.Reason != "last_cell" || f.Flag != "" {
			t.Errorf("force %v: %d %+v", force, code, f)
		}
	}
}

// Two operators, each of whose orders is safe alone, cannot together empty the world.
func TestTwoOperatorsAtOnceCannotEmptyTheWorld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start("eu-west")
	w.start("us-east")
	w.planned(5 * time.Second)
	var wg sync.WaitGroup
	codes := make([]int, 4)
	for i, cell := range w.topology.Cells() {
		region := w.topology.Regions[i%2].ID
		wg.Go(func() {
			codes[i], _ = w.ask(region, "POST", "/v1/evacuations", EvacuateRequest{What: string(cell.ID), Reason: "x", Force: true}, nil)
		})
	}
	wg.Wait()
	refused := 0
	for _, code := range codes {
		if code == 409 {
			refused++
		}
	}
	if refused != 1 {
		t.Errorf("answers %v", codes)
	}
}

func TestDryRunOfARegionSaysWhereItsTrafficGoes(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	w.planned(5 * time.Second)
	var e Evacuated
	code, f := w.ask("eu-west", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west", Reason: "x", DryRun: true}, &e)
	if code != 200 || len(e.Orders) != 2 || len(e.Outcomes) != 2 || !e.DryRun {
		t.Fatalf("%d %v %+v", code, f, e)
	}
	for _, out := range e.Outcomes {
		if len(out.Moves) == 0 {
			t.Errorf("%s gives nothing away", out.Cell)
		}
		for _, m := range out.Moves {
			if m.To.Region() != "us-east" {
				t.Errorf("traffic of %s goes to %s", out.Cell, m.To)
			}
		}
	}
	var after Evacuated
	if w.ask("eu-west", "GET", "/v1/evacuations", nil, &after); len(after.Orders) != 0 {
		t.Errorf("a dry run has ordered %v", after.Orders)
	}
}

func TestEvacuationSurvivesRestartsAndRenewalKeepsItsStart(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	w.planned(5 * time.Second)
	var first, again, list Evacuated
	w.ask("eu-west", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a", Reason: "x", Over: "1h", Expires: "2h"}, &first)
	w.regions["eu-west"].stop()
	w.start("us-east")
	for _, over := range []string{"", "3h"} {
		if code, f := w.ask("us-east", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a", Reason: "longer", Over: over, Expires: "6h"}, &again); code != 200 {
			t.Fatal(f)
		}
		w.ask("us-east", "GET", "/v1/evacuations", nil, &list)
		if len(list.Orders) != 1 {
			t.Fatalf("%+v", list)
		}
		o := list.Orders[0]
		if !o.Started.Equal(first.Orders[0].Started) || o.Over != time.Hour || o.Reason != "longer" || !o.Expires.After(first.Orders[0].Expires) || len(again.Warnings) != 1 {
			t.Errorf("renewed with over %q: %+v, warnings %v", over, o, again.Warnings)
		}
	}
	// The cell catches fire on its slow way out.
	if code, f := w.ask("us-east", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a", Reason: "fire", Over: "0s"}, &again); code != 200 {
		t.Fatal(f)
	}
	w.eventually("the cell has left", 5*time.Second, func() bool { return w.cellState("us-east", "eu-west/a") == cells.Evacuated })
}

func TestRestoringTwiceIsRestoringOnce(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	w.ask("eu-west", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a", Reason: "x", Force: true}, nil)
	var first, again Evacuated
	for _, e := range []*Evacuated{&first, &again} {
		if code, f := w.ask("eu-west", "POST", "/v1/restorations", RestoreRequest{What: "eu-west"}, e); code != 200 || len(e.Orders) != 1 {
			t.Fatalf("%d %v %+v", code, f, e)
		}
	}
	if !again.Orders[0].Restored.Equal(first.Orders[0].Restored) || len(again.Warnings) != 1 || len(first.Warnings) != 0 {
		t.Errorf("first %+v, again %+v", first, again)
	}
	var entries []AuditEntry
	if w.ask("eu-west", "GET", "/v1/audit", nil, &entries); len(entries) != 2 {
		t.Errorf("audit: %+v", entries)
	}
}

// The regions' ledgers remember a restoration for a week. The leader must not forget it in the global store over and over:
// every time would move the guard, and refuse an operator's order that was being made.
func TestOrderWhoseCellIsFullyBackIsForgottenOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l, end := b.incumbent(b.global.Join())
	defer end()
	ev := cells.Evacuation{Form: 1, Cell: "eu-west/a", Reason: "x", By: "token:admin", Started: b.now, Over: time.Minute, Expires: b.now.Add(time.Hour), Restored: b.now.Add(2 * time.Minute)}
	rev, err := b.global.Commit(t.Context(), nil, []store.Op{store.Put(store.KeyEvacuation("eu-west/a"), encode(ev)), store.Put(store.KeyGuard, []byte("{}"))})
	must(t, err)
	l.intent.see(t.Context(), rev)
	l.ledger.add([]cells.Evacuation{ev}, nil, b.now)
	b.now = b.now.Add(30 * time.Minute)
	var moved []store.Revision
	for range 3 {
		must(t, l.tendEvacuations(t.Context()))
		guard, err := b.global.Get(t.Context(), store.KeyGuard)
		must(t, err)
		l.intent.see(t.Context(), guard.Modified)
		moved = append(moved, guard.Modified)
	}
	if moved[0] == rev || moved[1] != moved[0] || moved[2] != moved[0] {
		t.Errorf("the guard was written at %d and then at %v, want once", rev, moved)
	}
}

func TestExpiryEndsAnEvacuationOnceAndIsAnAlarmInTheAudit(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l, end := b.incumbent(b.global.Join())
	defer end()
	ev := cells.Evacuation{Form: 1, Cell: "eu-west/a", Reason: "x", By: "token:admin", Started: b.now, Over: time.Minute, Expires: b.now.Add(time.Hour)}
	rev, err := b.global.Commit(t.Context(), nil, []store.Op{store.Put(store.KeyEvacuation("eu-west/a"), encode(ev)), store.Put(store.KeyGuard, []byte("{}"))})
	must(t, err)
	l.intent.see(t.Context(), rev)
	state := func() cells.State {
		must(t, l.tendEvacuations(t.Context()))
		entries, rev, err := b.global.List(t.Context(), store.PrefixEvacuations)
		must(t, err)
		_ = rev
		if len(entries) == 0 {
			return cells.Active
		}
		must(t, json.Unmarshal(entries[0].Value, &ev))
		return ev.State(b.now, l.opt.Ramp)
	}
	for _, step := range []struct {
		pass time.Duration
		want cells.State
	}{{0, cells.Evacuating}, {2 * time.Minute, cells.Evacuated}, {58 * time.Minute, cells.Restoring}, {time.Second, cells.Restoring}, {11 * time.Second, cells.Active}} {
		b.now = b.now.Add(step.pass)
		if got := state(); got != step.want {
			t.Errorf("%s later: %s, want %s", step.pass, got, step.want)
		}
		guard, err := b.global.Get(t.Context(), store.KeyGuard)
		must(t, err)
		l.intent.see(t.Context(), guard.Modified)
	}
	entries, _, err := b.global.List(t.Context(), store.PrefixAudit)
	must(t, err)
	if len(entries) != 1 || !strings.Contains(string(entries[0].Value), "evacuation expired") {
		t.Errorf("audit: %d entries", len(entries))
	}
}
