package etcd

import (
	"context"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/cellgate/cellgate/store"
)

var _ store.Sized = (*Store)(nil)

// statusTimeout bounds how long one member is waited for: whoever is slower is told as lost.
const statusTimeout = time.Second

// Usage asks every endpoint how full it is, all at once, in the order of the configuration.
func (s *Store) Usage(ctx context.Context) ([]store.Usage, error) {
	ctx, done, err := s.call(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	endpoints := s.client.Endpoints()
	out := make([]store.Usage, len(endpoints))
	full := s.alarmed(ctx)
	var asked sync.WaitGroup
	for i, e := range endpoints {
		asked.Go(func() { out[i] = s.usageOf(ctx, e, full) })
	}
	asked.Wait()
	return out, nil
}

func (s *Store) usageOf(ctx context.Context, endpoint string, full []uint64) store.Usage {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	r, err := s.client.Status(ctx, endpoint)
	if err != nil {
		return store.Usage{Member: endpoint, Lost: true}
	}
	return store.Usage{
		Member: endpoint, Size: r.DbSize, InUse: r.DbSizeInUse, Quota: r.DbSizeQuota,
		Full: slices.Contains(full, r.Header.GetMemberId()),
	}
}

// alarmed lists the members whose alarm for want of space is raised; none when the cluster does not say.
func (s *Store) alarmed(ctx context.Context) []uint64 {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	r, err := s.client.AlarmList(ctx)
	if err != nil {
		return nil
	}
	var out []uint64
	for _, a := range r.Alarms {
		if a.GetAlarm() == pb.AlarmType_NOSPACE {
			out = append(out, a.GetMemberID())
		}
	}
	return out
}
