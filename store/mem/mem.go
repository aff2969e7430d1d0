// Package mem is a store in memory, with the promises of every other store but durability: for tests and for single processes.
//
//	s := mem.New()
//	other := s.Join()   // a second holder of the same data, as another process would be
package mem

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cellgate/cellgate/store"
)

// Store is one holder's handle on the data: its leases and watches end with it.
type Store struct {
	data *data

	// Written under data.mu.
	closed  bool
	leases  map[*lease]struct{}
	context context.Context // ends with the handle
	cancel  context.CancelFunc
}

// data is what all handles share.
type data struct {
	mu      sync.Mutex
	state   State
	persist Persist
	watches map[*watch]struct{}
}

// State is the whole content at a revision. It is the stored form's content as well; values are never changed in place.
type State struct {
	Revision store.Revision
	Entries  map[string]Held
}

// Held is an entry; Leased says that it lives under a lease of some holder.
type Held struct {
	store.Entry
	Leased bool
	lease  *lease
}

// Persist makes a commit durable before it is applied. Ops that would change nothing are left out. On an error the
// commit is not applied and its outcome is unknown. state is the content before the commit, only valid during the call.
type Persist func(rev store.Revision, ops []store.Op, state *State) error

type watch struct {
	prefix string
	feed   *store.Feed
}

var _ store.Store = (*Store)(nil)

// New makes an empty store.
func New() *Store {
	return Open(State{}, func(store.Revision, []store.Op, *State) error { return nil })
}

// Open makes a store with content and a way to make commits durable. It owns the state from then on.
func Open(state State, persist Persist) *Store {
	if state.Entries == nil {
		state.Entries = map[string]Held{}
	}
	d := &data{state: state, persist: persist, watches: map[*watch]struct{}{}}
	return d.handle()
}

func (d *data) handle() *Store {
	ctx, cancel := context.WithCancel(context.Background())
	return &Store{data: d, leases: map[*lease]struct{}{}, context: ctx, cancel: cancel}
}

// Join opens another handle on the same data.
func (s *Store) Join() *Store { return s.data.handle() }

// Get returns the entry or store.ErrNotFound.
func (s *Store) Get(ctx context.Context, key string) (store.Entry, error) {
	if err := s.lock(ctx); err != nil {
		return store.Entry{}, err
	}
	defer s.data.mu.Unlock()
	e, ok := s.data.state.Entries[key]
	if !ok {
		return store.Entry{}, fmt.Errorf("%w: %s", store.ErrNotFound, key)
	}
	return e.Entry, nil
}

// List returns the entries under the prefix in key order.
func (s *Store) List(ctx context.Context, prefix string) ([]store.Entry, store.Revision, error) {
	if err := s.lock(ctx); err != nil {
		return nil, 0, err
	}
	defer s.data.mu.Unlock()
	return s.data.state.under(prefix), s.data.state.Revision, nil
}

// Keys is List without the values.
func (s *Store) Keys(ctx context.Context, prefix string) ([]store.Entry, store.Revision, error) {
	entries, rev, err := s.List(ctx, prefix)
	for i := range entries {
		entries[i].Value = nil
	}
	return entries, rev, err
}

// Commit applies all ops if all conditions hold.
func (s *Store) Commit(ctx context.Context, conds []store.Cond, ops []store.Op) (store.Revision, error) {
	if err := store.Check(conds, ops); err != nil {
		return 0, err
	}
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	defer s.data.mu.Unlock()
	for _, op := range ops {
		if op.Lease == nil || op.Delete {
			continue
		}
		if l, ok := op.Lease.(*lease); !ok || l.holder.data != s.data || l.lost {
			return 0, fmt.Errorf("%w: put of %s", store.ErrLeaseLost, op.Key)
		}
	}
	for _, c := range conds {
		if s.data.state.Entries[c.Key].Modified != c.Modified {
			return 0, fmt.Errorf("%w: on %s", store.ErrConflict, c.Key)
		}
	}
	return s.data.commit(ops)
}

// Watch delivers the state of the prefix and then every change.
func (s *Store) Watch(ctx context.Context, prefix string) <-chan store.Event {
	out := make(chan store.Event)
	w := &watch{prefix: prefix, feed: store.NewFeed()}
	if err := s.lock(ctx); err != nil {
		close(out)
		return out
	}
	defer s.data.mu.Unlock()
	w.feed.Reset(s.data.state.Revision, s.data.state.under(prefix))
	s.data.watches[w] = struct{}{}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.context, cancel)
	go func() {
		defer close(out)
		defer cancel()
		defer stop()
		w.feed.Run(ctx, out)
		s.data.mu.Lock()
		defer s.data.mu.Unlock()
		delete(s.data.watches, w)
	}()
	return out
}

// Close ends the handle's watches; its leases run out after their ttl, as those of a process that died.
func (s *Store) Close() error {
	s.data.mu.Lock()
	defer s.data.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.cancel()
	for l := range s.leases {
		time.AfterFunc(l.ttl, l.expire)
	}
	return nil
}

// lock takes the data's lock unless the call can't go ahead.
func (s *Store) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	s.data.mu.Lock()
	if s.closed {
		s.data.mu.Unlock()
		return store.ErrClosed
	}
	return nil
}

// commit persists, applies and tells the ops. Called under mu.
func (d *data) commit(ops []store.Op) (store.Revision, error) {
	ops = slices.DeleteFunc(slices.Clone(ops), func(op store.Op) bool {
		_, exists := d.state.Entries[op.Key]
		return op.Delete && !exists
	})
	if len(ops) == 0 {
		return d.state.Revision, nil
	}
	rev := d.state.Revision + 1
	if err := d.persist(rev, ops, &d.state); err != nil {
		return 0, err
	}
	for i, op := range ops {
		ops[i].Value = slices.Clone(op.Value)
		if l, ok := op.Lease.(*lease); ok && !op.Delete {
			l.keys[op.Key] = struct{}{}
		}
	}
	d.state.Apply(rev, ops)
	d.tell(rev, ops)
	return rev, nil
}

// Apply changes the state as a commit at rev does.
func (s *State) Apply(rev store.Revision, ops []store.Op) {
	s.Revision = rev
	for _, op := range ops {
		old, exists := s.Entries[op.Key]
		if l, _ := op.Lease.(*lease); old.lease != nil && (op.Delete || l != old.lease) {
			delete(old.lease.keys, op.Key)
		}
		if op.Delete {
			delete(s.Entries, op.Key)
			continue
		}
		h := Held{Entry: store.Entry{Key: op.Key, Value: op.Value, Created: rev, Modified: rev}, Leased: op.Lease != nil}
		h.lease, _ = op.Lease.(*lease)
		if exists {
			h.Created = old.Created
		}
		s.Entries[op.Key] = h
	}
}

// tell passes the applied ops to the watches of their prefixes.
func (d *data) tell(rev store.Revision, ops []store.Op) {
	for w := range d.watches {
		var entries []store.Entry
		var deleted []string
		for _, op := range ops {
			switch {
			case !strings.HasPrefix(op.Key, w.prefix):
			case op.Delete:
				deleted = append(deleted, op.Key)
			default:
				entries = append(entries, d.state.Entries[op.Key].Entry)
			}
		}
		w.feed.Change(rev, entries, deleted)
	}
}

func (s *State) under(prefix string) []store.Entry {
	var out []store.Entry
	for _, key := range slices.Sorted(maps.Keys(s.Entries)) {
		if strings.HasPrefix(key, prefix) {
			out = append(out, s.Entries[key].Entry)
		}
	}
	return out
}
