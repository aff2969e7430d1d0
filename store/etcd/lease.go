package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cellgate/cellgate/store"
)

type lease struct {
	store *Store
	id    clientv3.LeaseID
	stop  context.CancelFunc // ends the renewal
	done  chan struct{}
}

// Lease opens a lease of whole seconds and renews it every third of them. Done is closed too when no renewal came
// through for the whole ttl: the cluster may have given the keys away by then.
func (s *Store) Lease(ctx context.Context, ttl time.Duration) (store.Lease, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("store: a lease of %v", ttl)
	}
	ctx, done, err := s.call(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	grant, err := s.client.Grant(ctx, int64((ttl+time.Second-1)/time.Second))
	if err != nil {
		return nil, s.fail(ctx, "grant a lease", err)
	}
	renewal, stop := context.WithCancel(s.ctx)
	renewed, err := s.client.KeepAlive(renewal, grant.ID)
	if err != nil {
		stop()
		return nil, s.fail(ctx, "renew a lease", err)
	}
	l := &lease{store: s, id: grant.ID, stop: stop, done: make(chan struct{})}
	go func() {
		defer stop()
		defer close(l.done)
		for range renewed { // closed by the client when the lease is gone or renewal has ended
		}
	}()
	return l, nil
}

func (l *lease) Done() <-chan struct{} { return l.done }

func (l *lease) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

func (l *lease) Release(ctx context.Context) error {
	ctx, done, err := l.store.call(ctx)
	if err != nil {
		return err
	}
	defer done()
	if _, err := l.store.client.Revoke(ctx, l.id); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return l.store.fail(ctx, "release a lease", err)
	}
	l.stop()
	return nil
}
