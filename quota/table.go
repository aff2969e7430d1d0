package quota

import "sync"

// Holding is a Lease, or what has one.
type Holding interface{ Held() *Lease }

// Held implements Holding.
func (l *Lease) Held() *Lease { return l }

// Held implements Holding.
func (b *Branch) Held() *Lease { return &b.Lease }

// Table holds the leases that one grantor is asked for, bounded, and says which are due. It is safe for concurrent use.
//
//	s := t.Shard(hash)
//	s.Lock()
//	e := s.Find(k)           // or s.Add(k, …); nil = full
//	… e.Value.Held() …
//	s.Used(e)                // and s.Press(e) when its Ask can't wait for the others
//	s.Unlock()
type Table[K comparable, V any, P interface {
	*V
	Holding
}] struct {
	terms  Terms
	shards [tableShards]Shard[K, V, P]
}

const tableShards = 64

// Shard is a part of a Table with a lock of its own.
type Shard[K comparable, V any, P interface {
	*V
	Holding
}] struct {
	sync.Mutex
	most   int
	terms  Terms
	known  map[K]*Entry[K, V, P]
	active []*Entry[K, V, P] // those that are not quiet
	urgent []*Entry[K, V, P] // those that can't wait
}

// Entry is one key. Everything in it belongs to the lock of its shard.
type Entry[K comparable, V any, P interface {
	*V
	Holding
}] struct {
	Key   Key
	Value V

	shard  *Shard[K, V, P]
	active bool
	urgent bool
	wait   chan struct{} // closed when the answer is there, or late
	since  int64         // somebody waits
}

// NewTable makes a table for about most keys, at least one a shard.
func NewTable[K comparable, V any, P interface {
	*V
	Holding
}](terms Terms, most int) *Table[K, V, P] {
	t := &Table[K, V, P]{terms: terms}
	for i := range t.shards {
		t.shards[i] = Shard[K, V, P]{most: max(most/tableShards, 1), terms: terms, known: map[K]*Entry[K, V, P]{}}
	}
	return t
}

// Shard is where the key with that hash lives.
func (t *Table[K, V, P]) Shard(hash uint64) *Shard[K, V, P] { return &t.shards[hash%tableShards] }

// Find gives the key's entry; nil = none.
func (s *Shard[K, V, P]) Find(k K) *Entry[K, V, P] { return s.known[k] }

// probes is how many entries are looked at for one to forget when a shard is full.
const probes = 8

// Add makes an entry; nil when there is no room: what a new Lease would be better than is never forgotten for another.
func (s *Shard[K, V, P]) Add(k K, key Key, now int64) *Entry[K, V, P] {
	if len(s.known) >= s.most {
		looked := 0
		for old, e := range s.known { // begins anywhere
			if looked++; !e.active && P(&e.Value).Held().Forgettable(now) {
				delete(s.known, old)
				break
			} else if looked >= probes {
				return nil
			}
		}
	}
	if len(s.known) >= s.most {
		return nil
	}
	e := &Entry[K, V, P]{Key: key, shard: s}
	P(&e.Value).Held().Terms = s.terms
	s.known[k] = e
	return e
}

// Used must be called after an entry's Lease was asked: there may be something to tell. It says whether there was nothing.
func (s *Shard[K, V, P]) Used(e *Entry[K, V, P]) (first bool) {
	if e.active {
		return false
	}
	e.active = true
	s.active = append(s.active, e)
	return len(s.active) == 1
}

// Press says that the entry's Ask can't wait for the others.
func (s *Shard[K, V, P]) Press(e *Entry[K, V, P]) {
	if !e.urgent {
		e.urgent = true
		s.urgent = append(s.urgent, e)
	}
}

// Wait is closed when the entry's next answer is there, or late.
func (e *Entry[K, V, P]) Wait(now int64) <-chan struct{} {
	if e.wait == nil {
		e.wait, e.since = make(chan struct{}), now
	}
	return e.wait
}

func (e *Entry[K, V, P]) wake() {
	if e.wait != nil {
		close(e.wait)
		e.wait = nil
	}
}

// Item is what is asked for one key.
type Item struct {
	Key   Key
	Limit Limit
	Ask   Ask
}

// Batch is what one message asks for.
type Batch[K comparable, V any, P interface {
	*V
	Holding
}] struct {
	Sent    int64
	Items   []Item
	entries []*Entry[K, V, P]
}

// Due collects up to most Asks that are due; urgent: only of those that requests wait for. The caller sends them, and calls
// Granted or Failed for the batch, once.
func (t *Table[K, V, P]) Due(now int64, urgent bool, most int) Batch[K, V, P] {
	b := Batch[K, V, P]{Sent: now}
	for i := range t.shards {
		t.shards[i].due(now, urgent, most, &b)
	}
	return b
}

func (s *Shard[K, V, P]) due(now int64, urgent bool, most int, b *Batch[K, V, P]) {
	s.Lock()
	defer s.Unlock()
	if urgent {
		for _, e := range s.urgent {
			if l := P(&e.Value).Held(); l.Urgent(now) {
				s.ask(e, now, most, b)
			}
		}
		return
	}
	kept := s.active[:0]
	for _, e := range s.active {
		s.ask(e, now, most, b)
		if e.active = !P(&e.Value).Held().Quiet(now); e.active {
			kept = append(kept, e)
		}
	}
	clear(s.active[len(kept):])
	s.active = kept
}

func (s *Shard[K, V, P]) ask(e *Entry[K, V, P], now int64, most int, b *Batch[K, V, P]) {
	if len(b.Items) >= most {
		return
	}
	l := P(&e.Value).Held()
	if a, due := l.Due(now); due {
		b.Items = append(b.Items, Item{e.Key, l.Limit, a})
		b.entries = append(b.entries, e)
	}
}

// Pressing says whether anything can't wait, and wakes the requests that have waited for patience.
func (t *Table[K, V, P]) Pressing(now, patience int64) (some bool) {
	for i := range t.shards {
		some = t.shards[i].pressing(now, patience) || some
	}
	return some
}

func (s *Shard[K, V, P]) pressing(now, patience int64) bool {
	s.Lock()
	defer s.Unlock()
	kept := s.urgent[:0]
	for _, e := range s.urgent {
		if e.wait != nil && now-e.since >= patience {
			e.wake()
		}
		if e.urgent = e.wait != nil || P(&e.Value).Held().parked > 0; e.urgent {
			kept = append(kept, e)
		}
	}
	clear(s.urgent[len(kept):])
	s.urgent = kept
	return len(kept) > 0
}

// Idle says whether no entry has anything to tell.
func (t *Table[K, V, P]) Idle() bool {
	for i := range t.shards {
		s := &t.shards[i]
		s.Lock()
		n := len(s.active)
		s.Unlock()
		if n > 0 {
			return false
		}
	}
	return true
}

// Granted takes the answers to a batch, in its order. A Grant that is not Valid
// says that the grantor has no room for the key. Who waits for several keys
// of one batch finds all of them answered.
func (b *Batch[K, V, P]) Granted(now int64, grants []Grant) {
	for i, e := range b.entries {
		e.shard.Lock()
		l := P(&e.Value).Held()
		switch {
		case i < len(grants) && grants[i].Valid():
			l.Granted(now, b.Sent, grants[i])
		case i < len(grants):
			l.Unserved(now, b.Sent)
		default:
			l.Failed(b.Sent)
		}
		e.shard.Unlock()
	}
	for _, e := range b.entries {
		e.shard.Lock()
		e.wake()
		e.shard.Unlock()
	}
}

// Failed gives a batch up.
func (b *Batch[K, V, P]) Failed(now int64) { b.Granted(now, nil) }

// Len is how many keys the table knows.
func (t *Table[K, V, P]) Len() (n int) {
	for i := range t.shards {
		t.shards[i].Lock()
		n += len(t.shards[i].known)
		t.shards[i].Unlock()
	}
	return n
}
