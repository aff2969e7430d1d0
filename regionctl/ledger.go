package regionctl

import (
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/denylist"
)

// ledger is what this controller knows of orders that need neither leader nor global store: evacuations and restorations
// given through the regions, and the denylist. It is the union of what the region's store holds, what was ordered here and
// what other regions' controllers told; both parts are joins of lattices, so that controllers which exchange theirs end
// with the same. It is safe for concurrent use.
type ledger struct {
	mu      sync.Mutex
	orders  []cells.Evacuation
	denied  map[string]noted // by the entry's name
	seq     uint64           // of the last change
	ordered uint64           // seq of the last change of orders
	changed chan struct{}    // closed and renewed at every change
}

// noted is an entry with the change that brought it.
type noted struct {
	denylist.Entry
	seq uint64
}

// remembered is how long a restoration is told to controllers that may not have heard of it: as long as an order can last.
const remembered = maxExpires + time.Hour

// afterglow is how long an expired order is kept: while its cell takes clients again, and for people to see.
const afterglow = time.Hour

func newLedger() *ledger {
	return &ledger{denied: map[string]noted{}, changed: make(chan struct{})}
}

// add merges orders and entries in, forgets what nobody needs any more, and says whether anything is new.
func (l *ledger) add(orders []cells.Evacuation, entries []denylist.Entry, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := needed(cells.Unite(l.orders, orders), now)
	news := !reflect.DeepEqual(next, l.orders) && len(next)+len(l.orders) > 0
	if news {
		l.orders, l.ordered = next, l.seq+1
	}
	for _, e := range entries {
		old, ok := l.denied[e.Name()]
		if !now.Before(e.Expires) || ok && reflect.DeepEqual(denylist.Unite([]denylist.Entry{old.Entry, e}), []denylist.Entry{old.Entry}) {
			continue
		}
		l.denied[e.Name()] = noted{e, l.seq + 1}
		news = true
	}
	if news {
		l.wake()
	}
	return news
}

// expire forgets entries that have run out.
func (l *ledger) expire(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.denied)
	for name, e := range l.denied {
		if !now.Before(e.Expires) {
			delete(l.denied, name)
		}
	}
	if n != len(l.denied) {
		l.wake()
	}
}

func (l *ledger) wake() {
	l.seq++
	close(l.changed)
	l.changed = make(chan struct{})
}

// needed drops orders that ended long ago. Of those that a restoration ended, one for each cell is kept to tell others.
func needed(orders []cells.Evacuation, now time.Time) []cells.Evacuation {
	told := map[cells.CellID]int{} // cell → index of the one that tells of the restoration
	for i, e := range orders {
		if !e.Restored.IsZero() && e.Restored.Before(e.Expires) && !e.Withdrawn {
			told[e.Cell] = i
		}
	}
	var out []cells.Evacuation
	for i, e := range orders {
		teller, restored := told[e.Cell]
		switch {
		case e.Restored.IsZero() || e.Withdrawn:
			if now.Before(e.Expires.Add(afterglow)) {
				out = append(out, e)
			}
		case restored && teller == i && now.Before(e.Restored.Add(remembered)):
			out = append(out, e)
		}
	}
	return out
}

// after gives the moment of a new word about what e names: now, or just after the last word when that came from a place
// whose clock is ahead.
func (l *ledger) after(e denylist.Entry) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old, ok := l.denied[e.Name()]; ok && !e.At.After(old.At) {
		return old.At.Add(time.Millisecond)
	}
	return e.At
}

// change is the number of the last change.
func (l *ledger) change() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seq
}

// size is how many entries deny at now.
func (l *ledger) size(now time.Time) (live int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.denied {
		if !e.Removed && now.Before(e.Expires) {
			live++
		}
	}
	return live
}

// next is closed at the next change.
func (l *ledger) next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// evacuations are the orders given through the regions.
func (l *ledger) evacuations() []cells.Evacuation {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.orders)
}

// entries is the whole denylist with its removals, in order.
func (l *ledger) entries() []denylist.Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]denylist.Entry, 0, len(l.denied))
	for _, e := range l.denied {
		all = append(all, e.Entry)
	}
	return denylist.Unite(all)
}

// known is what the ledger has under the names of the entries.
func (l *ledger) known(of []denylist.Entry) []denylist.Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []denylist.Entry
	for _, e := range of {
		if have, ok := l.denied[e.Name()]; ok {
			out = append(out, have.Entry)
		}
	}
	return out
}

// since gives what changed after a state of the ledger, and the state now.
func (l *ledger) since(seq uint64) (orders []cells.Evacuation, entries []denylist.Entry, now uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ordered > seq {
		orders = slices.Clone(l.orders)
	}
	for _, e := range l.denied {
		if e.seq > seq {
			entries = append(entries, e.Entry)
		}
	}
	return orders, entries, l.seq
}
