package regionctl

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/store/storetest"
)

func TestSweepForgetsOldVersionsAndWhatOnlyTheyNeeded(t *testing.T) {
	t.Parallel()
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
	must(t, l.sweepInTurn(t.Context(), 2))
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

// A publication that began before a sweep starts over; one that begins during a sweep writes what is there already anew, so
// that it is whole whatever the sweep does. Neither waits for it.
func TestPublicationsAndASweepDoNotDisturbOneAnother(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l, end := b.incumbent(b.global.Join())
	defer end()
	b.publishDirect(l.Controller, 2)
	tried := 0
	publish := func(within func()) *versionRecord {
		t.Helper()
		cfg, problems := snapshot.Decode([]snapshot.File{{Name: "a", Data: []byte(routesDocument(2))}}, snapshot.Loopback())
		must(t, problems.Err())
		rec, err := l.publish(t.Context(), publication{build: func(*snapshot.Config, *versionRecord) (*snapshot.Config, error) {
			if tried++; tried == 1 {
				within()
			}
			return cfg, nil
		}})
		must(t, err)
		return rec
	}
	publish(func() { must(t, l.sweep(t.Context())) })
	if tried != 2 {
		t.Errorf("a publication that a sweep came into was tried %d times", tried)
	}
	_, err := sweep(t.Context(), b.global, store.KeySweep, uint64(l.Fence().Modified), func(ctx context.Context) (map[string]bool, error) {
		needed, err := l.neededBlobs(ctx, nil)
		rec := publish(func() {})
		if content, _, err2 := l.content(ctx, rec.Manifest.Number); err2 != nil || len(content.Routes) != 2 {
			err = errors.Join(err, err2)
		}
		return needed, err
	}, l.Fence())
	must(t, err)
	l.recent.blobs = nil
	for n := range uint64(3) {
		if _, _, err := l.content(t.Context(), n+1); err != nil {
			t.Errorf("version %d: %v", n+1, err)
		}
	}
}

func TestDeposedLeaderSweepsNothing(t *testing.T) {
	b := newBench(t)
	old, end := b.incumbent(b.global.Join())
	end()
	next, end := b.incumbent(b.global.Join())
	defer end()
	orphan, err := next.globalBlobs.Put(t.Context(), []byte("an orphan"))
	must(t, err)
	if err := old.sweep(t.Context()); !errors.Is(err, store.ErrConflict) {
		t.Errorf("the deposed leader's sweep: %v", err)
	}
	if _, err := next.globalBlobs.Get(t.Context(), orphan); err != nil {
		t.Error(err)
	}
	if _, err := old.globalBlobs.Sweep(t.Context(), 1<<40, nil, old.Fence()); !errors.Is(err, store.ErrConflict) {
		t.Errorf("it goes on in the middle of one: %v", err)
	}
	must(t, next.sweep(t.Context()))
	if _, err := next.globalBlobs.Get(t.Context(), orphan); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the orphan: %v", err)
	}
}

// A publication dies at each of its writes, before and after it is durable; a sweep leaves exactly what is published.
func TestSweepTakesWhatADeadPublicationLeft(t *testing.T) {
	for _, persisted := range []bool{false, true} {
		for at := 1; ; at++ {
			b := newBench(t)
			faulty := &storetest.Faulty{Store: b.global.Join()}
			l, end := b.incumbent(faulty)
			b.publishDirect(l.Controller, 2)
			cfg, problems := snapshot.Decode([]snapshot.File{{Name: "a", Data: []byte(routesDocument(3))}}, snapshot.Loopback())
			must(t, problems.Err())
			faulty.Fail(at, persisted)
			_, err := l.publish(t.Context(), publication{build: func(*snapshot.Config, *versionRecord) (*snapshot.Config, error) { return cfg, nil }})
			if err == nil { // there is no such write
				end()
				if at < 3 {
					t.Errorf("a publication of %d writes", at-1)
				}
				break
			}
			if !errors.Is(err, storetest.ErrFault) {
				t.Fatal(err)
			}
			must(t, l.sweep(t.Context()))
			b.onlyNeeded(l)
			for _, rec := range l.records() {
				l.recent.blobs = nil
				if _, err := l.open(t.Context(), &rec); err != nil {
					t.Errorf("write %d (persisted: %v): version %d: %v", at, persisted, rec.Manifest.Number, err)
				}
			}
			end()
		}
	}
}

// onlyNeeded fails the test when the global store has another blob, or chunk, than what is referred to.
func (b *bench) onlyNeeded(l *term) {
	b.t.Helper()
	needed, err := l.neededBlobs(b.t.Context(), nil)
	must(b.t, err)
	var want []string
	for d := range needed {
		want = append(want, d)
	}
	slices.Sort(want)
	have, err := l.globalBlobs.List(b.t.Context())
	must(b.t, err)
	if !slices.Equal(have, want) {
		b.t.Errorf("the store has %d blobs, %d are referred to", len(have), len(want))
	}
	chunks, _, err := b.global.Keys(b.t.Context(), "chunks/")
	must(b.t, err)
	for _, e := range chunks {
		if digest := e.Key[len("chunks/") : len("chunks/")+64]; !needed[digest] {
			b.t.Errorf("%s belongs to nothing", e.Key)
		}
	}
}
