package regionctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cellgate/cellgate/regionctl/rollout"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/store"
)

const (
	// keepVersions is how many versions stay; the older ones can no longer be shown or rolled back to.
	keepVersions = 1000
	// sweepEvery is how often blobs are looked for that publications left behind which were refused or never ended, at least.
	sweepEvery = time.Hour
)

// sweepRecord is the mark of a sweep: whoever puts blobs takes it as a condition, see store.Blobs.
type sweepRecord struct {
	Form  int    `json:"form"`
	Epoch uint64 `json:"epoch"` // not 0 while a sweep is under way; in the global store the revision of the leader's key
}

// sweepMark is the mark as it was before blobs were put.
type sweepMark struct {
	store.Cond
	sweeping bool
}

func markOf(e store.Entry) sweepMark {
	m := sweepMark{Cond: store.Cond{Key: e.Key, Modified: e.Modified}}
	var rec sweepRecord
	m.sweeping = e.Modified != 0 && (json.Unmarshal(e.Value, &rec) != nil || rec.Epoch != 0)
	return m
}

// mark reads the mark from the mirror. When that is behind, the commit under the mark fails.
func (m *mirror) mark(key string) sweepMark {
	e, _ := m.get(key)
	e.Key = key
	return markOf(e)
}

func readMark(ctx context.Context, s store.Store, key string) (sweepMark, error) {
	e, err := s.Get(ctx, key)
	if err != nil && !isAbsent(err) {
		return sweepMark{}, fmt.Errorf("regionctl: read %s: %w", key, err)
	}
	e.Key = key
	return markOf(e), nil
}

// put stores a blob so that no sweep takes it before the commit under the mark.
func (m sweepMark) put(ctx context.Context, blobs *store.Blobs, blob []byte) (string, error) {
	if m.sweeping {
		return blobs.Write(ctx, blob, m.Cond)
	}
	return blobs.Put(ctx, blob, m.Cond)
}

// sweep deletes the blobs of a store that nobody needs, under the fence. needed is asked once the mark is set.
func sweep(ctx context.Context, s store.Store, key string, epoch uint64, needed func(context.Context) (map[string]bool, error), fence ...store.Cond) (deleted int, err error) {
	old, err := readMark(ctx, s, key)
	if err != nil {
		return 0, err
	}
	set := func(ctx context.Context, was store.Cond, epoch uint64) (store.Revision, error) {
		return s.Commit(ctx, append([]store.Cond{was}, fence...), []store.Op{store.Put(key, encode(sweepRecord{Form: recordForm, Epoch: epoch}))})
	}
	rev, err := set(ctx, old.Cond, epoch)
	if err != nil {
		return 0, err
	}
	own := store.Cond{Key: key, Modified: rev}
	keep, err := needed(ctx)
	if err == nil { // else rather too much is kept than too little
		deleted, err = store.NewBlobs(s).Sweep(ctx, rev, keep, append([]store.Cond{own}, fence...)...)
	}
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_, err2 := set(bye, own, 0)
	return deleted, errors.Join(err, err2)
}

// sweepInTurn forgets versions when there are too many, and sweeps then and now and then.
func (t *term) sweepInTurn(ctx context.Context, keep int) error {
	forgotten, err := t.forgetVersions(ctx, keep)
	now := t.opt.Now()
	if err != nil || !forgotten && now.Sub(t.swept) < sweepEvery {
		return err
	}
	if err := t.sweep(ctx); err != nil {
		return err
	}
	t.swept = now
	return nil
}

// forgetVersions forgets the oldest versions beyond keep; says whether there were any.
func (t *term) forgetVersions(ctx context.Context, keep int) (any bool, err error) {
	s, _, err := t.rolloutState(ctx)
	if err != nil {
		return false, err
	}
	records := t.records()
	for _, rec := range records[:max(len(records)-keep, 0)] {
		n := rec.Manifest.Number
		if n == s.Version.Number || n == s.Stable.Number || s.Next != nil && n == s.Next.Version.Number {
			break // a rollout may stand for long; what it needs stays, and all after it
		}
		if _, err := t.commit(ctx, nil, []store.Op{store.Delete(store.KeyVersion(n))}); err != nil {
			return any, err
		}
		any = true
	}
	return any, nil
}

// sweep deletes the blobs of the global store that no version, no plan and no state refers to.
func (t *term) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	parts := map[snapshot.Digest][]string{} // by manifest: most are read before publications are hindered
	for _, rec := range t.records() {
		list, err := t.needs(ctx, rec.pointer())
		if err != nil {
			return err
		}
		parts[rec.Envelope] = list
	}
	deleted, err := sweep(ctx, t.opt.Global, store.KeySweep, uint64(t.Fence().Modified), func(ctx context.Context) (map[string]bool, error) {
		return t.neededBlobs(ctx, parts)
	}, t.Fence())
	if deleted > 0 {
		t.log.Info("swept blobs that nothing refers to", "count", deleted)
	}
	return err
}

// neededBlobs reads what the global store refers to. The parts of versions may be known already.
func (t *term) neededBlobs(ctx context.Context, parts map[snapshot.Digest][]string) (map[string]bool, error) {
	needed := map[string]bool{}
	versions, _, err := t.opt.Global.List(ctx, store.PrefixVersions)
	if err != nil {
		return nil, err
	}
	for _, e := range versions {
		var rec versionRecord
		if err := json.Unmarshal(e.Value, &rec); err != nil {
			return nil, fmt.Errorf("regionctl: %s is not readable: %w", e.Key, err)
		}
		list, ok := parts[rec.Envelope]
		if !ok {
			if list, err = t.needs(ctx, rec.pointer()); err != nil {
				return nil, err
			}
		}
		for _, d := range list {
			needed[d] = true
		}
	}
	published, _, err := t.opt.Global.List(ctx, store.PrefixPlans)
	if err != nil {
		return nil, err
	}
	for _, key := range []string{store.KeyPlan, store.KeySteering} {
		e, err := t.opt.Global.Get(ctx, key)
		if err != nil && !isAbsent(err) {
			return nil, err
		}
		published = append(published, e)
	}
	for _, e := range published {
		for _, d := range referred(e.Value) {
			needed[d] = true
		}
	}
	return needed, nil
}

// referred lists the blobs of a planRecord or a steeringRecord; none of a value of form 1.
func referred(value []byte) (blobs []string) {
	var rec steeringRecord // a planRecord is a part of it
	if json.Unmarshal(value, &rec) != nil || rec.Blob == "" {
		return nil
	}
	blobs = append(blobs, rec.Blob)
	if rec.Plan != nil {
		blobs = append(blobs, rec.Plan.Blob)
	}
	return blobs
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

// sweepCopiesInTurn sweeps the region's store when it was long ago.
func (c *Controller) sweepCopiesInTurn(ctx context.Context) error {
	now := c.opt.Now()
	if c.copiesSwept.IsZero() {
		c.copiesSwept = now
	}
	if now.Sub(c.copiesSwept) < sweepEvery {
		return nil
	}
	return c.sweepCopies(ctx)
}

// sweepCopies keeps in the region's store the blobs of what its target names, of the target before it, and of the plan.
func (c *Controller) sweepCopies(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	c.copiesSwept = c.opt.Now()
	_, err := sweep(ctx, c.opt.Regional, store.KeyCopySweep, 1, func(ctx context.Context) (map[string]bool, error) {
		needed, kept := map[string]bool{}, []rollout.Version(nil)
		if c.copiedBefore != nil {
			kept = versionsOf(c.copiedBefore)
		}
		for _, key := range []string{store.KeyCopyTarget, store.KeyCopyPlan} {
			e, err := c.opt.Regional.Get(ctx, key)
			if isAbsent(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if key == store.KeyCopyPlan {
				for _, d := range referred(e.Value) {
					needed[d] = true
				}
				continue
			}
			target, err := c.target(e.Value)
			if err != nil {
				return nil, err
			}
			kept = append(kept, versionsOf(target)...)
		}
		for _, v := range kept {
			list, err := c.needs(ctx, v)
			if err != nil {
				return nil, err
			}
			for _, d := range list {
				needed[d] = true
			}
		}
		return needed, nil
	})
	return err
}
