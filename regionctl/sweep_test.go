package regionctl

import (
	"testing"

	"github.com/cellgate/cellgate/store"
)

func TestSweepForgetsOldVersionsAndWhatOnlyTheyNeeded(t *testing.T) {
	b := newBench(t)
	l, end := b.incumbent(b.global.Join())
	defer end()
	for n := range 6 {
		b.publishDirect(l.Controller, n+1)
	}
	for range 3 {
		must(t, l.stepRollout(t.Context()))
		b.beat(l.Controller)
	}
	before, err := l.globalBlobs.List(t.Context())
	must(t, err)
	must(t, l.sweep(t.Context(), 2))
	l.recent.blobs = nil
	after, err := l.globalBlobs.List(t.Context())
	must(t, err)
	if len(after) >= len(before) {
		t.Errorf("%d blobs of %d are left", len(after), len(before))
	}
	for n, want := range map[uint64]bool{1: false, 4: false, 5: true, 6: true} {
		if _, _, err := l.content(t.Context(), n); (err == nil) != want {
			t.Errorf("version %d: %v", n, err)
		}
	}
	if rec := b.publishDirect(l.Controller, 2); rec.Manifest.Number != 7 {
		t.Errorf("the next number is %d", rec.Manifest.Number)
	}
	if _, _, err := l.content(t.Context(), 7); err != nil {
		t.Errorf("published again after the sweep: %v", err)
	}
}

func TestPublicationWaitsForASweepOfALivingLeaderOnly(t *testing.T) {
	b := newBench(t)
	l, end := b.incumbent(b.global.Join())
	must(t, l.markSweep(t.Context(), l.Epoch))
	if _, err := l.sweepMark(t.Context()); err != errSweeping {
		t.Errorf("during a sweep: %v", err)
	}
	end() // the leader dies in the middle of it
	next, end := b.incumbent(b.global.Join())
	defer end()
	mark, err := next.sweepMark(t.Context())
	if err != nil || mark.Modified == 0 {
		t.Errorf("after the leader's death: %+v, %v", mark, err)
	}
	if err := l.globalBlobs.Delete(t.Context(), "x", l.Fence()); err == nil {
		t.Error("the dead leader still deletes")
	}
	must(t, next.markSweep(t.Context(), next.Epoch))
	if _, err := b.global.Commit(t.Context(), []store.Cond{mark}, []store.Op{store.Put("k", nil)}); err == nil {
		t.Error("a publication commits although a sweep has begun")
	}
}
