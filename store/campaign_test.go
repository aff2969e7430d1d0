package store_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/store/mem"
	"github.com/cellgate/cellgate/store/storetest"
)

func candidacy(name string) store.Candidacy {
	return store.Candidacy{Key: store.KeyLeader, Value: []byte(name), TTL: 3 * time.Second}
}

// Leaders follow one another with rising epochs, there is never more than one, and the deposed one can write no more.
func TestOneLeaderAtATimeAndTheDeposedOneIsFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := mem.New()
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var leading int
		var terms []*store.Term
		var wg sync.WaitGroup
		candidate := func(name string, s *mem.Store, work time.Duration) {
			wg.Go(func() {
				err := store.Campaign(ctx, s, candidacy(name), func(ctx context.Context, term *store.Term) error {
					mu.Lock()
					leading++
					terms = append(terms, term)
					if leading != 1 {
						t.Errorf("%d leaders", leading)
					}
					mu.Unlock()
					defer func() { mu.Lock(); leading--; mu.Unlock() }()
					select {
					case <-ctx.Done():
					case <-time.After(work):
					}
					return nil
				})
				if err != nil && !errors.Is(err, store.ErrClosed) {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		for i := range 3 {
			candidate(fmt.Sprint("c", i), data.Join(), 5*time.Second)
		}
		time.Sleep(time.Minute)
		cancel()
		wg.Wait()
		if len(terms) < 8 {
			t.Fatalf("%d terms in a minute of terms of 5 s", len(terms))
		}
		for i, term := range terms {
			if i > 0 && term.Epoch <= terms[i-1].Epoch {
				t.Errorf("epoch %d after %d", term.Epoch, terms[i-1].Epoch)
			}
			if _, err := term.Commit(t.Context(), nil, []store.Op{store.Put("k", nil)}); !errors.Is(err, store.ErrConflict) {
				t.Errorf("a write after the term of epoch %d: %v", term.Epoch, err)
			}
		}
		synctest.Wait()
	})
}

// A leader that dies without a word is followed within its ttl, and its late writes change nothing.
func TestDeadLeaderIsFollowedWithinItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := mem.New()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first, second := data.Join(), data.Join()
		elected := make(chan *store.Term, 2)
		lead := func(ctx context.Context, term *store.Term) error {
			elected <- term
			<-ctx.Done()
			return nil
		}
		go store.Campaign(ctx, first, candidacy("first"), lead)
		old := <-elected
		go store.Campaign(ctx, second, candidacy("second"), lead)
		if _, err := old.Commit(ctx, nil, []store.Op{store.Put("k", []byte("old"))}); err != nil {
			t.Fatal(err)
		}
		// The process is gone: its handle renews nothing any more.
		first.Close()
		began := time.Now()
		current := <-elected
		if took := time.Since(began); took > 3*time.Second+500*time.Millisecond {
			t.Errorf("nobody led for %v", took)
		}
		if current.Epoch <= old.Epoch {
			t.Errorf("epoch %d after %d", current.Epoch, old.Epoch)
		}
		if _, err := current.Commit(ctx, nil, []store.Op{store.Put("k", []byte("new"))}); err != nil {
			t.Fatal(err)
		}
		stale := []store.Cond{old.Fence()}
		if _, err := data.Commit(ctx, stale, []store.Op{store.Put("k", []byte("late"))}); !errors.Is(err, store.ErrConflict) {
			t.Errorf("a late write of the dead leader: %v", err)
		}
		cancel()
		synctest.Wait()
	})
}

// A candidacy that fails, and one that fails although it was stored, both lead to a leader, and leave no office held by nobody.
func TestFailedCandidacyIsRepeated(t *testing.T) {
	for _, persisted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &storetest.Faulty{Store: mem.New()}
			s.Fail(1, persisted)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c := candidacy("only")
			failed := 0
			c.Failed = func(error) { failed++ }
			began := time.Now()
			err := store.Campaign(ctx, s, c, func(context.Context, *store.Term) error { cancel(); return nil })
			if err != nil || failed != 1 || time.Since(began) > 2*time.Second {
				t.Errorf("persisted %v: %v after %v and %d failures", persisted, err, time.Since(began), failed)
			}
			synctest.Wait()
		})
	}
}
