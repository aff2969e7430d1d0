package store_test

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/store"
)

// A receiver that reads at any pace has, after each event, exactly the state at that event's revision, and is never told
// of a deletion of what it did not have.
func TestFeedFoldsToTheStateAtEveryPace(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.IntRange(0, 19), 1, 60).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer func() { cancel(); synctest.Wait() }()
			feed, out := store.NewFeed(), make(chan store.Event)
			go feed.Run(ctx, out)
			state, history := map[string]store.Entry{}, map[store.Revision]map[string]store.Entry{}
			have, rev := map[string]store.Entry{}, store.Revision(1)
			feed.Reset(rev, nil)
			history[rev] = maps.Clone(state)
			receive := func() {
				synctest.Wait()
				select {
				case ev := <-out:
					fold(rt, have, ev)
					if want := history[ev.Revision]; !same(have, want) {
						rt.Fatalf("at %d: %v instead of %v", ev.Revision, have, want)
					}
				default:
				}
			}
			for i, step := range steps {
				key := fmt.Sprint("k", step%5)
				rev++
				old, exists := state[key]
				switch {
				case step >= 18: // what a compaction or a reconnect does
					var all []store.Entry
					for _, e := range state {
						all = append(all, e)
					}
					feed.Reset(rev, all)
				case step >= 15:
					receive()
				case step >= 10 && exists:
					delete(state, key)
					feed.Change(rev, nil, []string{key})
				default:
					e := store.Entry{Key: key, Value: []byte(fmt.Sprint(i)), Created: rev, Modified: rev}
					if exists {
						e.Created = old.Created
					}
					state[key] = e
					feed.Change(rev, []store.Entry{e}, nil)
				}
				history[rev] = maps.Clone(state)
			}
			for range 3 { // the event in hand, and what waits behind it
				receive()
			}
			if !same(have, state) {
				rt.Fatalf("in the end %v instead of %v", have, state)
			}
		})
	})
}

func fold(rt *rapid.T, have map[string]store.Entry, ev store.Event) {
	if ev.Reset {
		clear(have)
	}
	for _, key := range ev.Deleted {
		if _, ok := have[key]; !ok {
			rt.Fatalf("%s was deleted at %d, but never told of", key, ev.Revision)
		}
		delete(have, key)
	}
	for _, e := range ev.Entries {
		have[e.Key] = e
	}
}

func same(a, b map[string]store.Entry) bool {
	return maps.EqualFunc(a, b, func(x, y store.Entry) bool {
		return x.Modified == y.Modified && x.Created == y.Created && string(x.Value) == string(y.Value)
	})
}
