package server

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
)

// The sizes at which the keeper acts, in parts of the quota; and of the file, the part that may be air.
const (
	tightAt    = 0.8 // from here on room is made
	easedAt    = 0.7 // below this a full member's alarm is taken back
	worthwhile = 0.2 // so much of the file must be free for a defragmentation
	// keepTight is the history that is left while room is made in time; a full store keeps none.
	keepTight = 50
)

// keeper makes room in one member: it compacts history, defragments the member's own file and takes back the member's own
// alarm. So a store that history has filled heals by itself; one that is full of what is in use stays refused, and says so.
//
// Each member looks after itself: defragmenting stops the member for a moment, and the beat is jittered by its name, so
// that hardly ever two do it at once.
type keeper struct {
	name   string
	quota  int64
	server *etcdserver.EtcdServer
	log    *slog.Logger
	said   string // the trouble that was told last
	swept  int64  // the revision at which a full store was compacted and defragmented last
}

// run looks every beat until ctx ends.
func (k *keeper) run(ctx context.Context, beat time.Duration) {
	offset := time.Duration(uint64(k.server.MemberID()) % uint64(beat))
	for wait := beat/2 + offset/2; ; wait = beat {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if err := k.look(ctx); err != nil && ctx.Err() == nil && err.Error() != k.said {
			k.said = err.Error()
			k.log.Warn("no room could be made", "etcd", k.name, "error", err)
		}
	}
}

func (k *keeper) look(ctx context.Context) error {
	full, size := k.full(), k.server.Backend().Size()
	if !full && k.part(size) < tightAt {
		k.said = ""
		return nil
	}
	if err := k.makeRoom(ctx, full); err != nil {
		return err
	}
	after := k.server.Backend().Size()
	if after != size {
		k.log.Info("room was made", "etcd", k.name, "before", size, "after", after, "quota", k.quota)
	}
	if k.part(after) >= easedAt {
		if full {
			return fmt.Errorf("full: %d of %d bytes are in use; delete something or raise the quota", after, k.quota)
		}
		return nil
	}
	if !full {
		return nil
	}
	if _, err := k.server.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: uint64(k.server.MemberID()), Alarm: pb.AlarmType_NOSPACE}); err != nil {
		return fmt.Errorf("disarm: %w", err)
	}
	k.said = ""
	k.log.Info("writes are taken again", "etcd", k.name, "size", after, "quota", k.quota)
	return nil
}

// makeRoom compacts when the file holds little air, then defragments when it holds some. A full store is defragmented after
// every change all the same: what was freed counts as in use until later writes are committed, and it takes none.
func (k *keeper) makeRoom(ctx context.Context, full bool) error {
	b, rev := k.server.Backend(), k.server.KV().Rev()
	if k.part(b.SizeInUse()) >= easedAt {
		upTo := rev
		if !full {
			upTo -= keepTight
		}
		if err := k.compact(ctx, upTo); err != nil {
			return err
		}
	}
	airy := float64(b.Size()-b.SizeInUse()) >= worthwhile*float64(b.Size())
	if !airy && (!full || rev == k.swept) {
		return nil
	}
	if err := b.Defrag(); err != nil {
		return fmt.Errorf("defragment: %w", err)
	}
	if full {
		k.swept = rev
	}
	return nil
}

func (k *keeper) compact(ctx context.Context, rev int64) error {
	if rev <= k.server.KV().FirstRev() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if _, err := k.server.Compact(ctx, &pb.CompactionRequest{Revision: rev, Physical: true}); err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	return nil
}

func (k *keeper) part(size int64) float64 { return float64(size) / float64(k.quota) }

// full says whether this member has raised the alarm for want of space.
func (k *keeper) full() bool {
	for _, a := range k.server.Alarms() {
		if a.GetAlarm() == pb.AlarmType_NOSPACE && a.GetMemberID() == uint64(k.server.MemberID()) {
			return true
		}
	}
	return false
}
