package storetest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/store"
)

// view is a prefix as a receiver of its events knows it.
type view struct {
	t      *testing.T
	events <-chan store.Event
	state  map[string]store.Entry
	rev    store.Revision
	seen   int // events
	resets int
}

func watch(t *testing.T, s store.Store, prefix string) *view {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return &view{t: t, events: s.Watch(ctx, prefix), state: map[string]store.Entry{}}
}

// next folds one event in and checks what every event promises.
func (v *view) next() store.Event {
	v.t.Helper()
	select {
	case ev, ok := <-v.events:
		if !ok {
			v.t.Fatal("the watch has ended")
		}
		v.fold(ev)
		return ev
	case <-time.After(patience):
		v.t.Fatalf("no event within %v; the last was at %d", patience, v.rev)
	}
	panic("unreachable")
}

func (v *view) fold(ev store.Event) {
	v.t.Helper()
	if v.seen == 0 && !ev.Reset {
		v.t.Fatal("the first event is no reset")
	}
	if ev.Revision < v.rev || ev.Revision == v.rev && v.seen > 0 && !ev.Reset {
		v.t.Fatalf("an event at %d after one at %d", ev.Revision, v.rev)
	}
	if v.seen++; ev.Reset {
		v.resets++
		v.state = map[string]store.Entry{}
	}
	for _, key := range ev.Deleted {
		if _, ok := v.state[key]; !ok {
			v.t.Fatalf("%s was deleted at %d, but never told of", key, ev.Revision)
		}
		delete(v.state, key)
	}
	last := store.Revision(0)
	for _, e := range ev.Entries {
		if e.Modified > ev.Revision || !ev.Reset && (e.Modified <= v.rev || e.Modified < last) {
			v.t.Fatalf("an entry of %d in an event at %d after %d", e.Modified, ev.Revision, v.rev)
		}
		last = e.Modified
		v.state[e.Key] = e
	}
	v.rev = ev.Revision
}

// until folds events in until the view has reached the revision.
func (v *view) until(rev store.Revision) {
	v.t.Helper()
	for v.rev < rev {
		v.next()
	}
}

func (v *view) same(entries []store.Entry) bool {
	return slices.EqualFunc(slices.Sorted(maps.Keys(v.state)), entries, func(key string, e store.Entry) bool {
		got := v.state[key]
		return e.Key == key && string(got.Value) == string(e.Value) && got.Modified == e.Modified && got.Created == e.Created
	})
}

func watchReset(t *testing.T, w World) {
	s := w.Open()
	empty := watch(t, s, "a/")
	if ev := empty.next(); !ev.Reset || len(ev.Entries) != 0 {
		t.Errorf("an empty prefix begins with %+v", ev)
	}
	put(t, s, "a/2", "2")
	put(t, s, "b", "3")
	rev := put(t, s, "a/1", "1")
	full := watch(t, w.Open(), "a/")
	if ev := full.next(); !ev.Reset || ev.Revision < rev || !slices.Equal(keys(ev.Entries), []string{"a/1", "a/2"}) {
		t.Errorf("a full prefix begins with %+v", ev)
	}
}

func watchChanges(t *testing.T, w World) {
	s := w.Open()
	put(t, s, "a/old", "1")
	v := watch(t, w.Open(), "a/")
	v.next()
	put(t, s, "a0", "not below a/")
	rev := commit(t, s, store.Put("a/new", []byte("2")), store.Delete("a/old"), store.Put("b", nil))
	ev := v.next()
	if ev.Revision != rev || ev.Reset || !slices.Equal(keys(ev.Entries), []string{"a/new"}) || !slices.Equal(ev.Deleted, []string{"a/old"}) {
		t.Errorf("the commit at %d came as %+v", rev, ev)
	}
	put(t, s, "b", "elsewhere")
	rev = put(t, s, "a/new", "3")
	if ev := v.next(); ev.Revision != rev || string(v.state["a/new"].Value) != "3" || v.state["a/new"].Created >= rev {
		t.Errorf("the put at %d came as %+v", rev, ev)
	}
}

func watchSlow(t *testing.T, w World) {
	s := w.Open()
	v := watch(t, w.Open(), "a/")
	v.next()
	put(t, s, "a/kept", "0")
	v.next()
	var rev store.Revision
	for i := range 150 {
		put(t, s, "a/busy", fmt.Sprint(i))
		commit(t, s, store.Put(fmt.Sprint("a/brief", i), nil), store.Delete("a/kept"))
		rev = commit(t, s, store.Delete(fmt.Sprint("a/brief", i)), store.Put("a/kept", []byte(fmt.Sprint(i))))
	}
	before := v.seen
	v.until(rev)
	if string(v.state["a/busy"].Value) != "149" || string(v.state["a/kept"].Value) != "149" || len(v.state) != 2 {
		t.Errorf("after a pause the receiver knows %v", v.state)
	}
	if n := v.seen - before; n > 150 {
		t.Errorf("450 commits queued up as %d events", n)
	}
}

// watchFold lets writers work at random and compares what a receiver has folded with a list, whenever both are of one revision.
func watchFold(t *testing.T, w World) {
	s := w.Open()
	v := watch(t, w.Open(), "a/")
	rng := rand.New(rand.NewPCG(1, 2))
	type listed struct {
		rev     store.Revision
		entries []store.Entry
	}
	lists := make(chan listed, 300)
	go func() {
		defer close(lists)
		for i := range 200 {
			key := fmt.Sprintf("%c/%d", "ab"[rng.IntN(2)], rng.IntN(8))
			op := store.Put(key, []byte(fmt.Sprint(i)))
			if rng.IntN(3) == 0 {
				op = store.Delete(key)
			}
			if _, err := s.Commit(t.Context(), nil, []store.Op{op}); err != nil {
				return
			}
			if entries, rev, err := s.List(t.Context(), "a/"); err == nil {
				lists <- listed{rev, entries}
			}
		}
	}()
	v.next()
	compared, last := 0, listed{}
	for l := range lists {
		last = l
		at := store.Revision(0) // when the prefix itself last changed, as far as entries tell
		for _, e := range l.entries {
			at = max(at, e.Modified)
		}
		for v.rev < at {
			v.next()
		}
		if v.rev == l.rev {
			compared++
			if !v.same(l.entries) {
				t.Fatalf("at %d the receiver knows %v, the store %v", v.rev, v.state, l.entries)
			}
		}
	}
	end := put(t, s, "a/end", "")
	v.until(end)
	entries, _, err := s.List(within(t), "a/")
	if err != nil || !v.same(entries) || compared == 0 {
		t.Fatalf("in the end (list at %d, %d compared) the receiver knows %v, the store %v: %v", last.rev, compared, v.state, entries, err)
	}
}

func watchCompaction(t *testing.T, w World) {
	if w.Compact == nil {
		w.Compact = func(store.Revision) {} // a store without history has nothing to lose
	}
	s := w.Open()
	put(t, s, "a/1", "1")
	v := watch(t, w.Open(), "a/")
	v.next()
	for i := range 20 {
		rev := put(t, s, "a/1", fmt.Sprint(i))
		w.Compact(rev)
	}
	// A quiet prefix whose history is gone while others are busy.
	quiet := watch(t, w.Open(), "quiet/")
	quiet.next()
	for range 20 {
		w.Compact(put(t, s, "b", "busy"))
	}
	rev := commit(t, s, store.Put("quiet/x", []byte("y")), store.Put("a/1", []byte("end")))
	quiet.until(rev)
	v.until(rev)
	if string(quiet.state["quiet/x"].Value) != "y" || string(v.state["a/1"].Value) != "end" {
		t.Errorf("after compaction the receivers know %v and %v", quiet.state, v.state)
	}
}

func watchReconnect(t *testing.T, w World) {
	if w.Reconnect == nil {
		w.Reconnect = func() {}
	}
	s := w.Open()
	v := watch(t, w.Open(), "a/")
	v.next()
	var rev store.Revision
	for i := range 3 {
		put(t, s, fmt.Sprint("a/before", i), "x")
		w.Reconnect()
		eventually(t, "a commit after the break", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var err error
			rev, err = s.Commit(ctx, nil, []store.Op{store.Put(fmt.Sprint("a/after", i), nil)})
			return err == nil
		})
		// The history that the watch would resume from may be gone by then.
		if w.Compact != nil && i == 2 {
			w.Compact(rev)
		}
	}
	v.until(rev)
	if len(v.state) != 6 {
		t.Errorf("after three breaks the receiver knows %v", slices.Sorted(maps.Keys(v.state)))
	}
}

func watchEnd(t *testing.T, w World) {
	s := w.Open()
	ctx, cancel := context.WithCancel(t.Context())
	byContext, byStore := s.Watch(ctx, "a"), s.Watch(t.Context(), "a")
	cancel()
	closed(t, "context", byContext)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	closed(t, "store", byStore)
	closed(t, "closed store", s.Watch(t.Context(), "a"))
}

func closed(t *testing.T, of string, events <-chan store.Event) {
	t.Helper()
	end := time.After(patience)
	for {
		select {
		case _, ok := <-events:
			if !ok {
				return
			}
		case <-end:
			t.Fatalf("%s: the watch goes on", of)
		}
	}
}

func leased(key string, l store.Lease) store.Op {
	op := store.Put(key, []byte(strings.ToUpper(key)))
	op.Lease = l
	return op
}
