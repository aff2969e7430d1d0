package storetest

import (
	"context"
	"errors"
	"sync"

	"github.com/cellgate/cellgate/store"
)

// ErrFault is what a commit fails with that a Faulty store was told to fail.
var ErrFault = errors.New("storetest: fault")

// Faulty is a store whose commits can be made to fail, each in both ways that a real one does: the change is not there,
// or it is there and only the answer was lost.
type Faulty struct {
	store.Store
	mu        sync.Mutex
	commits   int
	failAt    int
	persisted bool
}

// Fail makes the n-th commit from now on fail, 1 being the next.
func (f *Faulty) Fail(n int, persisted bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failAt, f.persisted = f.commits+n, persisted
}

// Commits is how many commits were tried.
func (f *Faulty) Commits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.commits
}

// Commit fails when it is its turn.
func (f *Faulty) Commit(ctx context.Context, conds []store.Cond, ops []store.Op) (store.Revision, error) {
	f.mu.Lock()
	f.commits++
	fault, persisted := f.commits == f.failAt, f.persisted
	f.mu.Unlock()
	if fault && !persisted {
		return 0, ErrFault
	}
	rev, err := f.Store.Commit(ctx, conds, ops)
	if fault && err == nil {
		return 0, ErrFault
	}
	return rev, err
}
