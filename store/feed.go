package store

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
)

// Feed carries the changes of one prefix to one receiver that may be slow. While the receiver is busy, changes fold into
// their net effect, so what waits is never more than the receiver's state and the current one.
//
// Owner: the store that watches calls Reset and Change, in revision order; Run alone sends.
type Feed struct {
	mu   sync.Mutex
	wake chan struct{} // capacity 1: something is pending

	// Written under mu.
	pending map[string]change
	any     bool
	reset   bool
	rev     Revision
	// delivered is the revision of the last event that was taken for the receiver.
	delivered Revision
}

// change is what became of one key since the last delivered event.
type change struct {
	entry   Entry
	deleted bool
	// known: the receiver has the key, so its deletion must be told.
	known bool
}

// NewFeed makes a feed with nothing in it.
func NewFeed() *Feed {
	return &Feed{wake: make(chan struct{}, 1), pending: map[string]change{}}
}

// Reset replaces everything: the state of the prefix at rev.
func (f *Feed) Reset(rev Revision, state []Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = make(map[string]change, len(state))
	for _, e := range state {
		f.pending[e.Key] = change{entry: e}
	}
	f.reset, f.rev = true, rev
	f.signal()
}

// Change adds what the commit at rev did to the prefix.
func (f *Feed) Change(rev Revision, entries []Entry, deleted []string) {
	if len(entries)+len(deleted) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range deleted {
		f.delete(key)
	}
	for _, e := range entries {
		was, ok := f.pending[e.Key]
		f.pending[e.Key] = change{entry: e, known: ok && was.known || !ok && e.Created <= f.delivered}
	}
	f.rev = rev
	f.signal()
}

// delete forgets a key that the receiver never saw. A key without a pending change is as the receiver has it.
func (f *Feed) delete(key string) {
	was, ok := f.pending[key]
	if f.reset || ok && !was.known {
		delete(f.pending, key)
		return
	}
	f.pending[key] = change{entry: Entry{Key: key}, deleted: true, known: true}
}

func (f *Feed) signal() {
	f.any = true
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Run sends events to out until ctx ends. It does not close out.
func (f *Feed) Run(ctx context.Context, out chan<- Event) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		}
		ev, ok := f.take()
		if !ok {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case out <- ev:
		}
	}
}

func (f *Feed) take() (Event, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.any || !f.reset && len(f.pending) == 0 {
		f.any = false
		return Event{}, false
	}
	ev := Event{Revision: f.rev, Reset: f.reset}
	for key, c := range f.pending {
		if c.deleted {
			ev.Deleted = append(ev.Deleted, key)
		} else {
			ev.Entries = append(ev.Entries, c.entry)
		}
	}
	slices.Sort(ev.Deleted)
	slices.SortFunc(ev.Entries, func(a, b Entry) int {
		if ev.Reset || a.Modified == b.Modified {
			return strings.Compare(a.Key, b.Key)
		}
		return cmp.Compare(a.Modified, b.Modified)
	})
	f.pending = map[string]change{}
	f.any, f.reset, f.delivered = false, false, f.rev
	return ev, true
}
