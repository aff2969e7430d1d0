// Package storetest is the conformance suite of store.Store: every promise of the interface, asked of every implementation.
//
//	storetest.Run(t, func(t *testing.T) storetest.World { … })
package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/store"
)

// World is one store's data, empty at first, that clients can be opened on.
type World struct {
	// Open gives another client, closed by the suite or at the end of the test.
	Open func() store.Store
	// MinLease is the shortest lease that the store grants.
	MinLease time.Duration
	// Compact forgets the history up to and with the revision. Nil when the store keeps none.
	Compact func(store.Revision)
	// Reconnect breaks every connection between clients and data for a moment. Nil when there is none.
	Reconnect func()
}

// Run asks a fresh world about each promise.
func Run(t *testing.T, fresh func(*testing.T) World) {
	tests := []struct {
		name string
		run  func(*testing.T, World)
	}{
		{"AMissingKeyIsNotFound", missing},
		{"CreatedAndModifiedAreTheRevisionsOfCommits", revisions},
		{"CommitIsAllOrNothing", allOrNothing},
		{"ConcurrentCompareAndSetLosesNoUpdate", counter},
		{"ListsAreSortedAndOfThePrefixOnly", list},
		{"ListOfManyKeysIsOfOneRevision", listMany},
		{"OutOfBoundsIsRefusedAndNothingApplied", bounds},
		{"AValueOfMaxValueIsKept", largest},
		{"DeletingNothingChangesNothing", deleteAbsent},
		{"BuffersStayTheCallers", buffers},
		{"EndedContextsAndClosedStoresAreErrors", ended},
		{"WatchBeginsWithTheWholeState", watchReset},
		{"WatchTellsEveryChangeOfItsPrefix", watchChanges},
		{"ASlowReceiverGetsTheNetChange", watchSlow},
		{"FoldedEventsAreTheStateAtTheirRevision", watchFold},
		{"WatchSurvivesCompaction", watchCompaction},
		{"WatchSurvivesReconnects", watchReconnect},
		{"WatchEndsWithItsContextOrStore", watchEnd},
		{"LeaseOutlivesItsTTLWhileItsHolderLives", leaseKept},
		{"ReleaseDeletesTheKeys", leaseRelease},
		{"ADeadHoldersKeysGo", leaseDeath},
		{"APlainPutLeavesTheLease", leaseDetach},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.run(t, fresh(t)) })
	}
}

// patience is how long anything that must happen may take on a loaded machine.
const patience = 20 * time.Second

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func commit(t *testing.T, s store.Store, ops ...store.Op) store.Revision {
	t.Helper()
	rev, err := s.Commit(within(t), nil, ops)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func put(t *testing.T, s store.Store, key, value string) store.Revision {
	t.Helper()
	return commit(t, s, store.Put(key, []byte(value)))
}

func get(t *testing.T, s store.Store, key string) store.Entry {
	t.Helper()
	e, err := s.Get(within(t), key)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func absent(t *testing.T, s store.Store, key string) bool {
	t.Helper()
	_, err := s.Get(within(t), key)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	return err != nil
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

func missing(t *testing.T, w World) {
	s := w.Open()
	if !absent(t, s, "nowhere") {
		t.Error("a key that was never put is there")
	}
	if entries, _, err := s.List(within(t), "nowhere/"); err != nil || len(entries) != 0 {
		t.Errorf("an empty prefix lists %v, %v", entries, err)
	}
}

func revisions(t *testing.T, w World) {
	s := w.Open()
	first := commit(t, s, store.Put("a", []byte("1")), store.Put("b", nil))
	second := put(t, s, "a", "2")
	third := put(t, s, "a", "2") // the same value is a change all the same
	if !(first < second && second < third) {
		t.Fatalf("revisions %d, %d, %d do not rise", first, second, third)
	}
	if e := get(t, s, "a"); e.Created != first || e.Modified != third || string(e.Value) != "2" || e.Key != "a" {
		t.Errorf("a is %+v", e)
	}
	if e := get(t, w.Open(), "b"); e.Created != first || e.Modified != first || len(e.Value) != 0 {
		t.Errorf("b is %+v", e)
	}
	commit(t, s, store.Delete("a"))
	again := put(t, s, "a", "3")
	if e := get(t, s, "a"); e.Created != again || e.Modified != again {
		t.Errorf("a, created anew at %d, is %+v", again, e)
	}
}

func allOrNothing(t *testing.T, w World) {
	s := w.Open()
	put(t, s, "a", "1")
	a := get(t, s, "a")
	ops := []store.Op{store.Put("a", []byte("2")), store.Put("b", []byte("2")), store.Delete("c")}
	put(t, s, "c", "1")
	refused := [][]store.Cond{
		{store.Absent("a")},
		{store.Unchanged(a), store.Absent("c")},
		{{Key: "a", Modified: a.Modified + 1}},
		{{Key: "b", Modified: a.Modified}},
	}
	for _, conds := range refused {
		if _, err := s.Commit(within(t), conds, ops); !errors.Is(err, store.ErrConflict) {
			t.Errorf("conditions %v: %v", conds, err)
		}
	}
	if string(get(t, s, "a").Value) != "1" || !absent(t, s, "b") || absent(t, s, "c") {
		t.Fatal("a refused commit left something behind")
	}
	rev, err := s.Commit(within(t), []store.Cond{store.Unchanged(a), store.Absent("b")}, ops)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := get(t, s, "a"), get(t, s, "b"); a.Modified != rev || b.Modified != rev || !absent(t, s, "c") {
		t.Errorf("commit at %d left a at %d, b at %d", rev, a.Modified, b.Modified)
	}
	if _, err := s.Commit(within(t), []store.Cond{store.Unchanged(a)}, nil); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a stale condition alone: %v", err)
	}
}

func counter(t *testing.T, w World) {
	const workers, each = 4, 20
	put(t, w.Open(), "n", "")
	done := make(chan error, workers)
	for range workers {
		s := w.Open()
		go func() {
			for range each {
				if err := increment(t.Context(), s); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range workers {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if n := len(get(t, w.Open(), "n").Value); n != workers*each {
		t.Errorf("%d increments gave %d", workers*each, n)
	}
}

func increment(ctx context.Context, s store.Store) error {
	for {
		e, err := s.Get(ctx, "n")
		if err != nil {
			return err
		}
		_, err = s.Commit(ctx, []store.Cond{store.Unchanged(e)}, []store.Op{store.Put("n", append(slices.Clone(e.Value), 'x'))})
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}

func list(t *testing.T, w World) {
	s := w.Open()
	for _, key := range []string{"r/b", "r0", "r/a/1", "r", "q/z", "r/a", "r/\xff"} {
		put(t, s, key, key)
	}
	rev := commit(t, s, store.Delete("q/z"))
	entries, at, err := s.List(within(t), "r/")
	if err != nil {
		t.Fatal(err)
	}
	if at < rev {
		t.Errorf("list at %d, after a commit at %d", at, rev)
	}
	if got := keys(entries); !slices.Equal(got, []string{"r/a", "r/a/1", "r/b", "r/\xff"}) {
		t.Errorf("r/ lists %q", got)
	}
	all, _, err := s.List(within(t), "")
	if err != nil || len(all) != 6 || !slices.IsSorted(keys(all)) {
		t.Errorf("everything is %q, %v", keys(all), err)
	}
	bare, _, err := s.Keys(within(t), "r/")
	if err != nil || len(bare) != len(entries) {
		t.Fatalf("%d keys where %d entries are, %v", len(bare), len(entries), err)
	}
	for i, e := range bare {
		if e.Key != entries[i].Key || e.Created != entries[i].Created || e.Modified != entries[i].Modified || e.Value != nil {
			t.Errorf("key %+v of entry %+v", e, entries[i])
		}
	}
}

func keys(entries []store.Entry) []string {
	var out []string
	for _, e := range entries {
		out = append(out, e.Key)
	}
	return out
}

// listMany moves a marker through 600 keys while they are listed: a list of one revision has it exactly once.
func listMany(t *testing.T, w World) {
	s, mover := w.Open(), w.Open()
	const n = 600
	for i := 0; i < n; i += 60 {
		var ops []store.Op
		for j := i; j < i+60; j++ {
			ops = append(ops, store.Put(fmt.Sprintf("k/%03d", j), []byte(".")))
		}
		commit(t, s, ops...)
	}
	put(t, s, "k/000", "here")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		at := 0
		for ctx.Err() == nil {
			next := (at + 257) % n
			_, err := mover.Commit(context.WithoutCancel(ctx), nil, []store.Op{
				store.Put(fmt.Sprintf("k/%03d", at), []byte(".")), store.Put(fmt.Sprintf("k/%03d", next), []byte("here"))})
			if err != nil {
				done <- err
				return
			}
			at = next
		}
		done <- nil
	}()
	for range 20 {
		entries, _, err := s.List(within(t), "k/")
		if err != nil {
			t.Fatal(err)
		}
		here := 0
		for _, e := range entries {
			if string(e.Value) == "here" {
				here++
			}
		}
		if len(entries) != n || here != 1 {
			t.Fatalf("a list of %d keys saw the marker %d times", len(entries), here)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func bounds(t *testing.T, w World) {
	s := w.Open()
	many := func(n, size int) []store.Op {
		var ops []store.Op
		for i := range n {
			ops = append(ops, store.Put(fmt.Sprint("k", i), make([]byte, size)))
		}
		return ops
	}
	refused := map[string][]store.Op{
		"a value above MaxValue": {store.Put("ok", nil), store.Put("k", make([]byte, store.MaxValue+1))},
		"too many operations":    many(store.MaxOps+1, 1),
		"too many bytes":         many(3, store.MaxCommit/3+1),
		"an empty key":           {store.Put("", nil)},
		"a long key":             {store.Put(strings.Repeat("k", store.MaxKey+1), nil)},
		"one key twice":          {store.Put("k", nil), store.Delete("k")},
	}
	for name, ops := range refused {
		if _, err := s.Commit(within(t), nil, ops); !errors.Is(err, store.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if entries, _, err := s.List(within(t), ""); err != nil || len(entries) != 0 {
		t.Errorf("refused commits left %q, %v", keys(entries), err)
	}
	commit(t, s, many(store.MaxOps, 1)...)
}

func largest(t *testing.T, w World) {
	s := w.Open()
	value := []byte(strings.Repeat("v", store.MaxValue))
	commit(t, s, store.Put("k", value), store.Put(strings.Repeat("k", store.MaxKey), nil))
	if e := get(t, w.Open(), "k"); string(e.Value) != string(value) {
		t.Errorf("%d of %d bytes came back", len(e.Value), len(value))
	}
}

func deleteAbsent(t *testing.T, w World) {
	s := w.Open()
	rev := put(t, s, "a", "1")
	if after := commit(t, s, store.Delete("b")); after != rev {
		t.Errorf("deleting nothing moved the revision from %d to %d", rev, after)
	}
	if after := commit(t, s); after != rev {
		t.Errorf("an empty commit moved the revision from %d to %d", rev, after)
	}
}

func buffers(t *testing.T, w World) {
	s := w.Open()
	value := []byte("before")
	commit(t, s, store.Put("a", value))
	copy(value, "after!")
	if got := get(t, s, "a").Value; string(got) != "before" {
		t.Errorf("the store holds %q", got)
	}
}

func ended(t *testing.T, w World) {
	s := w.Open()
	put(t, s, "a", "1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	check := func(when string, ctx context.Context, want error) {
		t.Helper()
		_, gerr := s.Get(ctx, "a")
		_, _, lerr := s.List(ctx, "")
		_, cerr := s.Commit(ctx, nil, []store.Op{store.Put("b", nil)})
		_, serr := s.Lease(ctx, w.MinLease)
		for _, err := range []error{gerr, lerr, cerr, serr} {
			if !errors.Is(err, want) {
				t.Errorf("%s: %v", when, err)
			}
		}
	}
	check("ended context", ctx, context.Canceled)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	check("closed store", t.Context(), store.ErrClosed)
	if err := s.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
}
