package regionctl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cellgate/cellgate/regionctl/rollout"
	"github.com/cellgate/cellgate/store"
)

// keepVersions is how many versions stay; the older ones can no longer be shown or rolled back to.
const keepVersions = 1000

// sweepRecord says that the leader whose key has the revision is deleting blobs. It deletes under its fence, so a record of a leader
// that is no more means nothing.
type sweepRecord struct {
	Form  int    `json:"form"`
	Epoch uint64 `json:"epoch"` // the revision; 0 = nobody is
}

// errSweeping: blobs are being deleted, so what a publication finds in place may be gone when it commits.
var errSweeping = errors.New("regionctl: blobs are being swept")

// sweepMark is the condition that no sweep begins before the commit. A publication takes it before it looks which blobs are
// there.
func (c *Controller) sweepMark(ctx context.Context) (store.Cond, error) {
	rec, e, err := load[sweepRecord](ctx, c.opt.Global, store.KeySweep)
	if err != nil || rec.Epoch == 0 {
		return store.Cond{Key: store.KeySweep, Modified: e.Modified}, err
	}
	leader, err := c.opt.Global.Get(ctx, store.KeyLeader)
	if err == nil && uint64(leader.Modified) == rec.Epoch {
		return store.Cond{}, errSweeping
	}
	if isAbsent(err) {
		err = nil
	}
	return store.Cond{Key: store.KeySweep, Modified: e.Modified}, err
}

// sweep forgets the oldest versions beyond keep, and then the blobs that no version needs any more.
func (t *term) sweep(ctx context.Context, keep int) error {
	s, _, err := t.rolloutState(ctx)
	if err != nil {
		return err
	}
	records := t.records()
	if len(records) <= keep {
		return nil
	}
	for _, rec := range records[:len(records)-keep] {
		n := rec.Manifest.Number
		if n == s.Version.Number || n == s.Stable.Number || s.Next != nil && n == s.Next.Version.Number {
			break // a rollout may stand for long; what it needs stays, and all after it
		}
		if _, err := t.commit(ctx, nil, []store.Op{store.Delete(store.KeyVersion(n))}); err != nil {
			return err
		}
	}
	// Publications wait from here on, and what they committed before is in the mirror when this commit is.
	if err := t.markSweep(ctx, uint64(t.Fence().Modified)); err != nil {
		return err
	}
	err = t.sweepBlobs(ctx)
	return errors.Join(err, t.markSweep(ctx, 0))
}

func (t *term) markSweep(ctx context.Context, epoch uint64) error {
	rev, err := t.Commit(ctx, nil, []store.Op{store.Put(store.KeySweep, encode(sweepRecord{Form: recordForm, Epoch: epoch}))})
	if err == nil {
		t.intent.see(ctx, rev)
	}
	return err
}

func (t *term) sweepBlobs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var kept []rollout.Version
	for _, rec := range t.records() {
		kept = append(kept, rec.pointer())
	}
	return dropOthers(ctx, t.globalBlobs, t.needs, kept, t.Fence())
}

// needs lists the blobs of a version: its manifest and the shards.
func (c *Controller) needs(ctx context.Context, v rollout.Version) ([]string, error) {
	envelope, err := c.blob(ctx, string(v.Manifest))
	if err != nil {
		return nil, fmt.Errorf("regionctl: manifest of version %d: %w", v.Number, err)
	}
	m, err := c.manifest(envelope)
	if err != nil {
		return nil, err
	}
	out := []string{string(v.Manifest)}
	for _, s := range m.Shards {
		out = append(out, string(s.Digest))
	}
	return out, nil
}

// dropOthers deletes every blob that none of the versions needs.
func dropOthers(ctx context.Context, blobs *store.Blobs, needs func(context.Context, rollout.Version) ([]string, error), kept []rollout.Version, conds ...store.Cond) error {
	needed := map[string]bool{}
	for _, v := range kept {
		list, err := needs(ctx, v)
		if err != nil {
			return err // rather too much is kept than too little
		}
		for _, d := range list {
			needed[d] = true
		}
	}
	all, err := blobs.List(ctx)
	if err != nil {
		return err
	}
	for _, d := range all {
		if !needed[d] {
			if err := blobs.Delete(ctx, d, conds...); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropOldCopies keeps in the region's store the blobs of what its target names and of the target before it. Only the
// replicator writes there, and it does one thing at a time.
func (c *Controller) dropOldCopies(ctx context.Context, before, now *rollout.Target) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	kept := versionsOf(now)
	if before != nil {
		kept = append(kept, versionsOf(before)...)
	}
	return dropOthers(ctx, c.regionalBlobs, c.needs, kept)
}
