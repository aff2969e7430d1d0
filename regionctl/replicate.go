package regionctl

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/regionctl/fleet"
	"github.com/cellgate/cellgate/regionctl/rollout"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/trust"
)

// replicate copies what concerns the region from the global store into the region's own, and shows the region's processes
// what the copy says. Blobs are copied before the target that names them, so that a node finds whatever it is told to run.
func (c *Controller) replicate(ctx context.Context) error {
	if err := c.postTopology(); err != nil {
		return err
	}
	var last string
	for {
		next, nextCopy := c.intent.next(), c.copied.next()
		err := c.copyIntent(ctx)
		if err == nil {
			err = c.postForeign()
		}
		if err2 := c.postCopy(); err == nil {
			err = err2
		}
		wait := 30 * time.Second // also signs the overrides anew after an expiry
		if err != nil {
			wait = time.Second
		}
		if ctx.Err() == nil && err != nil && err.Error() != last {
			c.log.Warn("the region's copy is behind", "err", err)
		}
		last = fmt.Sprint(err)
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		case <-nextCopy:
		case <-time.After(wait):
		}
	}
}

// copyIntent brings the region's store up to what the mirrored global store says.
func (c *Controller) copyIntent(ctx context.Context) error {
	if !c.intent.ready() || !c.copied.ready() {
		return nil
	}
	if e, ok := c.intent.get(store.KeyTarget(c.opt.Region)); ok {
		if err := c.copyTarget(ctx, e.Value); err != nil {
			return err
		}
	}
	if e, ok := c.intent.get(store.KeyPlan); ok {
		if err := c.copyValue(ctx, store.KeyCopyPlan, e.Value, planOrder); err != nil {
			return err
		}
	}
	evacs := c.evacuations()
	if evacs == nil {
		evacs = []cells.Evacuation{}
	}
	return c.copyValue(ctx, store.KeyCopyEvacuees, encode(evacs), nil)
}

// copyTarget copies the blobs of every version of the target, then the target.
func (c *Controller) copyTarget(ctx context.Context, envelope []byte) error {
	if have, ok := c.copied.get(store.KeyCopyTarget); ok && string(have.Value) == string(envelope) {
		return nil
	}
	target, err := c.target(envelope)
	if err != nil {
		return err
	}
	if target.Region != c.opt.Region {
		return fmt.Errorf("regionctl: the target at this region's place is for %q", target.Region)
	}
	for _, v := range versionsOf(target) {
		if err := c.copyVersion(ctx, v); err != nil {
			return fmt.Errorf("regionctl: copy version %d: %w", v.Number, err)
		}
	}
	var before *rollout.Target
	if have, ok := c.copied.get(store.KeyCopyTarget); ok {
		if before, err = c.target(have.Value); err != nil {
			before = nil // unreadable: nothing of it is needed
		}
	}
	if err := c.copyValue(ctx, store.KeyCopyTarget, envelope, targetOrder); err != nil {
		return err
	}
	return c.dropOldCopies(ctx, before, target)
}

func versionsOf(t *rollout.Target) []rollout.Version {
	seen := map[snapshot.Digest]rollout.Version{}
	for _, v := range t.Cells {
		seen[v.Manifest] = v
	}
	for _, v := range t.Nodes {
		seen[v.Manifest] = v
	}
	return slices.SortedFunc(maps.Values(seen), func(a, b rollout.Version) int { return int(a.Number) - int(b.Number) })
}

func (c *Controller) copyVersion(ctx context.Context, v rollout.Version) error {
	envelope, err := c.copyBlob(ctx, string(v.Manifest))
	if err != nil {
		return err
	}
	m, err := c.manifest(envelope)
	if err != nil {
		return err
	}
	for _, s := range m.Shards {
		if _, err := c.copyBlob(ctx, string(s.Digest)); err != nil {
			return fmt.Errorf("shard %s: %w", s.Key, err)
		}
	}
	return nil
}

// copyBlob makes sure that the region's store has the blob.
func (c *Controller) copyBlob(ctx context.Context, digest string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if b, err := c.regionalBlobs.Get(ctx, digest); err == nil {
		return b, nil
	}
	b, err := c.globalBlobs.Get(ctx, digest)
	if err != nil {
		return nil, err
	}
	_, err = c.regionalBlobs.Put(ctx, b)
	return b, err
}

// copyValue writes a value into the region's store unless it is there, or what is there is newer.
func (c *Controller) copyValue(ctx context.Context, key string, value []byte, order func(*Controller, []byte) (fleet.Mail, error)) error {
	have, ok := c.copied.get(key)
	if ok && string(have.Value) == string(value) {
		return nil
	}
	if ok && order != nil {
		ours, err1 := order(c, have.Value)
		theirs, err2 := order(c, value)
		if err2 != nil {
			return err2
		}
		if err1 == nil && (ours.Epoch > theirs.Epoch || ours.Epoch == theirs.Epoch && ours.Number > theirs.Number) {
			return nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	rev, err := c.opt.Regional.Commit(ctx, []store.Cond{{Key: key, Modified: have.Modified}}, []store.Op{store.Put(key, value)})
	if err == nil {
		c.copied.see(ctx, rev)
	}
	return err
}

// target opens a signed target.
func (c *Controller) target(envelope []byte) (*rollout.Target, error) {
	raw, _, err := c.opt.Roots.Verify(trust.KindTarget, envelope, c.opt.Now(), trust.RoleController)
	if err != nil {
		return nil, err
	}
	var t rollout.Target
	if err := json.Unmarshal(raw, &t); err != nil {
		return nil, fmt.Errorf("regionctl: target: %w", err)
	}
	if t.Form < 1 || t.Form > rollout.TargetForm {
		return nil, fmt.Errorf("regionctl: a target of form %d is not readable here", t.Form)
	}
	return &t, nil
}

func targetOrder(c *Controller, envelope []byte) (fleet.Mail, error) {
	t, err := c.target(envelope)
	if err != nil {
		return fleet.Mail{}, err
	}
	return fleet.Mail{Kind: fleet.KindTarget, Epoch: t.Epoch, Number: t.Number, Envelope: envelope}, nil
}

func planOrder(c *Controller, envelope []byte) (fleet.Mail, error) {
	raw, _, err := c.opt.Roots.Verify(trust.KindPlan, envelope, c.opt.Now(), trust.RoleController)
	if err != nil {
		return fleet.Mail{}, err
	}
	p, err := steer.DecodePlan(raw)
	if err != nil {
		return fleet.Mail{}, err
	}
	return fleet.Mail{Kind: fleet.KindPlan, Epoch: p.Epoch, Number: p.Number, Envelope: envelope}, nil
}

// postCopy shows the region's processes what the region's copy says; without a regional store, what the mirrored global one says.
func (c *Controller) postCopy() error {
	if e, ok := c.own(store.KeyCopyTarget, store.KeyTarget(c.opt.Region)); ok {
		m, err := targetOrder(c, e)
		if err != nil {
			return err
		}
		c.board.PostTarget(c.opt.Region, m)
	}
	if e, ok := c.own(store.KeyCopyPlan, store.KeyPlan); ok {
		m, err := planOrder(c, e)
		if err != nil {
			return err
		}
		c.board.Post(m)
	}
	return c.postOverrides()
}

// own reads the region's copy, or the original while the region's store was never seen.
func (c *Controller) own(copied, original string) ([]byte, bool) {
	if e, ok := c.copied.get(copied); ok {
		return e.Value, true
	}
	if c.copied.ready() {
		return nil, false
	}
	e, ok := c.intent.get(original)
	return e.Value, ok
}

// postOverrides signs the evacuations that still matter.
func (c *Controller) postOverrides() error {
	evacs := c.evacuations()
	if !c.intent.ready() {
		evacs, _, _ = read[[]cells.Evacuation](c.copied, store.KeyCopyEvacuees)
	}
	standing := []cells.Evacuation{}
	for _, e := range evacs {
		if e.State(c.opt.Now(), c.opt.Ramp) != cells.Active {
			standing = append(standing, e)
		}
	}
	return c.postSigned(fleet.KindOverrides, trust.KindOverrides, standing)
}

func (c *Controller) postTopology() error {
	return c.postSigned(fleet.KindTopology, trust.KindTopology, c.opt.Topology)
}

// postSigned signs and shows a message unless the same payload is shown already: signatures differ every time.
func (c *Controller) postSigned(kind fleet.Kind, envelopeKind string, v any) error {
	payload := encode(v)
	if string(c.posted[kind]) == string(payload) {
		return nil
	}
	envelope, err := c.opt.Signer.Sign(envelopeKind, payload)
	if err != nil {
		return err
	}
	c.board.Post(fleet.Mail{Kind: kind, Envelope: envelope})
	c.posted[kind] = payload
	return nil
}

// postForeign shows the targets of the other regions, for their nodes that attach here while their own controller is away.
func (c *Controller) postForeign() error {
	for _, r := range c.opt.Topology.Regions {
		e, ok := c.intent.get(store.KeyTarget(r.ID))
		if !ok || r.ID == c.opt.Region {
			continue
		}
		m, err := targetOrder(c, e.Value)
		if err != nil {
			return err
		}
		c.board.PostTarget(r.ID, m)
	}
	return nil
}
