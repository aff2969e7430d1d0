package rollout

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/cells"
)

// Whatever nodes, operators, evacuations and leaders do: rings come in their order, bad contents never become stable,
// decisions only rise, and once the trouble is over the newest version goes live everywhere.
func TestAnyTroubleLeavesTheRingsInOrderAndEndsLive(t *testing.T) {
	if checks := flag.Lookup("rapid.checks"); !full && checks.Value.String() == checks.DefValue {
		_ = checks.Value.Set("25")
		defer func() { _ = checks.Value.Set(checks.DefValue) }()
	}
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		w.do("config bake=4s serve=5s silence=3s insufficient=hold")
		w.do("rps 200")
		w.build(rapid.IntRange(1, 3).Draw(rt, "regions"), rapid.IntRange(1, 3).Draw(rt, "cells"), rapid.IntRange(1, 3).Draw(rt, "nodes"))
		w.do("publish")
		w.do("until live")
		for range rapid.IntRange(1, 25).Draw(rt, "actions") {
			act(rt, w)
			for range rapid.IntRange(0, 12).Draw(rt, "ticks") {
				before, stable := w.rev, w.state.Stable
				w.tick()
				check(rt, w, before, stable)
			}
		}
		calm(rt, w)
	})
}

// act is one thing that happens to the world. Promotion is left out: it is the order to ignore bad evidence.
func act(rt *rapid.T, w *world) {
	id := string(rapid.SampledFrom(w.topo.Cells()).Draw(rt, "cell").ID)
	if rapid.Bool().Draw(rt, "node") {
		id += fmt.Sprint("/", rapid.IntRange(1, 3).Draw(rt, "which"))
	} else {
		id += "/*"
	}
	region := string(cells.NodeID(id).Region())
	next := fmt.Sprint(w.head + 1)
	command := rapid.SampledFrom([]string{
		"publish", "publish", "bad " + next + " gateway=0.2", "bad " + next + " noroute=0.1", "nack " + next + " no",
		"down " + id, "up " + id, "restart " + id, "restart-canary", "deaf " + region + " yes", "deaf " + region + " no",
		"evacuate " + string(cells.NodeID(id).Cell()) + " 20s", "order pause", "order resume", "order abort", "order force", "crash",
	}).Draw(rt, "command")
	if command == "crash" {
		w.crash()
		return
	}
	w.do(command)
	if command[:3] == "bad" || command[:4] == "nack" {
		w.do("publish")
	}
}

func check(rt *rapid.T, w *world, before uint64, stable Version) {
	s := w.state
	if w.rev < before || s.Stable.Number < stable.Number {
		rt.Fatalf("rev %d after %d, stable %d after %d", w.rev, before, s.Stable.Number, stable.Number)
	}
	if content := w.contents[s.Stable.Number]; stable.Number != 0 && (w.bad[content] != nil || w.nack[content] != "") {
		rt.Fatalf("bad contents %d are stable as %d; log %v", content, s.Stable.Number, s.Log)
	}
	again := Step(s, w.ev, w.cfg, w.now)
	if a, b := encode(rt, s), encode(rt, w.state); !bytes.Equal(a, b) {
		rt.Fatal("a step changed the state that it was given")
	}
	if a, b := encode(rt, again), encode(rt, Step(s, w.ev, w.cfg, w.now)); !bytes.Equal(a, b) {
		rt.Fatal("the same evidence led to two states")
	}
	inOrder(rt, w)
}

// inOrder: a region has the version only when every region before it has it whole, and beside a ring's cells it has at
// most one canary node.
func inOrder(rt *rapid.T, w *world) {
	s := w.state
	if !s.Active() || s.Stable.Number == 0 || s.Phase == RollingBack {
		return
	}
	whole := true
	for _, target := range s.Targets(w.topo, 1) {
		on := 0
		for _, v := range target.Cells {
			if v.Number == 0 || v.Number > w.head {
				rt.Fatalf("a target of version %d, of %d", v.Number, w.head)
			}
			if v == s.Version {
				on++
			}
		}
		canaries := 0
		for _, v := range target.Nodes {
			if v == s.Version {
				canaries++
			}
		}
		if !whole && on+canaries > 0 || canaries > 1 {
			rt.Fatalf("%s has %d cells and %d canaries of version %d too early", target.Region, on, canaries, s.Version.Number)
		}
		whole = on == len(target.Cells)
	}
}

// calm ends the trouble and publishes once more.
func calm(rt *rapid.T, w *world) {
	w.do("order resume")
	for _, region := range w.topo.Regions {
		w.do("up " + string(region.ID) + "/*/*")
		delete(w.deaf, region.ID)
	}
	w.evacs = nil
	w.do("publish")
	content := w.head
	for range 600 {
		w.tick()
		if w.state.Phase == Live && w.contents[w.state.Stable.Number] == content {
			break
		}
	}
	for id, n := range w.nodes {
		if w.contents[n.served] != content {
			rt.Fatalf("%s serves %d in the end: %s %s", id, n.served, w.state.Phase, w.state.Why)
		}
	}
}

func encode(rt *rapid.T, s State) []byte {
	b, err := Encode(s)
	if err != nil {
		rt.Fatal(err)
	}
	return b
}

var update = flag.Bool("update", false, "rewrite the golden files of the current form")

// The stored forms of earlier releases are readable; a file is only ever added when the form changes. The first had no judge,
// and the evidence of the second, of fewer causes, is lost.
func TestStoredFormIsStillRead(t *testing.T) {
	const newest = "testdata/state.form1.causes.json"
	if *update {
		w := newWorld(t)
		for _, line := range []string{"world 1 2 2", "config bake=10s", "rps 100", "services orders=1", "publish", "until live", "run 5s", "publish", "until baking node", "run 3s", "publish"} {
			w.do(line)
		}
		b, _ := json.Marshal(w.state)
		if err := os.WriteFile(newest, append(b, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for file, judged := range map[string]int{"testdata/state.form1.json": 0, "testdata/state.form1.judge.json": 0, newest: 3} {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Decode(raw)
		if err != nil {
			t.Fatal(err)
		}
		windows := 0
		if k := s.Judge.Known(); k != nil {
			windows = k.Windows
		}
		if s.Phase != Baking || s.Version != version(2) || s.Stable != version(1) || s.Next.Version != version(3) ||
			s.Ring.Kind != RingNode || len(s.Ring.Nodes) != 1 || windows != judged || len(s.Log) != 7 {
			t.Errorf("%s: read as %+v", file, s)
		}
		again, err := Encode(s)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := Decode(again); err != nil || !reflect.DeepEqual(back, s) {
			t.Errorf("%s: %v: what was written is not what is read", file, err)
		}
	}
	for _, bad := range []string{"", "{}", `{"form":2}`, `{"form":0}`, `[]`} {
		if _, err := Decode([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
