package agent

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/trust"
)

func denial(id string, removed bool, at time.Time) denylist.Entry {
	return denylist.Entry{Kind: denylist.User, ID: id, Reason: "x", By: "t", At: at, Expires: at.Add(time.Hour), Removed: removed}
}

func (c *controller) denylist(by *trust.Signer, l denylist.List) *nodeapi.Down {
	return &nodeapi.Down{Message: &nodeapi.Down_Denylist{Denylist: &nodeapi.Signed{Envelope: c.sign(by, trust.KindDenylist, l)}}}
}

// denying is a node that remembers the set it was given last.
func (w *world) denying(dir string) (*proxy, *atomic.Pointer[denylist.Set]) {
	set := &atomic.Pointer[denylist.Set]{}
	return w.node(dir, func(o *Options) { o.Deny = set.Store }), set
}

func TestADenialReachesTheNodeAndOutlivesItsRestart(t *testing.T) {
	w, dir, now := newWorld(t), t.TempDir(), time.Now()
	w.ctl.start(t)
	n, set := w.denying(dir)
	w.ctl.post(w.ctl.denylist(w.ctl.signer, denylist.NewList("eu-west", []denylist.Entry{denial("ann", false, now), denial("bob", false, now)}, now)))
	w.eventually("the denial", func() bool { return set.Load().User("i", "ann") })
	// A controller elsewhere that knows less takes nothing away; its removals count.
	elsewhere := w.signer(trust.RoleController, "us-east/1")
	w.ctl.post(w.ctl.denylist(elsewhere, denylist.NewList("eu-west", []denylist.Entry{denial("bob", true, now.Add(time.Second))}, now)))
	w.eventually("the removal", func() bool { return !set.Load().User("i", "bob") })
	if !set.Load().User("i", "ann") {
		t.Fatal("a list that says less took a denial away")
	}
	n.stop()
	w.ctl.addr = ""
	n, set = w.denying(dir)
	if !set.Load().User("i", "ann") || set.Load().User("i", "bob") || n.Status().Denied != 1 {
		t.Fatalf("after a restart without a controller: %+v", n.Status())
	}
}

// Lists of one controller may overtake each other on two paths, and its clock may be set back: whatever was denied is denied
// after a restart as well.
func TestOvertakenListsForgetNothingOverARestart(t *testing.T) {
	w, now := newWorld(t), time.Now()
	ann, bob, cid := denial("ann", false, now), denial("bob", false, now), denial("cid", false, now)
	list := func(at time.Duration, entries ...denylist.Entry) denylist.List {
		return denylist.NewList("eu-west", entries, now.Add(at))
	}
	for name, lists := range map[string][]denylist.List{
		"overtaken":      {list(2*time.Second, ann, bob, cid), list(time.Second, ann)},
		"in order":       {list(time.Second, ann), list(2*time.Second, ann, bob, cid)},
		"clock set back": {list(time.Hour, ann, bob), list(0, ann, bob, cid), list(time.Second, ann, bob, cid)},
		// One that started while its store was away knows nothing, then something new, then all.
		"forgetful":   {list(0, ann, bob), list(time.Second), list(2*time.Second, cid), list(3 * time.Second)},
		"remembering": {list(0, ann, bob), list(time.Second), list(2*time.Second, ann, bob, cid), list(3*time.Second, ann, bob, cid, denial("eve", false, now))},
		"removed":     {list(time.Hour, ann, bob, cid, denial("dan", false, now)), list(0, ann, bob, cid, denial("dan", true, now.Add(time.Second)))},
	} {
		dir := t.TempDir()
		var set atomic.Pointer[denylist.Set]
		open := func() *denials {
			a, err := New(Options{ID: node, Dir: dir, Roots: w.roots, Apply: func(*program.Program, int) error { return nil }, Deny: set.Store})
			must(t, err)
			a.denied.load(now)
			return a.denied
		}
		d := open()
		for _, l := range lists {
			d.receive(w.ctl.denylist(w.ctl.signer, l).GetDenylist().GetEnvelope())
			d.takeAll(now)
		}
		d = open()
		for _, who := range []string{"ann", "bob", "cid"} {
			if !set.Load().User("i", who) {
				t.Errorf("%s: %s is let in after a restart", name, who)
			}
		}
		if most := map[string]int{"forgetful": 3, "remembering": 1}[name]; set.Load().User("i", "dan") || len(d.kept) > max(most, 2) {
			t.Errorf("%s: %d lists are kept", name, len(d.kept))
		}
	}
}

func TestListsThatAreNotForUsOrForgedChangeNothing(t *testing.T) {
	w, now := newWorld(t), time.Now()
	_, set := w.denying(t.TempDir())
	n, _ := New(Options{ID: node, Dir: t.TempDir(), Roots: w.roots, Apply: w.node(t.TempDir()).opt.Apply, Deny: set.Store})
	list := denylist.NewList("eu-west", []denylist.Entry{denial("ann", false, now)}, now)
	other := list
	other.Region = "us-east"
	forged := w.ctl.denylist(w.signer(trust.RoleController, "eu-west/2"), list).GetDenylist().Envelope
	forged[len(forged)-40] ^= 1
	for name, envelope := range map[string][]byte{
		"another region's": w.ctl.denylist(w.ctl.signer, other).GetDenylist().Envelope,
		"a proxy's":        w.ctl.denylist(w.signer(trust.RoleProxy, "eu-west/b/1"), list).GetDenylist().Envelope,
		"another kind":     w.ctl.sign(w.ctl.signer, trust.KindOverrides, list),
		"forged":           forged, "no envelope": []byte("x"),
	} {
		if _, err := n.denied.take(signedBy{Accepted: now, Envelope: envelope}, now); err == nil {
			t.Errorf("%s list is accepted", name)
		}
	}
	if live, _ := n.denied.status(now); live != 0 {
		t.Errorf("%d entries", live)
	}
}

func TestADenylistThatNobodyConfirmsForAMinuteIsAnAlarm(t *testing.T) {
	w, now := newWorld(t), time.Now()
	var log bytes.Buffer
	var set atomic.Pointer[denylist.Set]
	n, err := New(Options{ID: node, Dir: t.TempDir(), Roots: w.roots, Apply: w.node(t.TempDir()).opt.Apply, Deny: set.Store, Log: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	take := func(l denylist.List, at time.Time) {
		t.Helper()
		n.denied.receive(w.ctl.denylist(w.ctl.signer, l).GetDenylist().Envelope)
		n.denied.takeAll(at)
	}
	alarms := func() int { return strings.Count(log.String(), "ALARM") }
	list := denylist.NewList("eu-west", []denylist.Entry{denial("ann", false, now)}, now)
	take(list, now)
	// Beats keep the list young; a beat of a list that the node doesn't have doesn't.
	for s := 15; s <= 120; s += 15 {
		at := now.Add(time.Duration(s) * time.Second)
		take(list.NewBeat(at), at)
		n.denied.watch(at)
	}
	if _, age := n.denied.status(now.Add(2 * time.Minute)); age != 0 || alarms() != 0 {
		t.Fatalf("age %v, %d alarms while beats come", age, alarms())
	}
	for s := 121; s <= 190; s++ {
		at := now.Add(time.Duration(s) * time.Second)
		take(denylist.NewList("eu-west", nil, at).NewBeat(at), at)
		n.denied.watch(at)
	}
	if _, age := n.denied.status(now.Add(190 * time.Second)); age != 70*time.Second || alarms() != 1 {
		t.Fatalf("age %v, %d alarms", age, alarms())
	}
	take(list.NewBeat(now), now.Add(200*time.Second))
	if _, age := n.denied.status(now.Add(200 * time.Second)); age != 0 || !strings.Contains(log.String(), "up to date again") {
		t.Fatalf("age %v after a beat", age)
	}
	// A list that says less than the one before it, by a clock that was set back, is confirmed like any other.
	back := denylist.NewList("eu-west", nil, now.Add(-time.Hour))
	take(back, now.Add(210*time.Second))
	for s := 215; s <= 300; s += 15 {
		at := now.Add(time.Duration(s) * time.Second)
		take(back.NewBeat(at), at)
		n.denied.watch(at)
	}
	if alarms() != 1 {
		t.Fatalf("%d alarms after the clock was set back", alarms())
	}
	n.denied.watch(now.Add(time.Hour))
	if set.Load().User("i", "ann") {
		t.Fatal("an expired entry still denies")
	}
}
