package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Term is one candidate's time in office.
type Term struct {
	// Epoch is the creation revision of the leader key, above the base: higher than that of every term before it.
	Epoch uint64
	store Store
	fence Cond
}

// Fence holds only while the term lasts: the leader key is the very one that the term began with.
func (t *Term) Fence() Cond { return t.fence }

// Commit is Store.Commit under the condition that the term still lasts: a leader that was deposed without noticing
// changes nothing, and gets ErrConflict.
func (t *Term) Commit(ctx context.Context, conds []Cond, ops []Op) (Revision, error) {
	return t.store.Commit(ctx, append([]Cond{t.fence}, conds...), ops)
}

// Candidacy is what a candidate stands with.
type Candidacy struct {
	Key   string        // the leader key
	Value []byte        // who the leader is
	TTL   time.Duration // how long a dead leader keeps its office at most
	// Retry is how long to wait, with jitter, before standing again after a term or a failure; 0 is 300 ms.
	Retry time.Duration
	// Base gives what is added to the revision to make the epoch, read after the election; nil is 0. Whoever raises it ends
	// the term by deleting the leader key in the same commit.
	Base func(context.Context) (uint64, error)
	// Failed is told what went wrong with a candidacy or a term; nil is nobody.
	Failed func(error)
}

// Campaign stands for election again and again until ctx ends. While elected, it runs lead with a context that ends with
// the term; when lead returns, the office is given up.
func Campaign(ctx context.Context, s Store, c Candidacy, lead func(context.Context, *Term) error) error {
	if c.Retry == 0 {
		c.Retry = 300 * time.Millisecond
	}
	for ctx.Err() == nil {
		if err := vacancy(ctx, s, c.Key); err != nil {
			return err
		}
		if err := serve(ctx, s, c, lead); err != nil && ctx.Err() == nil && c.Failed != nil {
			c.Failed(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(c.Retry/2 + rand.N(c.Retry)):
		}
	}
	return nil
}

// vacancy waits until the key is absent, or ctx ends.
func vacancy(ctx context.Context, s Store, key string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	held := false
	for ev := range s.Watch(ctx, key) {
		held = held && !ev.Reset
		for _, gone := range ev.Deleted {
			held = held && gone != key
		}
		for _, e := range ev.Entries {
			held = held || e.Key == key
		}
		if !held {
			return nil
		}
	}
	if ctx.Err() == nil {
		return ErrClosed
	}
	return nil
}

// serve tries to be elected, once, and leads if so.
func serve(ctx context.Context, s Store, c Candidacy, lead func(context.Context, *Term) error) error {
	lease, err := s.Lease(ctx, c.TTL)
	if err != nil {
		return fmt.Errorf("store: candidacy: %w", err)
	}
	// A candidacy whose outcome is unknown ends here too: with its lease goes whatever it has put.
	defer func() {
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.TTL)
		defer cancel()
		_ = lease.Release(bye) // else it runs out by itself
	}()
	put := Put(c.Key, c.Value)
	put.Lease = lease
	rev, err := s.Commit(ctx, []Cond{Absent(c.Key)}, []Op{put})
	if errors.Is(err, ErrConflict) {
		return nil // somebody else was first
	}
	if err != nil {
		return fmt.Errorf("store: candidacy: %w", err)
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	go func() {
		defer end()
		select {
		case <-lease.Done():
		case <-ctx.Done():
		}
	}()
	base := uint64(0)
	if c.Base != nil {
		if base, err = c.Base(ctx); err != nil {
			return fmt.Errorf("store: candidacy: %w", err)
		}
	}
	return lead(ctx, &Term{Epoch: base + uint64(rev), store: s, fence: Cond{Key: c.Key, Modified: rev}})
}
