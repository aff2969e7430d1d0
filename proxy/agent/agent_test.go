package agent

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/regionctl/rollout"
	"github.com/cellgate/cellgate/report"
	"github.com/cellgate/cellgate/trust"
)

func TestATargetIsFetchedStoredServedAndAcknowledged(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	p := w.node(t.TempDir())
	v := w.ctl.publish(7, "a", 40)
	w.ctl.post(target(w.ctl.target(1, 1, v)))
	if a := w.ctl.ack(1, 1); a.Nack != "" || a.Version != 7 || p.serving() != 7 || p.share != 2 {
		t.Fatalf("%v, serving %d, share %d", a, p.serving(), p.share)
	}
	st := p.Status()
	if s := st.Snapshot; s.Known != 7 || s.Stored != 7 || s.Served != 7 || s.Source != report.SourcePush || s.Checksum == "" || s.Since.IsZero() || s.Nack != "" {
		t.Errorf("ledger %+v", s)
	}
	w.eventually("a report with the ledger", func() bool {
		w.ctl.mu.Lock()
		defer w.ctl.mu.Unlock()
		n := len(w.ctl.reports)
		return n > 1 && w.ctl.reports[n-1].Snapshot.Served == 7 && w.ctl.reports[n-1].Seq > w.ctl.reports[0].Seq && w.ctl.reports[n-1].ID == node
	})
}

func TestOnlyMissingShardsTravel(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	p := w.node(t.TempDir())
	w.ctl.post(target(w.ctl.target(1, 1, w.ctl.publish(1, "a", 300))))
	w.ctl.ack(1, 1)
	all := len(w.ctl.forget())
	v2 := w.ctl.publish(2, "b", 300)
	w.ctl.post(target(w.ctl.target(1, 2, v2)))
	w.ctl.ack(1, 2)
	if changed := len(w.ctl.forget()); all < 50 || changed != 2 {
		t.Errorf("%d blobs travelled first, then %d: want the manifest and one shard", all, changed)
	}
	if p.serving() != 2 {
		t.Errorf("serving %d", p.serving())
	}
}

func TestOlderTargetsAreRefusedAndANewerEpochWins(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	dir := t.TempDir()
	p := w.node(dir)
	v1, v2, v3 := w.ctl.publish(1, "a", 3), w.ctl.publish(2, "b", 3), w.ctl.publish(3, "c", 3)
	w.ctl.post(target(w.ctl.target(5, 8, v2)))
	w.ctl.ack(5, 8)
	w.ctl.post(target(w.ctl.target(5, 7, v3)))
	w.ctl.post(target(w.ctl.target(4, 99, v3)))
	p.stop()
	p = w.node(dir)
	w.ctl.post(target(w.ctl.target(4, 100, v3)))
	time.Sleep(50 * time.Millisecond)
	if p.serving() != 2 {
		t.Fatalf("an older target brought version %d", p.serving())
	}
	w.ctl.post(target(w.ctl.target(6, 1, v1)))
	if a := w.ctl.ack(6, 1); a.Nack != "" || p.serving() != 1 {
		t.Errorf("a newer epoch with an older version: %v, serving %d", a, p.serving())
	}
}

func TestTheSameNumberWithOtherContentIsNotADuplicate(t *testing.T) { // CASES G49
	w := newWorld(t)
	w.ctl.start(t)
	var applied []string
	p := w.node(t.TempDir(), func(o *Options) {
		inner := o.Apply
		o.Apply = func(prog *program.Program, share int) error {
			applied = append(applied, string(prog.Checksum))
			return inner(prog, share)
		}
	})
	w.ctl.post(target(w.ctl.target(1, 1, w.ctl.publish(4, "one", 3))))
	w.ctl.ack(1, 1)
	first := p.Status().Snapshot.Checksum
	w.ctl.post(target(w.ctl.target(1, 2, w.ctl.publish(4, "two", 3))))
	if a := w.ctl.ack(1, 2); a.Nack != "" {
		t.Fatal(a)
	}
	if second := p.Status().Snapshot.Checksum; second == first || len(applied) != 2 {
		t.Errorf("checksum %s then %s, applied %d times", first, second, len(applied))
	}
}

func TestWhatFailsChangesNothingAndSaysWhy(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	var checkFails error
	p := w.node(t.TempDir(), func(o *Options) { o.Check = func(*program.Program) error { return checkFails } })
	good := w.ctl.publish(1, "good", 3)
	w.ctl.post(target(w.ctl.target(1, 1, good)))
	w.ctl.ack(1, 1)
	before := p.Status().Snapshot

	stranger := w.signer(trust.RoleProxy, node)
	damaged := w.ctl.publish(3, "damaged", 3)
	missing := w.ctl.publish(4, "missing", 3)
	cases := []struct {
		name  string
		v     rollout.Version
		setup func()
		nack  string
	}{
		{"manifest by a proxy", w.ctl.sealed(2, "x", 3, stranger), func() {}, "proxy"},
		{"another version", rollout.Version{Number: 9, Manifest: damaged.Manifest}, func() {}, "the target names 9"},
		{"a manifest that nobody has", rollout.Version{Number: 4, Manifest: "00000000000000000000000000000000000000000000000000000000000000ff"}, func() {}, "no blob"},
		{"a digest that is a path", rollout.Version{Number: 5, Manifest: "../../etc/passwd"}, func() {}, "digest"},
		{"own check", missing, func() { checkFails = errors.New("a certificate is not there") }, "a certificate is not there"},
		{"swap", w.ctl.publish(7, "swap", 3), func() { checkFails = nil; p.mu.Lock(); p.refuse = errors.New("no room"); p.mu.Unlock() }, "no room"},
	}
	for i, c := range cases {
		number := uint64(i + 2)
		c.setup()
		w.ctl.post(target(w.ctl.target(1, number, c.v)))
		if a := w.ctl.ack(1, number); !strings.Contains(a.Nack, c.nack) {
			t.Errorf("%s: nack %q", c.name, a.Nack)
		}
		now := p.Status()
		if now.Snapshot.Served != 1 || now.Snapshot.Checksum != before.Checksum || now.Number != 1 || !strings.Contains(now.Snapshot.Nack, c.nack) {
			t.Errorf("%s: %+v", c.name, now)
		}
	}
	p.mu.Lock()
	p.refuse = nil
	p.mu.Unlock()
	w.eventually("a fault that passed to be tried again", func() bool { return p.serving() == 7 })
}

func TestAForeignOrForgedTargetIsNotEvenConsidered(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	p := w.node(t.TempDir())
	v := w.ctl.publish(1, "a", 3)
	forged := w.ctl.target(1, 1, v)
	forged[len(forged)/2] ^= 1
	other := newWorld(t)
	for _, envelope := range [][]byte{
		nil, []byte("x"), forged,
		w.ctl.sign(w.signer(trust.RoleRouter, "eu-west/1"), trust.KindTarget, rollout.Target{Form: 1, Region: "eu-west", Epoch: 1, Number: 1}),
		w.ctl.sign(other.ctl.signer, trust.KindTarget, rollout.Target{Form: 1, Region: "eu-west", Epoch: 1, Number: 1}),
		w.ctl.target(1, 1, v, func(t *rollout.Target) { t.Region = "us-east" }),
		w.ctl.target(1, 1, v, func(t *rollout.Target) { t.Form = 99 }),
	} {
		w.ctl.post(target(envelope))
		time.Sleep(10 * time.Millisecond)
	}
	w.ctl.post(target(w.ctl.target(1, 1, v, func(t *rollout.Target) { t.Cells = nil })))
	if a := w.ctl.ack(1, 1); !strings.Contains(a.Nack, "does not speak of cell eu-west/a") {
		t.Errorf("nack %q", a.Nack)
	}
	if p.serving() != 0 || len(w.ctl.forget()) != 0 {
		t.Error("a target that is not for us was followed")
	}
}

func TestAMissedRevisionIsNeverSkipped(t *testing.T) { // CASES G57
	w := newWorld(t)
	w.ctl.start(t)
	p := w.node(t.TempDir())
	v := w.ctl.publish(1, "a", 3)
	w.ctl.mu.Lock()
	manifest := w.ctl.blobs[string(v.Manifest)]
	delete(w.ctl.blobs, string(v.Manifest))
	w.ctl.mu.Unlock()
	w.ctl.post(target(w.ctl.target(3, 9, v)))
	if a := w.ctl.ack(3, 9); a.Nack == "" {
		t.Fatal("acknowledged what it could not get")
	}
	if h := p.hello(); h.TargetEpoch != 0 || h.TargetNumber != 0 {
		t.Errorf("says it has (%d, %d)", h.TargetEpoch, h.TargetNumber)
	}
	w.ctl.mu.Lock()
	w.ctl.blobs[string(v.Manifest)] = manifest
	w.ctl.mu.Unlock()
	w.eventually("the target without a new push", func() bool { return p.serving() == 1 && p.hello().TargetNumber == 9 })
}

func TestThePollIsASecondPath(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	w.ctl.silent = true
	p := w.node(t.TempDir(), func(o *Options) { o.PollEvery = 50 * time.Millisecond })
	w.ctl.post(target(w.ctl.target(1, 1, w.ctl.publish(1, "a", 3))))
	w.eventually("the polled target", func() bool { return p.serving() == 1 })
	if s := p.Status().Snapshot; s.Source != report.SourcePoll {
		t.Errorf("%+v", s)
	}
}

func TestANodeServesFromDiskWithoutAnyController(t *testing.T) { // CASES G51, G53
	w := newWorld(t)
	w.ctl.start(t)
	dir := t.TempDir()
	p := w.node(dir)
	w.ctl.post(target(w.ctl.target(2, 3, w.ctl.publish(5, "a", 30))))
	w.ctl.ack(2, 3)
	p.stop()
	dead := func(o *Options) { o.Controllers = []string{"127.0.0.1:1"} }
	q := w.node(dir, dead)
	if s := q.Status(); q.serving() != 5 || q.share != 2 || s.Snapshot.Source != report.SourceDisk || s.Snapshot.Served != 5 || s.Number != 3 || s.Connected {
		t.Errorf("serving %d: %+v", q.serving(), s)
	}
	if empty := w.node(t.TempDir(), dead); empty.serving() != 0 || empty.Status().Snapshot.Served != 0 {
		t.Error("an empty disk serves something")
	}
}

func TestADamagedSnapshotGivesWayToThePreviousOne(t *testing.T) { // CASES G51
	w := newWorld(t)
	w.ctl.start(t)
	dir := t.TempDir()
	p := w.node(dir, func(o *Options) { o.Probation = time.Millisecond })
	for n := uint64(1); n <= 2; n++ {
		w.ctl.post(target(w.ctl.target(1, n, w.ctl.publish(n, strings.Repeat("x", int(n)), 30))))
		w.ctl.ack(1, n)
		w.eventually("promotion", func() bool { return len(goodOn(t, dir)) == int(n) })
	}
	p.stop()
	newest := goodOn(t, dir)[0]
	older := shardsOf(t, dir, goodOn(t, dir)[1])
	for _, d := range shardsOf(t, dir, newest) {
		if !slices.Contains(older, d) {
			must(t, os.WriteFile(filepath.Join(dir, "shards", d), []byte("torn"), 0o600))
		}
	}
	q := w.node(dir, func(o *Options) { o.Controllers = []string{"127.0.0.1:1"} })
	if s := q.Status().Snapshot; q.serving() != 1 || s.Served != 1 || s.Known != 2 || !strings.Contains(s.Nack, "version 2 is not usable") || !strings.Contains(s.Nack, "damaged") {
		t.Errorf("serving %d: %+v", q.serving(), s)
	}
	q.stop()
	must(t, os.WriteFile(filepath.Join(dir, "state.json"), []byte("{"), 0o600))
	if r := w.node(dir, func(o *Options) { o.Controllers = []string{"127.0.0.1:1"} }); r.serving() != 1 {
		t.Errorf("without the state file: serving %d", r.serving())
	}
	w.ctl.forget()
	s := w.node(dir)
	w.eventually("the damaged shard to travel again", func() bool { return s.serving() == 2 })
	if fetched := w.ctl.forget(); len(fetched) != 1 {
		t.Errorf("%d blobs travelled, one was damaged", len(fetched))
	}
}

func goodOn(t *testing.T, dir string) []slot {
	s, err := openShelf(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s.state.Good
}

func shardsOf(t *testing.T, dir string, one slot) (digests []string) {
	s, err := openShelf(dir)
	must(t, err)
	m, err := s.manifest(one)
	must(t, err)
	for _, shard := range m.Shards {
		digests = append(digests, string(shard.Digest))
	}
	return digests
}

// What the state file has forgotten the stored target knows: the node goes back for nobody, and limits are divided as before.
func TestADamagedStateFileTakesNothingBack(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	dir := t.TempDir()
	p := w.node(dir)
	old := w.ctl.target(2, 8, w.ctl.publish(4, "b", 30))
	w.ctl.post(target(w.ctl.target(2, 9, w.ctl.publish(5, "a", 30))))
	w.ctl.ack(2, 9)
	p.stop()
	must(t, os.WriteFile(filepath.Join(dir, "state.json"), []byte(`{"form":7}`), 0o600))
	q := w.node(dir)
	if s := q.Status(); q.serving() != 5 || s.Epoch != 2 || s.Number != 9 || q.share != 2 {
		t.Errorf("serving %d: %+v", q.serving(), s)
	}
	w.ctl.post(target(old))
	w.ctl.post(target(w.ctl.target(2, 10, w.ctl.publish(6, "c", 30))))
	w.ctl.ack(2, 10)
	if s := q.Status(); s.Snapshot.Served != 6 {
		t.Errorf("%+v", s)
	}
}

func TestTheDiskKeepsThreeGoodSnapshotsAndTheCandidate(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	dir := t.TempDir()
	p := w.node(dir, func(o *Options) { o.Probation = time.Millisecond })
	var want []uint64
	for n := uint64(1); n <= 6; n++ {
		w.ctl.post(target(w.ctl.target(1, n, w.ctl.publish(n, strings.Repeat("x", int(n)), 5))))
		w.ctl.ack(1, n)
		w.eventually("promotion", func() bool { g := goodOn(t, dir); return len(g) > 0 && g[0].Version == n })
		want = append([]uint64{n}, want...)
	}
	p.stop()
	var have []uint64
	for _, g := range goodOn(t, dir) {
		have = append(have, g.Version)
	}
	if !slices.Equal(have, want[:keep]) {
		t.Errorf("good are %v", have)
	}
	needed := map[string]bool{}
	for _, g := range goodOn(t, dir) {
		for _, d := range shardsOf(t, dir, g) {
			needed[d] = true
		}
	}
	manifests, _ := os.ReadDir(filepath.Join(dir, "manifests"))
	shards, _ := os.ReadDir(filepath.Join(dir, "shards"))
	if len(manifests) != keep || len(shards) != len(needed) {
		t.Errorf("%d manifests and %d shards lie there, %d and %d are needed", len(manifests), len(shards), keep, len(needed))
	}
}

func TestACandidateThatCrashesTheNodeTwiceIsAbandoned(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	dir := t.TempDir()
	quick := func(o *Options) { o.Probation = time.Millisecond }
	p := w.node(dir, quick)
	w.ctl.post(target(w.ctl.target(1, 1, w.ctl.publish(1, "good", 3))))
	w.ctl.ack(1, 1)
	w.eventually("promotion", func() bool { return len(goodOn(t, dir)) == 1 })
	p.stop()

	bad := w.ctl.publish(2, "bad", 3)
	w.ctl.post(target(w.ctl.target(1, 2, bad)))
	p = w.node(dir)
	w.ctl.ack(1, 2)
	for range 3 {
		p.stop() // orderly exits are no crashes
		p = w.node(dir)
		if p.serving() != 2 {
			t.Fatalf("serving %d after an orderly exit", p.serving())
		}
	}
	p.stop()
	for range 2 { // processes that start, serve the candidate and die within the probation
		if s := bootOnly(t, w, dir).Status().Snapshot; s.Served != 2 {
			t.Fatalf("%+v", s)
		}
	}
	w.ctl.forget()
	p = w.node(dir)
	if s := p.Status().Snapshot; p.serving() != 1 || s.Served != 1 {
		t.Fatalf("serving %d: %+v", p.serving(), s)
	}
	if a := w.ctl.ack(1, 2); !strings.Contains(a.Nack, "version 2 crashed this node 2 times") {
		t.Errorf("nack %q", a.Nack)
	}
	if p.serving() != 1 {
		t.Error("the poisoned candidate was taken up again")
	}
	w.ctl.post(target(w.ctl.target(1, 3, w.ctl.publish(3, "mended", 3))))
	if a := w.ctl.ack(1, 3); a.Nack != "" || p.serving() != 3 {
		t.Errorf("%v, serving %d", a, p.serving())
	}
}

// A rollback is old contents under a new number: whoever kills the node then does not bring back what was rolled back.
func TestARollbackIsNotOnTrial(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	dir := t.TempDir()
	p := w.node(dir, func(o *Options) { o.Probation = time.Millisecond })
	for n, contents := range []string{"good", "bad"} {
		version := uint64(n + 1)
		w.ctl.post(target(w.ctl.target(1, version, w.ctl.publish(version, contents, 3))))
		w.ctl.ack(1, version)
		w.eventually("promotion", func() bool { return len(goodOn(t, dir)) == n+1 })
	}
	p.stop()
	p = w.node(dir)
	w.ctl.post(target(w.ctl.target(1, 3, w.ctl.publish(3, "good", 3))))
	w.ctl.ack(1, 3)
	p.stop()
	for range 3 {
		if s := bootOnly(t, w, dir).Status().Snapshot; s.Served != 3 {
			t.Fatalf("%+v", s)
		}
	}
	if good := goodOn(t, dir); len(good) != 2 {
		t.Errorf("the same contents are listed twice: %v", good)
	}
}

// bootOnly is a node up to the point where it would run, and then it is gone without a farewell.
func bootOnly(t *testing.T, w *world, dir string) *Agent {
	a, err := New(Options{ID: node, Dir: dir, Roots: w.roots, Apply: func(*program.Program, int) error { return nil }})
	must(t, err)
	a.Boot()
	return a
}

func TestALoneCandidateStaysHoweverOftenItCrashes(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	dir := t.TempDir()
	p := w.node(dir)
	w.ctl.post(target(w.ctl.target(1, 1, w.ctl.publish(1, "only", 3))))
	w.ctl.ack(1, 1)
	p.stop()
	for range 5 {
		if a := bootOnly(t, w, dir); a.Status().Snapshot.Served != 1 {
			t.Fatal("without another snapshot the candidate was given up")
		}
	}
}

func TestAFullDiskKeepsTheOldVersionAndSaysSo(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	dir := t.TempDir()
	p := w.node(dir)
	w.ctl.post(target(w.ctl.target(1, 1, w.ctl.publish(1, "a", 3))))
	w.ctl.ack(1, 1)
	// A file where the directory was makes every write below it fail, for root too.
	shards, aside := filepath.Join(dir, "shards"), filepath.Join(dir, "aside")
	must(t, os.Rename(shards, aside))
	must(t, os.WriteFile(shards, nil, 0o600))
	w.ctl.post(target(w.ctl.target(1, 2, w.ctl.publish(2, "b", 3))))
	if a := w.ctl.ack(1, 2); !strings.Contains(a.Nack, "durable") || p.serving() != 1 {
		t.Errorf("nack %q, serving %d", a.Nack, p.serving())
	}
	must(t, os.Remove(shards))
	must(t, os.Rename(aside, shards))
	w.eventually("the disk to be tried again", func() bool { return p.serving() == 2 && p.Status().Snapshot.Nack == "" })
}

func TestEvacuationOfTheOwnCellTellsClientsToReconnect(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	dir := t.TempDir()
	p := w.node(dir)
	now := time.Now()
	order := cells.Evacuation{Form: 1, Cell: "eu-west/a", Reason: "maintenance", Started: now.Add(-time.Second), Over: time.Minute, Expires: now.Add(time.Hour)}
	list := func(by *trust.Signer, orders ...cells.Evacuation) []byte {
		return w.ctl.sign(by, trust.KindOverrides, orders)
	}
	far := w.signer(trust.RoleController, "us-east/1")

	w.ctl.post(overrides(list(w.ctl.signer, cells.Evacuation{Form: 1, Cell: "eu-west/b", Started: now, Expires: now.Add(time.Hour)})))
	w.ctl.post(overrides(list(w.signer(trust.RoleRouter, "eu-west/2"), order)))
	time.Sleep(50 * time.Millisecond)
	if p.leaving() {
		t.Fatal("another cell's evacuation or a router's word sends clients away")
	}
	w.ctl.post(overrides(list(far, order)))
	w.eventually("the switch", p.leaving)
	w.ctl.post(overrides(list(far)))
	ignorant := overrides(list(w.ctl.signer))
	ignorant.GetOverrides().Adds = true
	w.ctl.post(ignorant)
	time.Sleep(30 * time.Millisecond)
	if !p.leaving() {
		t.Error("a list without the order ended it: the strictest does not win")
	}
	p.stop()
	q := w.node(dir, func(o *Options) { o.Controllers = []string{"127.0.0.1:1"} })
	if !q.leaving() {
		t.Error("the order did not survive a restart")
	}
	q.stop()
	r := w.node(dir)
	restored := order
	restored.Restored = now
	w.ctl.post(overrides(list(w.ctl.signer, restored)))
	w.eventually("the restoration", func() bool { return !r.leaving() })
	short := order
	short.Started, short.Expires = now.Add(-2*time.Second), time.Now().Add(150*time.Millisecond)
	w.ctl.post(overrides(list(w.ctl.signer, short)))
	w.eventually("the switch again", r.leaving)
	w.eventually("the expiry", func() bool { return !r.leaving() })
}

func TestTwoThousandSwapsLeaveHeapAndGoroutinesFlat(t *testing.T) { // CASES G47
	w := newWorld(t)
	dir := fast(t)
	a, err := New(Options{ID: node, Dir: dir, Roots: w.roots, Apply: func(*program.Program, int) error { return nil }})
	must(t, err)
	versions := []rollout.Version{w.ctl.publish(1, "a", 20), w.ctl.publish(2, "b", 20)}
	stock := func() {
		for d, b := range w.ctl.blobs {
			room := "shards"
			if d == string(versions[0].Manifest) || d == string(versions[1].Manifest) {
				room = "manifests"
			}
			must(t, os.WriteFile(filepath.Join(dir, room, d), b, 0o600))
		}
	}
	swap := func(n int) {
		for i := range n {
			if err := a.bring(t.Context(), order{1, uint64(i)}, 0, versions[i%2], 2, arrival{source: report.SourcePush, from: a.client}); err != nil {
				t.Fatal(err)
			}
			a.promote()
		}
	}
	stock()
	swap(1) // sweeps what version 2 needs
	stock()
	swap(100)
	heap, routines := measure()
	swap(2000)
	if h, r := measure(); r > routines || h > heap+1<<20 {
		t.Errorf("after 2,000 swaps: heap %d → %d bytes, goroutines %d → %d", heap, h, routines, r)
	}
}

// fast is a directory in memory where there is one: 4,000 syncs to a disk take a minute.
func fast(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "cellgate-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func measure() (heap uint64, goroutines int) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, runtime.NumGoroutine()
}
