package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cellgate/cellgate/store"
)

const (
	// retryMin and retryMax bound the wait before a watch tries again.
	retryMin, retryMax = 50 * time.Millisecond, 2 * time.Second
	// lookEvery is how often a quiet watch asks whether the store still is where it was.
	lookEvery = 5 * time.Second
)

// errReset: the history from the next revision on is gone, so the watch begins again with the whole state.
var errReset = errors.New("the history is gone")

// Watch delivers the state of the prefix and then every change.
func (s *Store) Watch(ctx context.Context, prefix string) <-chan store.Event {
	out := make(chan store.Event)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	feed := store.NewFeed()
	go func() {
		defer cancel()
		defer stop()
		s.feed(ctx, prefix, feed)
	}()
	go func() {
		defer close(out)
		feed.Run(ctx, out)
	}()
	return out
}

// feed keeps the feed going until ctx ends: a list, then changes from the revision after it, for as long as history has them.
//
// Invariant: next is the lowest revision whose changes the feed may not have. It moves past a revision only when the
// changes of that revision were read, or when the server said in a progress notification that there are none.
func (s *Store) feed(ctx context.Context, prefix string, feed *store.Feed) {
	var next store.Revision // 0 = list first
	wait, failing := retryMin, false
	for ctx.Err() == nil {
		from := next
		var err error
		if next, err = s.once(ctx, prefix, next, feed); ctx.Err() != nil {
			return
		}
		if next > from {
			wait, failing = retryMin, false
		}
		if errors.Is(err, errReset) {
			next = 0
		}
		if !failing {
			failing = true
			s.log.Warn("watch interrupted", "prefix", prefix, "next", next, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait + rand.N(wait)):
		}
		wait = min(2*wait, retryMax)
	}
}

// once follows from the revision next, or lists first when there is none, until something breaks.
func (s *Store) once(ctx context.Context, prefix string, next store.Revision, feed *store.Feed) (store.Revision, error) {
	if next == 0 {
		entries, rev, err := s.List(ctx, prefix)
		if err != nil {
			return 0, err
		}
		feed.Reset(rev, entries)
		next = rev + 1
	}
	return s.follow(ctx, prefix, next, feed)
}

// follow passes changes on from the revision next until the watch breaks, and returns where to go on.
func (s *Store) follow(ctx context.Context, prefix string, next store.Revision, feed *store.Feed) (store.Revision, error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	responses := s.client.Watch(ctx, s.prefix+prefix,
		clientv3.WithPrefix(), clientv3.WithRev(int64(next)), clientv3.WithProgressNotify(), clientv3.WithCreatedNotify())
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case r, ok := <-responses:
			if !ok {
				return next, errors.New("the watch was closed")
			}
			var err error
			if next, err = s.response(ctx, r, next, feed); err != nil {
				return next, err
			}
		case <-look.C:
			if err := s.wentBack(ctx, next); err != nil {
				return next, err
			}
		}
	}
}

func (s *Store) response(ctx context.Context, r clientv3.WatchResponse, next store.Revision, feed *store.Feed) (store.Revision, error) {
	if r.CompactRevision > 0 || errors.Is(r.Err(), rpctypes.ErrCompacted) || errors.Is(r.Err(), rpctypes.ErrFutureRev) {
		return next, fmt.Errorf("%w: compacted up to %d", errReset, r.CompactRevision)
	}
	if err := r.Err(); err != nil {
		return next, err
	}
	if store.Revision(r.Header.Revision) < next-1 {
		return next, s.wentBack(ctx, next)
	}
	if r.IsProgressNotify() {
		return max(next, store.Revision(r.Header.Revision)+1), nil
	}
	return s.events(r.Events, next, feed), nil
}

// events passes the changes on, one revision at a time. The header's revision of such a response proves nothing about
// the revisions in between: only what was read counts.
func (s *Store) events(events []*clientv3.Event, next store.Revision, feed *store.Feed) store.Revision {
	for len(events) > 0 {
		rev := events[0].Kv.ModRevision
		var entries []store.Entry
		var deleted []string
		for len(events) > 0 && events[0].Kv.ModRevision == rev {
			e := s.entry(events[0].Kv)
			if events[0].Type == mvccpb.Event_DELETE {
				deleted = append(deleted, e.Key)
			} else {
				entries = append(entries, e)
			}
			events = events[1:]
		}
		if store.Revision(rev) >= next {
			feed.Change(store.Revision(rev), entries, deleted)
			next = store.Revision(rev) + 1
		}
	}
	return next
}

// wentBack asks the cluster itself, since one member may merely lag, whether its revision is behind what was seen
// already: then it was restored from an older backup, and waiting for next would be waiting in silence.
func (s *Store) wentBack(ctx context.Context, next store.Revision) error {
	ctx, done, err := s.call(ctx)
	if err != nil {
		return err
	}
	defer done()
	r, err := s.client.Get(ctx, s.prefix+"\x00", clientv3.WithCountOnly())
	if err != nil {
		return nil // not the watch's trouble
	}
	if store.Revision(r.Header.Revision) < next-1 {
		return fmt.Errorf("%w: the store is at %d, changes up to %d were seen", errReset, r.Header.Revision, next-1)
	}
	return nil
}
