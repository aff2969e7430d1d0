package regionctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/regionctl/fleet"
	"github.com/cellgate/cellgate/regionctl/rollout"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/trust"
)

// replicateTargets copies the region's target from the global store into the region's own, and shows the region's nodes
// what the copy says. Blobs are copied before the target that names them, so that a node finds whatever it is told to run,
// also when the global store is gone a moment later.
func (c *Controller) replicateTargets(ctx context.Context) error {
	return c.onChange(ctx, "target", func(ctx context.Context) error {
		return errors.Join(c.copyTarget(ctx), c.postTarget(), c.postForeign(), c.sweepCopiesInTurn(ctx))
	})
}

// replicatePlan copies plan and evacuations. Routers are shown a new plan even when the region's store cannot take it:
// where clients are sent must not depend on it.
func (c *Controller) replicatePlan(ctx context.Context) error {
	var topology posted
	return c.onChange(ctx, "plan", func(ctx context.Context) error {
		return errors.Join(c.postSigned(fleet.Mail{Kind: fleet.KindTopology}, trust.KindTopology, c.opt.Topology, &topology), c.postPlan(ctx), c.copySteering(ctx))
	})
}

// onChange does one thing at every change of what the stores say, and now and then. An error is logged once per spell.
func (c *Controller) onChange(ctx context.Context, what string, do func(context.Context) error) error {
	last := ""
	for {
		next, nextCopy := c.intent.next(), c.copied.next()
		wait, said := 30*time.Second, "" // now and then, since orders expire without a change
		if err := do(ctx); err != nil {
			wait, said = time.Second, err.Error()
		}
		if ctx.Err() == nil && said != "" && said != last {
			c.log.Warn("the region's copy is behind", "what", what, "err", said)
		}
		last = said
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		case <-nextCopy:
		case <-time.After(wait):
		}
	}
}

// copySteering brings plan and evacuations in the region's store up to what the mirrored global one says.
func (c *Controller) copySteering(ctx context.Context) error {
	if !c.intent.ready() || !c.copied.ready() || c.behind() {
		return nil // what a store that went back says replaces nothing
	}
	evacs := c.globalOrders()
	if evacs == nil {
		evacs = []cells.Evacuation{}
	}
	return errors.Join(c.copyValue(ctx, store.KeyCopyEvacuees, encode(evacs), nil), c.copyPlan(ctx))
}

// copyTarget copies the blobs of every version of the target, then the target.
func (c *Controller) copyTarget(ctx context.Context) error {
	e, ok := c.intent.get(store.KeyTarget(c.opt.Region))
	if !ok || !c.copied.ready() {
		return nil
	}
	envelope := e.Value
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
	var before *rollout.Target
	if have, ok := c.copied.get(store.KeyCopyTarget); ok {
		if before, err = c.target(have.Value); err != nil {
			before = nil // unreadable: nothing of it is needed
		}
	}
	if before != nil && target.Head != 0 && target.Head < before.Head {
		return fmt.Errorf("regionctl: the target knows versions up to %d, the region's copy up to %d: the global store went back", target.Head, before.Head)
	}
	mark := c.copied.mark(store.KeyCopySweep)
	for _, v := range versionsOf(target) {
		if err := c.copyVersion(ctx, v, mark); err != nil {
			return fmt.Errorf("regionctl: copy version %d: %w", v.Number, err)
		}
	}
	if err := c.copyValue(ctx, store.KeyCopyTarget, envelope, targetOrder, mark.Cond); err != nil {
		return err
	}
	c.copiedBefore = before
	return c.sweepCopies(ctx)
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

func (c *Controller) copyVersion(ctx context.Context, v rollout.Version, mark sweepMark) error {
	envelope, err := c.copyBlob(ctx, string(v.Manifest), mark)
	if err != nil {
		return err
	}
	m, err := c.manifest(envelope)
	if err != nil {
		return err
	}
	for _, s := range m.Shards {
		if _, err := c.copyBlob(ctx, string(s.Digest), mark); err != nil {
			return fmt.Errorf("shard %s: %w", s.Key, err)
		}
	}
	return nil
}

// copyBlob makes sure that the region's store has the blob, and that no sweep takes it.
func (c *Controller) copyBlob(ctx context.Context, digest string, mark sweepMark) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	b, err := c.regionalBlobs.Get(ctx, digest)
	if err == nil && !mark.sweeping {
		return b, nil
	}
	if err != nil {
		if b, err = c.globalBlobs.Get(ctx, digest); err != nil {
			return nil, err
		}
	}
	_, err = c.regionalBlobs.Write(ctx, b, mark.Cond)
	return b, err
}

// copyValue writes a value into the region's store unless it is there, or what is there is newer.
func (c *Controller) copyValue(ctx context.Context, key string, value []byte, order func(*Controller, []byte) (fleet.Mail, error), conds ...store.Cond) error {
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
	rev, err := c.opt.Regional.Commit(ctx, append(conds, store.Cond{Key: key, Modified: have.Modified}), []store.Op{store.Put(key, value)})
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
	return fleet.Mail{Kind: fleet.KindTarget, Epoch: t.Epoch, Number: t.Number, Envelope: envelope, Until: trust.Until(envelope)}, nil
}

// postTarget shows the region's nodes what the region's copy says; what the mirrored global store says while the region's
// own was never seen.
func (c *Controller) postTarget() error {
	e, ok := c.copied.get(store.KeyCopyTarget)
	if !ok && !c.copied.ready() {
		e, ok = c.intent.get(store.KeyTarget(c.opt.Region))
	}
	if !ok {
		return nil
	}
	m, err := targetOrder(c, e.Value)
	if err == nil {
		c.board.PostTo(c.opt.Region, m)
	}
	return err
}

// postPlan shows the newer of the published plan and the region's copy of one.
func (c *Controller) postPlan(ctx context.Context) error {
	var errs []error
	post := func(m *mirror, key string, from ...*store.Blobs) {
		e, ok := m.get(key)
		if !ok {
			return
		}
		p, err := c.openStored(ctx, e.Value, from...)
		if err != nil {
			errs = append(errs, err)
			return
		}
		c.board.Post(p.mail())
	}
	post(c.copied, store.KeyCopyPlan, c.regionalBlobs)
	if !c.behind() {
		post(c.intent, store.KeyPlan, c.globalBlobs, c.regionalBlobs)
	}
	return errors.Join(errs...)
}

// postOverrides signs the evacuations that still matter. They are the whole list only for a controller that has read its
// region's store: one that starts while no store answers must not end what its nodes have on their disks.
func (c *Controller) postOverrides(whole bool) error {
	standing, leaving := []cells.Evacuation{}, map[cells.CellID]bool{}
	for _, e := range c.evacuations() {
		if e.Standing(c.opt.Now()) {
			leaving[e.Cell] = true
		}
		if e.State(c.opt.Now(), c.opt.Ramp) != cells.Active {
			standing = append(standing, e)
		}
	}
	err := c.postSigned(fleet.Mail{Kind: fleet.KindOverrides, Adds: !whole}, trust.KindOverrides, standing, &c.postedOverrides)
	c.board.Leave(leaving) // after the orders, so that no plan comes ahead of them
	return err
}

// posted is a message as it was last shown.
type posted struct {
	payload []byte
	until   time.Time // when the certificate ends that it was signed with
	adds    bool
}

// postSigned signs and shows a message unless the same payload is shown already, by the same certificate: signatures differ
// every time.
func (c *Controller) postSigned(m fleet.Mail, envelopeKind string, v any, last *posted) (err error) {
	next := posted{encode(v), c.opt.Signer.Expires(), m.Adds}
	if string(last.payload) == string(next.payload) && last.until.Equal(next.until) && last.adds == next.adds {
		return nil
	}
	if m.Envelope, err = c.opt.Signer.Sign(envelopeKind, next.payload); err != nil {
		return err
	}
	c.board.Post(m)
	*last = next
	return nil
}

// postForeign shows the targets of the other regions, for their nodes that attach here while their own controller is away.
func (c *Controller) postForeign() error {
	if c.behind() {
		return nil
	}
	for _, r := range c.opt.Topology.Regions {
		e, ok := c.intent.get(store.KeyTarget(r.ID))
		if !ok || r.ID == c.opt.Region {
			continue
		}
		m, err := targetOrder(c, e.Value)
		if err != nil {
			return err
		}
		c.board.PostTo(r.ID, m)
	}
	return nil
}
