// Package etcd is the store on an etcd cluster, embedded by default and external by endpoints.
//
//	s, err := etcd.Open(etcd.Config{Endpoints: []string{"https://127.10.0.2:2379"}, TLS: trust.ClientTLS(me, roots, trust.RoleEtcd)})
//
// Package etcd/server hosts a member; this package never links it.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/store"
)

const (
	// callTimeout bounds one call whose context has no earlier end: an election and a half.
	callTimeout = 5 * time.Second
	// pageKeys is how many keys one range request of a list asks for.
	pageKeys = 200
)

// Config says where the cluster is.
type Config struct {
	// Endpoints are URLs of the members, "https://host:port".
	Endpoints []string
	// TLS authenticates both ends; nil speaks plain HTTP/2, for external clusters on a trusted host only.
	TLS *tls.Config
	// Prefix stands before every key, so that several worlds can share a cluster. Empty is none.
	Prefix string
	// Log gets changes of the connection's state; nil is silent.
	Log *slog.Logger
}

// Store is one client of the cluster.
type Store struct {
	client *clientv3.Client
	prefix string
	log    *slog.Logger
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
}

var _ store.Store = (*Store)(nil)

// Open makes a client. It does not wait for the cluster, which may come up later.
func Open(c Config) (*Store, error) {
	if len(c.Endpoints) == 0 {
		return nil, errors.New("store: etcd: no endpoints")
	}
	// With grpc's own pauses, up to two minutes, a cluster that was away for long would be back for as long before anybody knows.
	connect := grpc.ConnectParams{
		MinConnectTimeout: 3 * time.Second,
		Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            c.Endpoints,
		TLS:                  c.TLS,
		Logger:               zap.NewNop(),
		DialTimeout:          callTimeout,
		DialKeepAliveTime:    6 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
		DialOptions:          []grpc.DialOption{grpc.WithConnectParams(connect)},
	})
	if err != nil {
		return nil, fmt.Errorf("store: etcd: %w", err)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Store{client: client, prefix: c.Prefix, log: c.Log, ctx: ctx, cancel: cancel}, nil
}

// Get returns the entry or store.ErrNotFound; reads are linearizable.
func (s *Store) Get(ctx context.Context, key string) (store.Entry, error) {
	ctx, done, err := s.call(ctx)
	if err != nil {
		return store.Entry{}, err
	}
	defer done()
	r, err := s.client.Get(ctx, s.prefix+key)
	if err != nil {
		return store.Entry{}, s.fail(ctx, "get "+key, err)
	}
	if len(r.Kvs) == 0 {
		return store.Entry{}, fmt.Errorf("%w: %s", store.ErrNotFound, key)
	}
	return s.entry(r.Kvs[0]), nil
}

// List pages through the prefix at the revision of the first page, and begins anew when that is compacted meanwhile.
func (s *Store) List(ctx context.Context, prefix string) ([]store.Entry, store.Revision, error) {
	return s.pages(ctx, prefix)
}

// Keys is List without the values.
func (s *Store) Keys(ctx context.Context, prefix string) ([]store.Entry, store.Revision, error) {
	return s.pages(ctx, prefix, clientv3.WithKeysOnly())
}

func (s *Store) pages(ctx context.Context, prefix string, opts ...clientv3.OpOption) ([]store.Entry, store.Revision, error) {
	ctx, done, err := s.call(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer done()
	for {
		entries, rev, err := s.list(ctx, prefix, opts)
		if errors.Is(err, rpctypes.ErrCompacted) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return nil, 0, s.fail(ctx, "list "+prefix, err)
		}
		return entries, rev, nil
	}
}

func (s *Store) list(ctx context.Context, prefix string, opts []clientv3.OpOption) ([]store.Entry, store.Revision, error) {
	var entries []store.Entry
	from, end, rev := s.prefix+prefix, clientv3.GetPrefixRangeEnd(s.prefix+prefix), int64(0)
	if from == "" {
		from, end = "\x00", "\x00" // every key
	}
	for {
		r, err := s.client.Get(ctx, from, append([]clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(pageKeys), clientv3.WithRev(rev)}, opts...)...)
		if err != nil {
			return nil, 0, err
		}
		for _, kv := range r.Kvs {
			entries = append(entries, s.entry(kv))
		}
		if rev == 0 {
			rev = r.Header.Revision
		}
		if !r.More || len(r.Kvs) == 0 {
			return entries, store.Revision(rev), nil
		}
		from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
	}
}

// Commit is one transaction. The client repeats no transaction by itself, so an error may hide a success. Only a member
// without a leader is known to have done nothing.
func (s *Store) Commit(ctx context.Context, conds []store.Cond, ops []store.Op) (store.Revision, error) {
	if err := store.Check(conds, ops); err != nil {
		return 0, err
	}
	ctx, done, err := s.call(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	compares := make([]clientv3.Cmp, 0, len(conds))
	for _, c := range conds {
		compares = append(compares, clientv3.Compare(clientv3.ModRevision(s.prefix+c.Key), "=", int64(c.Modified)))
	}
	puts, err := s.ops(ops)
	if err != nil {
		return 0, err
	}
	r, err := s.client.Txn(ctx).If(compares...).Then(puts...).Commit()
	for errors.Is(err, rpctypes.ErrNoLeader) && pause.For(ctx, 100*time.Millisecond) { // the member refused it unseen; the next one asked may be another
		r, err = s.client.Txn(ctx).If(compares...).Then(puts...).Commit()
	}
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return 0, fmt.Errorf("%w: etcd: %v", store.ErrLeaseLost, err)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return 0, fmt.Errorf("%w: etcd: %v", store.ErrFull, err)
	}
	if err != nil {
		return 0, s.fail(ctx, "commit", err)
	}
	if !r.Succeeded {
		return 0, store.ErrConflict
	}
	return store.Revision(r.Header.Revision), nil
}

func (s *Store) ops(ops []store.Op) ([]clientv3.Op, error) {
	out := make([]clientv3.Op, 0, len(ops))
	for _, op := range ops {
		if op.Delete {
			out = append(out, clientv3.OpDelete(s.prefix+op.Key))
			continue
		}
		var opts []clientv3.OpOption
		if op.Lease != nil {
			l, ok := op.Lease.(*lease)
			if !ok || l.ended() {
				return nil, fmt.Errorf("%w: put of %s", store.ErrLeaseLost, op.Key)
			}
			opts = append(opts, clientv3.WithLease(l.id))
		}
		out = append(out, clientv3.OpPut(s.prefix+op.Key, string(op.Value), opts...))
	}
	return out, nil
}

// Close ends watches and stops renewing leases, which then run out.
func (s *Store) Close() error {
	if s.ctx.Err() != nil {
		return nil
	}
	s.cancel()
	if err := s.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("store: etcd: close: %w", err)
	}
	return nil
}

// call bounds one call and ties it to the store's life. A member that has lost its leader, as when it is cut off from that
// alone, answers at once that it has none, so that the client asks the next; else the call would wait there to its end.
func (s *Store) call(ctx context.Context) (context.Context, func(), error) {
	if s.ctx.Err() != nil {
		return nil, nil, store.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("store: etcd: %w", err)
	}
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), callTimeout)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }, nil
}

// fail names the operation, and the end of the context or store where that is the cause.
func (s *Store) fail(ctx context.Context, op string, err error) error {
	switch {
	case s.ctx.Err() != nil:
		return store.ErrClosed
	case ctx.Err() != nil && !errors.Is(err, ctx.Err()):
		return fmt.Errorf("store: etcd: %s: %w (%v)", op, ctx.Err(), err)
	case unavailable(err):
		return fmt.Errorf("%w: etcd: %s: %w", store.ErrUnavailable, op, err)
	default:
		return fmt.Errorf("store: etcd: %s: %w", op, err)
	}
}

// unavailable says whether the error is the cluster's state, such as a lost quorum, rather than the request.
func unavailable(err error) bool {
	switch status.Code(rpctypes.Error(err)) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return true
	}
	var known rpctypes.EtcdError
	return errors.As(rpctypes.Error(err), &known) && known.Code() == codes.Unavailable
}

func (s *Store) entry(kv *mvccpb.KeyValue) store.Entry {
	return store.Entry{
		Key:      string(kv.Key[len(s.prefix):]),
		Value:    kv.Value,
		Created:  store.Revision(kv.CreateRevision),
		Modified: store.Revision(kv.ModRevision),
	}
}
