package mem

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cellgate/cellgate/store"
)

// lease lives while its holder does. All fields but done are written under the data's lock.
type lease struct {
	holder *Store
	ttl    time.Duration
	keys   map[string]struct{}
	lost   bool
	done   chan struct{}
}

// Lease opens a lease that ends with Release, or ttl after Close.
func (s *Store) Lease(ctx context.Context, ttl time.Duration) (store.Lease, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("store: a lease of %v", ttl)
	}
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.data.mu.Unlock()
	l := &lease{holder: s, ttl: ttl, keys: map[string]struct{}{}, done: make(chan struct{})}
	s.leases[l] = struct{}{}
	return l, nil
}

func (l *lease) Done() <-chan struct{} { return l.done }

func (l *lease) Release(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("store: release: %w", err)
	}
	return l.end()
}

// expire is Release by the store itself. When the keys can't be removed durably, they go when the store is next opened.
func (l *lease) expire() { _ = l.end() }

func (l *lease) end() error {
	d := l.holder.data
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.lost {
		return nil
	}
	var ops []store.Op
	for _, key := range slices.Sorted(maps.Keys(l.keys)) {
		ops = append(ops, store.Delete(key))
	}
	if _, err := d.commit(ops); err != nil {
		return fmt.Errorf("store: end of a lease: %w", err)
	}
	l.lost = true
	delete(l.holder.leases, l)
	close(l.done)
	return nil
}
