package regionctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/regionctl/rollout"
	"github.com/cellgate/cellgate/regionctl/rollout/judge"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/trust"
)

const keepRollouts = 500

// rolling is the rollout as the leader has it: the stored state with the counts since. Written by: the rollout loop.
type rolling struct {
	state rollout.State
	at    store.Entry
	saved time.Time
}

// stepRollout is one beat: read what is stored, take in new versions, step, store what was decided, and only then tell the
// regions. The targets are a function of the stored state, so a leader that died in between is finished by the next.
func (t *term) stepRollout(ctx context.Context) error {
	if err := t.refreshRollout(); err != nil {
		return err
	}
	now := t.opt.Now().UTC()
	next := t.rolling.state
	if rec, ok := t.unrolled(next); ok {
		next = next.Publish(rec.pointer(), seed(rec.Envelope), now)
	}
	next = rollout.Step(next, t.rolloutEvidence(now), t.rolloutConfig(), now)
	if err := t.storeRollout(ctx, next, now); err != nil {
		return err
	}
	if next.Want != nil {
		if err := t.allocate(ctx); err != nil {
			return err
		}
	}
	return t.writeTargets(ctx)
}

// refreshRollout takes the stored state unless nobody has changed it since this leader wrote it. The mirror may be behind
// the store; then the next commit conflicts.
func (t *term) refreshRollout() error {
	e, ok := t.intent.get(store.KeyRollout)
	if !ok || e.Modified <= t.rolling.at.Modified {
		t.rolling.at.Key = store.KeyRollout
		return nil
	}
	state, err := rollout.Decode(e.Value)
	if err == nil {
		t.rolling = rolling{state: state, at: e, saved: t.opt.Now()}
	}
	return err
}

// rolloutState reads the state from the store; before the first publication it is the zero value.
func (c *Controller) rolloutState(ctx context.Context) (rollout.State, store.Entry, error) {
	e, err := c.opt.Global.Get(ctx, store.KeyRollout)
	if isAbsent(err) {
		return rollout.State{}, store.Entry{Key: store.KeyRollout}, nil
	}
	if err != nil {
		return rollout.State{}, e, fmt.Errorf("regionctl: read the rollout: %w", err)
	}
	s, err := rollout.Decode(e.Value)
	return s, e, err
}

// latest is the highest number that the state knows.
func latest(s rollout.State) uint64 {
	n := max(s.Version.Number, s.Stable.Number)
	if s.Next != nil {
		n = max(n, s.Next.Version.Number)
	}
	return n
}

// unrolled is the newest version if the state doesn't know it yet. Those between are part of it: every version is whole.
func (c *Controller) unrolled(s rollout.State) (versionRecord, bool) {
	n := c.headNumber()
	if n <= latest(s) {
		return versionRecord{}, false
	}
	rec, _, ok := read[versionRecord](c.intent, store.KeyVersion(n))
	return rec, ok
}

func seed(d snapshot.Digest) uint64 {
	h := fnv.New64a()
	h.Write([]byte(d))
	return h.Sum64()
}

func (t *term) rolloutEvidence(now time.Time) rollout.Evidence {
	ev := rollout.Evidence{
		Topology: t.opt.Topology, Since: t.started, Nodes: map[cells.NodeID]rollout.Node{},
		Probes: t.verdicts.get(), Evacuations: t.evacuations(),
	}
	if t.memory == nil {
		t.memory = judge.NewMemory(judge.Window(t.opt.Bake))
	}
	for _, n := range t.evidence.Nodes() {
		ev.Nodes[n.Report.ID] = rollout.Node{Report: n.Report, At: n.Arrived}
		t.memory.Hear(n.Report, n.Arrived)
	}
	ev.Rounds = t.memory.Rounds(now)
	return ev
}

func (c *Controller) rolloutConfig() rollout.Config {
	return rollout.Config{Bake: c.opt.Bake, OnInsufficient: c.opt.OnInsufficient}
}

// storeRollout keeps a decision at once, and counts now and then.
func (t *term) storeRollout(ctx context.Context, next rollout.State, now time.Time) error {
	decided := next.Rev != t.rolling.state.Rev
	if !decided && (!next.Active() || now.Sub(t.rolling.saved) < idlePersist) {
		t.rolling.state = next
		return nil
	}
	ops, err := t.rolloutOps(next)
	if err != nil {
		return err
	}
	rev, err := t.commit(ctx, []store.Cond{store.Unchanged(t.rolling.at)}, ops)
	if err != nil {
		return err
	}
	t.logDecisions(t.rolling.state, next)
	t.rolling = rolling{state: next, at: store.Entry{Key: store.KeyRollout, Modified: rev}, saved: now}
	return nil
}

// rolloutOps stores the state and the record of the rollout that it is about.
func (c *Controller) rolloutOps(s rollout.State) ([]store.Op, error) {
	raw, err := rollout.Encode(s)
	if err != nil {
		return nil, err
	}
	ops := []store.Op{store.Put(store.KeyRollout, raw)}
	if s.Version.Number > 0 {
		ops = append(ops, store.Put(store.KeyPastRollout(s.Version.Number), encode(c.describeRollout(s))))
	}
	return ops, nil
}

func (t *term) logDecisions(old, next rollout.State) {
	for _, d := range next.Log {
		if d.At.After(old.Changed) {
			t.log.Info("rollout", "version", d.Version, "state", string(d.Phase), "ring", d.Ring, "why", d.Why)
		}
	}
}

// errOvertaken: a version was published that the state does not know yet.
var errOvertaken = errors.New("regionctl: a newer version came first")

// allocate publishes the contents that the state wants under a new number and tells the state, in one commit.
func (t *term) allocate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	want, known := *t.rolling.state.Want, latest(t.rolling.state)
	content, rec, err := t.content(ctx, want.Contents.Number)
	if err != nil {
		return err
	}
	var next rollout.State
	_, err = t.publish(ctx, publication{
		build: func(_ *snapshot.Config, at *versionRecord) (*snapshot.Config, error) {
			if at.Manifest.Number > known {
				return nil, errOvertaken // it is queued first, or it would never be rolled out
			}
			return content, nil
		},
		meta:  snapshot.Meta{Author: "rollout", Message: want.Message, RollbackOf: rec.Manifest.Number},
		audit: AuditEntry{Who: "rollout", What: "rollback", Why: want.Message},
		conds: []store.Cond{t.Fence(), store.Unchanged(t.rolling.at)},
		ops: func(rec *versionRecord) (ops []store.Op, err error) {
			if next, err = t.rolling.state.Allocated(rec.pointer(), t.opt.Now().UTC()); err != nil {
				return nil, err
			}
			return t.rolloutOps(next)
		},
	})
	if errors.Is(err, errOvertaken) {
		return nil
	}
	if err != nil {
		return err
	}
	t.logDecisions(t.rolling.state, next)
	return t.refreshRollout()
}

// writeTargets tells every region whose target says something else than the stored state.
func (t *term) writeTargets(ctx context.Context) error {
	var ops []store.Op
	for _, target := range t.rolling.state.Targets(t.opt.Topology, t.Epoch) {
		if e, ok := t.intent.get(store.KeyTarget(target.Region)); ok {
			if have, err := t.target(e.Value); err == nil && sameTarget(have, &target) && !t.endsSoon(trust.KindTarget, e.Value) {
				continue
			}
		}
		envelope, err := t.opt.Signer.Sign(trust.KindTarget, encode(target))
		if err != nil {
			return err
		}
		ops = append(ops, store.Put(store.KeyTarget(target.Region), envelope))
	}
	if len(ops) == 0 {
		return nil
	}
	_, err := t.commit(ctx, []store.Cond{store.Unchanged(t.rolling.at)}, ops)
	return err
}

// renewAhead is how long before its signer's certificate ends a standing target or plan is signed anew; where certificates
// live shorter than twice that, half of what ours has left.
const renewAhead = 30 * 24 * time.Hour

// endsSoon says whether what stands should be signed anew: its signer's certificate ends soon, and ours does not. A node or
// router with an empty disk takes only what is valid now.
func (t *term) endsSoon(kind string, envelope []byte) bool {
	now := t.opt.Now()
	ahead := min(renewAhead, t.opt.Signer.Expires().Sub(now)/2)
	if ahead <= 0 {
		return false
	}
	_, _, err := t.opt.Roots.Verify(kind, envelope, now.Add(ahead), trust.RoleController)
	return err != nil
}

// sameTarget says whether two targets tell a region's nodes the same.
func sameTarget(a, b *rollout.Target) bool {
	return a.Region == b.Region && maps.Equal(a.Cells, b.Cells) && maps.Equal(a.Nodes, b.Nodes) && maps.Equal(a.Share, b.Share)
}

// mirroredRollout is the state as this controller last saw it.
func (c *Controller) mirroredRollout() rollout.State {
	e, ok := c.intent.get(store.KeyRollout)
	if !ok {
		return rollout.State{}
	}
	s, err := rollout.Decode(e.Value)
	if err != nil {
		return rollout.State{}
	}
	return s
}

// currentRollout is the running rollout, or nil.
func (c *Controller) currentRollout() *RolloutStatus {
	s := c.mirroredRollout()
	if !s.Active() {
		return c.comingRollout(c.headNumber())
	}
	d := c.describeRollout(s)
	return &d
}

// describeRollout tells people about the state. What the version followed is forgotten by the state once it is live; the
// record made on the way still knows.
func (c *Controller) describeRollout(s rollout.State) RolloutStatus {
	d := RolloutStatus{Version: s.Version.Number, Previous: s.Stable.Number, State: string(s.Phase), Why: s.Why}
	if past, _, ok := read[RolloutStatus](c.intent, store.KeyPastRollout(s.Version.Number)); ok {
		d.Previous = past.Previous
	}
	if s.Ring.Kind != "" {
		d.Ring = s.Ring.String()
	}
	for _, e := range s.Log {
		if e.Version != s.Version.Number {
			continue
		}
		if d.Started.IsZero() {
			d.Started = e.At
		}
		d.History = append(d.History, fmt.Sprintf("%s %s: %s", e.At.UTC().Format(time.RFC3339), strings.TrimSpace(string(e.Phase)+" "+e.Ring), e.Why))
	}
	if !s.Active() {
		d.Ended = s.Changed
	}
	return d
}

// versionStatus is a version's place in the world: queued, canary, live, rolled_back or superseded.
func (c *Controller) versionStatus(rec *versionRecord) string {
	s, n := c.mirroredRollout(), rec.Manifest.Number
	switch {
	case n > latest(s), s.Next != nil && n == s.Next.Version.Number:
		return "queued"
	case n == s.Version.Number && s.Active() && s.Phase != rollout.RollingBack:
		return "canary"
	case n == s.Stable.Number && s.Phase != rollout.RollingBack:
		return "live"
	case n == s.Stable.Number:
		return "canary"
	}
	if d, _, ok := read[RolloutStatus](c.intent, store.KeyPastRollout(n)); ok {
		switch rollout.Phase(d.State) {
		case rollout.RollingBack, rollout.RolledBack, rollout.Aborted:
			return "rolled_back"
		}
	}
	return "superseded"
}

// rolloutWarnings says what an evacuation of the cells does to the running rollout.
func (c *Controller) rolloutWarnings(ids []cells.CellID) []string {
	s := c.mirroredRollout()
	if !s.Active() || !slices.ContainsFunc(ids, func(id cells.CellID) bool { return id.Region() == s.Ring.Region }) {
		return nil
	}
	return []string{fmt.Sprintf("the rollout of version %d is in %s: it waits until the evacuation ends", s.Version.Number, s.Ring.Region)}
}

func (c *Controller) getRollouts(*call) (any, error) {
	out := []RolloutStatus{}
	for _, e := range slices.Backward(c.intent.list(store.PrefixRollouts)) {
		var d RolloutStatus
		if json.Unmarshal(e.Value, &d) == nil {
			out = append(out, d)
		}
	}
	return out, nil
}

func (c *Controller) getRollout(r *call) (any, error) {
	word := r.PathValue("n")
	if word == "current" {
		if d := c.currentRollout(); d != nil {
			return d, r.match(strconv.FormatUint(c.mirroredRollout().Rev, 10))
		}
		word = strconv.FormatUint(c.mirroredRollout().Version.Number, 10)
	}
	n, err := strconv.ParseUint(word, 10, 64)
	if err != nil {
		return nil, badRequest("%q is no version number", word)
	}
	if d, _, ok := read[RolloutStatus](c.intent, store.KeyPastRollout(n)); ok {
		return d, nil
	}
	if d := c.comingRollout(n); d != nil {
		return d, nil
	}
	return nil, notFound("no rollout of version %d", n)
}

// comingRollout is that of a version which was published and waits for its turn, or nil.
func (c *Controller) comingRollout(n uint64) *RolloutStatus {
	s := c.mirroredRollout()
	d := &RolloutStatus{Version: n, Previous: s.Stable.Number, State: string(rollout.Pending)}
	switch {
	case s.Next != nil && n == s.Next.Version.Number:
		d.Why = fmt.Sprintf("waits until version %d is done", s.Version.Number)
	case n > latest(s) && n <= c.headNumber():
		d.Why = "published; the leader has not begun yet"
	default:
		return nil
	}
	return d
}

// postRolloutOrder applies an order about the rollout under way, or that of a version, to the stored state; the leader goes on from
// there.
func (c *Controller) postRolloutOrder(r *call) (any, error) {
	which, verb, _ := strings.Cut(r.PathValue("verb"), ":")
	kinds := []rollout.OrderKind{rollout.OrderPause, rollout.OrderResume, rollout.OrderPromote, rollout.OrderAbort, rollout.OrderForce}
	version, err := strconv.ParseUint(which, 10, 64)
	if which != "current" && (err != nil || version == 0) || !slices.Contains(kinds, rollout.OrderKind(verb)) {
		return nil, notFound("no such action: %s", r.PathValue("verb"))
	}
	req, err := body[RolloutOrder](r)
	if err != nil {
		return nil, err
	}
	if err := words("reason", req.Reason); err != nil {
		return nil, err
	}
	for range maxContest {
		d, err := c.orderRollout(r, rollout.Order{Kind: rollout.OrderKind(verb), By: r.who, Reason: req.Reason, Version: version, ID: idempotency(r)}, req.DryRun)
		if !errors.Is(err, store.ErrConflict) {
			return d, err
		}
	}
	return nil, store.ErrConflict
}

func (c *Controller) orderRollout(r *call, o rollout.Order, dryRun bool) (any, error) {
	short, cancel := context.WithTimeout(r.Context(), firstAnswer)
	s, at, err := c.rolloutState(short)
	cancel()
	if err != nil {
		return nil, err
	}
	if err := r.match(strconv.FormatUint(s.Rev, 10)); err != nil {
		return nil, err
	}
	next, err := s.Order(o, c.opt.Now().UTC())
	if err != nil {
		return nil, conflict("%v", err)
	}
	if dryRun || next.Rev == s.Rev {
		return c.describeRollout(next), nil
	}
	ops, err := c.rolloutOps(next)
	if err != nil {
		return nil, err
	}
	audit := AuditEntry{Who: r.who, What: "rollout " + string(o.Kind), On: fmt.Sprintf("version %d", s.Version.Number), Why: o.Reason, Before: string(s.Phase), After: string(next.Phase)}
	rev, err := c.opt.Global.Commit(r.Context(), []store.Cond{store.Unchanged(at)}, append(ops, c.audit(audit)))
	if err != nil {
		return nil, err
	}
	c.intent.see(r.Context(), rev)
	c.log.Info("rollout order", "order", string(o.Kind), "by", r.who, "version", s.Version.Number, "reason", o.Reason)
	return c.describeRollout(next), nil
}
