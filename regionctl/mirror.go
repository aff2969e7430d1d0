package regionctl

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"
	"strings"
	"sync"

	"github.com/cellgate/cellgate/store"
)

// mirror is a copy in memory of everything under one prefix of a store. It keeps what it has when the store is gone.
// It is safe for concurrent use.
type mirror struct {
	prefix string

	mu      sync.RWMutex
	entries map[string]store.Entry
	rev     store.Revision
	synced  bool
	changed chan struct{} // closed and renewed at every change
}

func newMirror(prefix string) *mirror {
	return &mirror{prefix: prefix, entries: map[string]store.Entry{}, changed: make(chan struct{})}
}

// run follows the store until ctx ends.
func (m *mirror) run(ctx context.Context, s store.Store) error {
	for ev := range s.Watch(ctx, m.prefix) {
		m.apply(ev)
	}
	if ctx.Err() == nil {
		return fmt.Errorf("regionctl: the watch of %q ended", m.prefix)
	}
	return nil
}

func (m *mirror) apply(ev store.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ev.Reset {
		m.entries = map[string]store.Entry{}
	}
	for _, e := range ev.Entries {
		m.entries[e.Key] = e
	}
	for _, k := range ev.Deleted {
		delete(m.entries, k)
	}
	m.rev, m.synced = ev.Revision, true
	close(m.changed)
	m.changed = make(chan struct{})
}

// revision is that of the last change that was seen.
func (m *mirror) revision() store.Revision {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.rev
}

// next is closed at the next change.
func (m *mirror) next() <-chan struct{} {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.changed
}

// ready says whether the whole state was seen once.
func (m *mirror) ready() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.synced
}

func (m *mirror) get(key string) (store.Entry, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	e, ok := m.entries[key]
	return e, ok
}

// list gives the entries under a prefix in key order.
func (m *mirror) list(prefix string) []store.Entry {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var out []store.Entry
	for k, e := range m.entries {
		if strings.HasPrefix(k, prefix) {
			out = append(out, e)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Key < out[j].Key })
	return out
}

// see waits until the mirror has reached the revision or ctx ends, so that a writer reads its own write.
func (m *mirror) see(ctx context.Context, rev store.Revision) {
	for {
		m.mu.RLock()
		done, next := m.rev >= rev, m.changed
		m.mu.RUnlock()
		if done {
			return
		}
		select {
		case <-next:
		case <-ctx.Done():
			return
		}
	}
}

// read decodes a mirrored value; ok is false when it is absent or unreadable.
func read[T any](m *mirror, key string) (v T, e store.Entry, ok bool) {
	e, ok = m.get(key)
	if !ok || json.Unmarshal(e.Value, &v) != nil {
		return v, e, false
	}
	return v, e, true
}

// load decodes a value straight from the store; an absent key gives the zero value and an entry with Modified 0.
func load[T any](ctx context.Context, s store.Store, key string) (v T, e store.Entry, err error) {
	e, err = s.Get(ctx, key)
	if isAbsent(err) {
		return v, store.Entry{Key: key}, nil
	}
	if err != nil {
		return v, e, fmt.Errorf("regionctl: read %s: %w", key, err)
	}
	if err := json.Unmarshal(e.Value, &v); err != nil {
		return v, e, fmt.Errorf("regionctl: %s is not readable: %w", key, err)
	}
	return v, e, nil
}

func encode(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil { // our own forms always encode
		panic(fmt.Sprintf("regionctl: encode %T: %v", v, err))
	}
	return raw
}
