// Package store keeps what must survive: small values under compare-and-set with watches, and large blobs in chunks.
//
//	rev, err := s.Commit(ctx, []store.Cond{store.Absent(key)}, []store.Op{store.Put(key, value)})
//	events := s.Watch(ctx, prefix)       // first the whole state, then every change
//
// Store is the small interface with exact promises that mem, disk and etcd fulfil; storetest is their one conformance suite.
// Everything typed is written once over it.
package store

import (
	"context"
	"errors"
	"time"
)

// Revision orders all commits of one store. It never goes back.
type Revision int64

// Entry is one key with its value and the revisions of its creation and last change. A key that is deleted and put again
// is created anew. Values are shared between everybody who reads them: never change one.
type Entry struct {
	Key      string
	Value    []byte
	Created  Revision
	Modified Revision
}

// Errors that callers act on. After each of these nothing was applied.
var (
	ErrNotFound  = errors.New("store: no such key")
	ErrConflict  = errors.New("store: a condition did not hold")
	ErrTooLarge  = errors.New("store: a commit out of bounds")
	ErrLeaseLost = errors.New("store: the lease has expired")
	ErrFull      = errors.New("store: no space left")
)

// ErrUnavailable: the store did not answer, or has no quorum. What became of a commit is unknown.
var ErrUnavailable = errors.New("store: it does not answer")

// Bounds of one commit, all well below etcd's; what passes them is refused with ErrTooLarge. Blobs are cut into chunks.
const (
	MaxValue  = 512 << 10 // bytes of one value
	MaxCommit = 1 << 20   // bytes of all keys and values
	MaxOps    = 100       // conditions, and operations
	MaxKey    = 512       // bytes of one key, which is never empty
)

// Cond is a condition of a commit: Key was last modified at exactly Modified, where 0 means that it does not exist.
type Cond struct {
	Key      string
	Modified Revision
}

// Absent demands that the key does not exist.
func Absent(key string) Cond { return Cond{Key: key} }

// Unchanged demands that the entry is as it was read.
func Unchanged(e Entry) Cond { return Cond{Key: e.Key, Modified: e.Modified} }

// Op is one change of a commit: put, or delete when Delete is set. A put with a Lease lives as long as the lease.
type Op struct {
	Key    string
	Value  []byte
	Delete bool
	Lease  Lease
}

// Put writes the value.
func Put(key string, value []byte) Op { return Op{Key: key, Value: value} }

// Delete removes the key; removing an absent key is no error.
func Delete(key string) Op { return Op{Key: key, Delete: true} }

// Lease keeps keys alive while its holder, the Store that it came from, lives and is not closed.
// Done is closed when the lease is lost or released.
type Lease interface {
	Done() <-chan struct{}
	// Release ends the lease at once and with it every key that was put under it.
	Release(ctx context.Context) error
}

// Event is one step of a watch. Reset events carry the whole state of the prefix at Revision and replace everything
// seen before: the first event of each watch is one, and so is what follows a compaction or a reconnect that missed changes.
// Other events carry the net change of one or more whole commits, each key at most once, oldest change first;
// deleted keys are listed in Deleted. Applying every event in order gives the state of the prefix at Revision.
type Event struct {
	Revision Revision
	Reset    bool
	Entries  []Entry
	Deleted  []string
}

// Usage is how full one member of a store is. Sizes are in bytes.
type Usage struct {
	Member string
	Size   int64 // of its file; writes are refused when it reaches Quota
	InUse  int64 // of what is in it, history included; the rest is given back by defragmenting
	Quota  int64
	Full   bool // writes are refused until its alarm is taken back
	Lost   bool // it did not answer, so nothing else is known
}

// Sized is a store that knows how full its members are.
type Sized interface {
	Usage(ctx context.Context) ([]Usage, error)
}

// Store is a key-value store with atomic conditional commits.
type Store interface {
	// Get returns the entry or ErrNotFound.
	Get(ctx context.Context, key string) (Entry, error)
	// List returns the entries under a prefix in key order, all at one revision.
	List(ctx context.Context, prefix string) ([]Entry, Revision, error)
	// Keys is List without the values, for prefixes whose values are large together.
	Keys(ctx context.Context, prefix string) ([]Entry, Revision, error)
	// Commit applies all ops at one revision if all conditions hold, else none and ErrConflict. No key has two ops.
	// When it returns nil, the change is durable. Any error but those above means the outcome is unknown: read before
	// trying again. A commit that changes nothing returns the current revision.
	Commit(ctx context.Context, conds []Cond, ops []Op) (Revision, error)
	// Watch delivers events until ctx ends or the store is closed, then closes the channel. It reconnects by itself, never skips a change
	// without a Reset, and a slow receiver costs the memory of two states of the prefix at most.
	Watch(ctx context.Context, prefix string) <-chan Event
	// Lease opens a lease that outlives its holder by ttl at most. It is kept alive until released, whatever becomes of
	// ctx. Stores may raise ttl: etcd to whole seconds and one and a half elections.
	Lease(ctx context.Context, ttl time.Duration) (Lease, error)
	Close() error
}
