package regionctl

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/store/mem"
	"github.com/cellgate/cellgate/store/storetest"
	"github.com/cellgate/cellgate/trust"
)

var update = flag.Bool("update", false, "rewrite the golden files of the current form")

// step takes one step of the steering at the bench's clock; again, as the loop would, while the mirror is behind the store.
func (b *bench) step(l *term, save bool) error {
	b.t.Helper()
	for {
		b.now = b.now.Add(2 * time.Second)
		in, err := l.steerInputs(context.Background(), l.Epoch, b.now)
		must(b.t, err)
		if _, err = l.stepPlan(context.Background(), in, b.now, save); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}

// storedPlan opens what the global store says, by a controller that remembers nothing.
func (b *bench) storedPlan(l *term) *openPlan {
	b.t.Helper()
	e, err := b.global.Get(b.t.Context(), store.KeyPlan)
	must(b.t, err)
	l.plans = plans{}
	p, err := l.openStored(b.t.Context(), e.Value, l.globalBlobs)
	must(b.t, err)
	return p
}

// The leader dies at each write of a step, before and after it is durable. The next one goes on from a whole state, no number
// falls, and a sweep leaves nothing behind.
func TestSteeringSurvivesTheLeadersDeathAtEveryWrite(t *testing.T) {
	for _, persisted := range []bool{false, true} {
		for at, died := 1, true; died; at++ {
			b := newBench(t)
			first, end := b.incumbent(b.global.Join())
			must(t, b.step(first, false))
			end()
			before := b.storedPlan(first)

			faulty := &storetest.Faulty{Store: b.global.Join()}
			doomed, end := b.incumbent(faulty)
			faulty.Fail(at, persisted)
			err := b.step(doomed, false)
			if died = errors.Is(err, storetest.ErrFault); err != nil && !died {
				t.Fatal(err)
			}
			end()
			between := b.storedPlan(doomed)
			if between.plan.Number < before.plan.Number || !died && between.plan.Number == before.plan.Number {
				t.Errorf("write %d (persisted: %v): plan %d after %d", at, persisted, between.plan.Number, before.plan.Number)
			}
			next, end := b.incumbent(b.global.Join())
			state, err := next.readSteering(t.Context())
			must(t, err)
			if !reflect.DeepEqual(state.Plan, *between.plan) || len(state.Cells) != len(state.Plan.Cells) {
				t.Errorf("write %d (persisted: %v): the state is of plan (%d, %d), published is (%d, %d)", at, persisted, state.Plan.Epoch, state.Plan.Number, between.Epoch, between.Number)
			}
			must(t, b.step(next, false))
			if after := b.storedPlan(next); after.plan.Number <= between.plan.Number || after.Epoch <= between.Epoch {
				t.Errorf("write %d (persisted: %v): plan (%d, %d) after (%d, %d)", at, persisted, after.Epoch, after.Number, between.Epoch, between.Number)
			}
			must(t, next.sweep(t.Context()))
			b.onlyNeeded(next)
			end()
			if !died && at < 4 {
				t.Errorf("a step of %d writes", at-1)
			}
		}
	}
}

// A step that comes while the leader itself sweeps is tried again, and nothing of it is lost.
func TestStepsAndASweepDoNotDisturbOneAnother(t *testing.T) {
	b := newBench(t)
	l, end := b.incumbent(b.global.Join())
	defer end()
	must(t, b.step(l, false))
	_, err := sweep(t.Context(), b.global, store.KeySweep, uint64(l.Fence().Modified), func(ctx context.Context) (map[string]bool, error) {
		needed, err := l.neededBlobs(ctx, nil)
		l.opt.SteeredNames = append(l.opt.SteeredNames, "more.gw.test")
		l.names = names{}
		return needed, errors.Join(err, b.step(l, true))
	}, l.Fence())
	must(t, err)
	if p := b.storedPlan(l); p.plan.Number != 2 {
		t.Errorf("plan %d", p.plan.Number)
	}
	if _, err := l.readSteering(t.Context()); err != nil {
		t.Error(err)
	}
	must(t, l.sweep(t.Context()))
	b.onlyNeeded(l)
}

// before does something once, right before the commit that would write the key.
type before struct {
	store.Store
	key string
	do  func()
}

func (s *before) Commit(ctx context.Context, conds []store.Cond, ops []store.Op) (store.Revision, error) {
	if do := s.do; do != nil && slices.ContainsFunc(ops, func(op store.Op) bool { return op.Key == s.key }) {
		s.do = nil
		do()
	}
	return s.Store.Commit(ctx, conds, ops)
}

// A whole sweep comes between the blobs of a step, or of a copy, and the record that refers to them: the sweep may take them,
// so the record must not be written.
func TestSweepBetweenBlobsAndTheirRecordMakesThemBeWrittenAgain(t *testing.T) {
	b := newBench(t)
	global := &before{Store: b.global.Join(), key: store.KeySteering}
	l, end := b.incumbent(global)
	defer end()
	must(t, b.step(l, false))
	first := b.storedPlan(l)
	l.opt.SteeredNames = append(l.opt.SteeredNames, "more.gw.test")
	l.names = names{}
	swept := 0
	global.do = func() { swept++; must(t, l.sweep(t.Context())) }
	must(t, b.step(l, false))
	if p := b.storedPlan(l); swept != 1 || p.Number <= first.Number {
		t.Errorf("plan %d after %d, %d sweeps", p.Number, first.Number, swept)
	}
	if _, err := l.readSteering(t.Context()); err != nil {
		t.Error(err)
	}

	regional := &before{Store: mem.New(), key: store.KeyCopyPlan}
	l.opt.Regional, l.regionalBlobs = regional, store.NewBlobs(regional)
	regional.do = func() { swept++; must(t, l.sweepCopies(t.Context())) }
	if err := l.copyPlan(t.Context()); !errors.Is(err, store.ErrConflict) || swept != 2 {
		t.Errorf("a copy that a sweep came into: %v", err)
	}
	e, err := regional.Get(t.Context(), store.KeyCopySweep)
	must(t, err)
	l.copied.apply(store.Event{Revision: e.Modified, Entries: []store.Entry{e}})
	must(t, l.copyPlan(ended(t)))
	b.copied(l, regional)
}

// ended is a context that waits for no mirror.
func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// The region's copy dies at each write; what its pointer names is whole in the region's own store all the time.
func TestRegionsCopyOfThePlanIsWholeAtEveryWrite(t *testing.T) {
	for _, persisted := range []bool{false, true} {
		for at, died := 1, true; died; at++ {
			b := newBench(t)
			l, end := b.incumbent(b.global.Join())
			faulty := &storetest.Faulty{Store: mem.New()}
			l.opt.Regional, l.regionalBlobs = faulty, store.NewBlobs(faulty)
			ctx, cancel := context.WithCancel(t.Context())
			mirrored := make(chan struct{})
			go func() { defer close(mirrored); l.copied.run(ctx, faulty) }()
			must(t, b.step(l, false))
			must(t, l.copyPlan(t.Context()))
			one := b.copied(l, faulty)
			l.opt.SteeredNames = append(l.opt.SteeredNames, "more.gw.test")
			l.names = names{}
			must(t, b.step(l, false))
			faulty.Fail(at, persisted)
			err := l.copyPlan(t.Context())
			if died = errors.Is(err, storetest.ErrFault); err != nil && !died {
				t.Fatal(err)
			}
			if p := b.copied(l, faulty); p.Number < one.Number {
				t.Errorf("write %d (persisted: %v): the copy went from %d to %d", at, persisted, one.Number, p.Number)
			}
			l.copied.see(t.Context(), storeRevision(t, faulty))
			must(t, l.copyPlan(t.Context()))
			if p := b.copied(l, faulty); p.Number != one.Number+1 {
				t.Errorf("write %d (persisted: %v): the copy is plan %d", at, persisted, p.Number)
			}
			must(t, l.sweepCopies(t.Context()))
			b.copied(l, faulty)
			if left, err := l.regionalBlobs.List(t.Context()); err != nil || len(left) != 1 {
				t.Errorf("write %d (persisted: %v): %d blobs in the region's store, %v", at, persisted, len(left), err)
			}
			cancel()
			<-mirrored
			end()
			if !died && at < 3 {
				t.Errorf("a copy of %d writes", at-1)
			}
		}
	}
}

func storeRevision(t *testing.T, s store.Store) store.Revision {
	_, rev, err := s.Keys(t.Context(), store.PrefixCopy+"none/")
	must(t, err)
	e, err := s.Get(t.Context(), store.KeyCopyPlan)
	must(t, err)
	return min(rev, e.Modified)
}

// copied opens the region's copy from the region's store alone, by a controller that remembers nothing.
func (b *bench) copied(l *term, s store.Store) *openPlan {
	b.t.Helper()
	e, err := s.Get(b.t.Context(), store.KeyCopyPlan)
	must(b.t, err)
	l.plans = plans{}
	p, err := l.openStored(b.t.Context(), e.Value, store.NewBlobs(s))
	must(b.t, err)
	return p
}

// What a controller of the previous form stored is read: steered on from, shown to routers and copied to the region.
func TestPlansAndStatesOfThePreviousFormAreRead(t *testing.T) {
	b := newBench(t)
	raw, err := os.ReadFile(filepath.Join("testdata", "steering-1.json"))
	must(t, err)
	var old steer.State
	must(t, json.Unmarshal(raw, &old))
	envelope, err := b.signer_.Sign(trust.KindPlan, encode(old.Plan))
	must(t, err)
	_, err = b.global.Commit(t.Context(), nil, []store.Op{store.Put(store.KeySteering, raw), store.Put(store.KeyPlan, envelope), store.Put(store.KeyPastPlan(old.Plan.Epoch, old.Plan.Number), envelope)})
	must(t, err)

	l, end := b.incumbent(b.global.Join())
	defer end()
	if state, err := l.readSteering(t.Context()); err != nil || !reflect.DeepEqual(state, old) {
		t.Fatalf("%+v, %v", state, err)
	}
	if epoch, head, err := planSeen(envelope); err != nil || epoch != old.Plan.Epoch || head != old.Plan.Head {
		t.Errorf("epoch %d, head %d, %v", epoch, head, err)
	}
	if p := b.storedPlan(l); p.plan.Number != old.Plan.Number || string(p.mail().Envelope) != string(envelope) {
		t.Errorf("plan %+v", p.planRecord)
	}
	must(t, l.sweep(t.Context())) // refers to no blob, and is no obstacle
	_, err = b.regionOf(l).Commit(t.Context(), nil, []store.Op{store.Put(store.KeyCopyPlan, envelope)})
	must(t, err)
	l.copied.apply(store.Event{Revision: 1, Entries: []store.Entry{{Key: store.KeyCopyPlan, Value: envelope, Modified: 1, Created: 1}}})
	must(t, l.copyPlan(t.Context()))
	if e, err := b.regionOf(l).Get(t.Context(), store.KeyCopyPlan); err != nil || string(e.Value) != string(envelope) {
		t.Errorf("the copy of the same plan was written again: %v", err)
	}
	b.now = old.Stepped
	must(t, b.step(l, false))
	state, err := l.readSteering(t.Context())
	must(t, err)
	if state.Plan.Number != old.Plan.Number+1 || !reflect.DeepEqual(state.Plan.Rows, old.Plan.Rows) {
		t.Errorf("plan %d follows %d", state.Plan.Number, old.Plan.Number)
	}
	must(t, l.trimHistory(t.Context()))
}

func (b *bench) regionOf(l *term) store.Store { return l.opt.Regional }

// The records themselves stay readable: what they say today is in golden files.
func TestGoldenReferencesOfThisFormAreRead(t *testing.T) {
	plan := planRecord{Form: referenceForm, Epoch: 7, Number: 12, Head: 3, Blob: store.DigestOf([]byte("plan")), Bytes: 4096}
	steering := steeringRecord{Form: referenceForm, Blob: store.DigestOf([]byte("state")), Bytes: 512, Plan: &plan}
	for name, v := range map[string]any{"plan-2.json": plan, "steering-2.json": steering} {
		file := filepath.Join("testdata", name)
		if *update {
			must(t, os.WriteFile(file, append(encode(v), '\n'), 0o644))
		}
		raw, err := os.ReadFile(file)
		must(t, err)
		read := reflect.New(reflect.TypeOf(v))
		must(t, json.Unmarshal(raw, read.Interface()))
		if !reflect.DeepEqual(read.Elem().Interface(), v) {
			t.Errorf("%s: %+v", name, read.Elem().Interface())
		}
		if fmt.Sprint(referred(raw)) == "[]" {
			t.Errorf("%s refers to nothing", name)
		}
	}
	for _, bad := range []string{"", "{}", `{"form":3,"blob":"x"}`, `{"form":2}`, "CGE"} {
		if _, _, err := planReference([]byte(bad)); err == nil {
			t.Errorf("%q is taken for a plan", bad)
		}
	}
	if _, err := unpack(pack([]byte("state")), 4); err == nil {
		t.Error("a value of another size was unpacked")
	}
	if _, err := unpack([]byte("no frame"), 8); err == nil {
		t.Error("what is no frame was unpacked")
	}
}
