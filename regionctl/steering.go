package regionctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/trust"
)

const (
	keepPlans = 20
	// stale is the age at which a node's window no longer counts as its load.
	stale = 10 * time.Second
	// idlePersist bounds how much of the estimated demand a new leader misses when the plan doesn't change.
	idlePersist = 15 * time.Second
)

// steer runs the steering: on its interval, and at once when a verdict, an order, its expiry or a name changes.
func (t *term) steer(ctx context.Context) error {
	interval := min(5*time.Second, max(t.opt.TTL/4, 500*time.Millisecond))
	var stepped, saved time.Time
	var last uint64
	return t.every(ctx, 200*time.Millisecond, "steering", t.unlessBehind(func(ctx context.Context) error {
		now := t.opt.Now()
		in, err := t.steerInputs(ctx, t.Epoch, now)
		if err != nil {
			return err
		}
		key := trigger(in, now)
		if key == last && now.Sub(stepped) < interval {
			return nil
		}
		did, err := t.stepPlan(ctx, in, now, now.Sub(saved) >= idlePersist)
		if err != nil {
			return err
		}
		last, stepped = key, now
		if did {
			saved = now
		}
		return nil
	}))
}

// trigger changes when a step should not wait for its turn.
func trigger(in steer.Inputs, now time.Time) uint64 {
	h := fnv.New64a()
	for _, c := range in.Topology.Cells() {
		fmt.Fprintf(h, "%s %d;", c.ID, in.Health[c.ID])
	}
	for _, e := range in.Evacuations {
		fmt.Fprintf(h, "%s %d %t;", e.Cell, e.Started.UnixNano(), e.Standing(now))
	}
	fmt.Fprint(h, in.Names)
	return h.Sum64()
}

// stepPlan takes one step from the stored state and stores what came of it together with the signed plan.
// A step that changes nothing worth keeping is stored only when save is set.
func (t *term) stepPlan(ctx context.Context, in steer.Inputs, now time.Time, save bool) (stored bool, err error) {
	state, at, err := t.steerState(ctx)
	if err != nil {
		return false, err
	}
	next := steer.Step(state, in, now)
	changed := next.Plan.Epoch != state.Plan.Epoch || next.Plan.Number != state.Plan.Number
	if p := t.stepping.plan; p != nil && !changed {
		changed = t.endsSoon(trust.KindPlan, p.envelope)
	}
	if next.Refused != "" && next.Refused != state.Refused {
		t.log.Warn("steering keeps the old plan", "why", next.Refused)
	}
	if !changed && !save && !worthStoring(t.stepping.stored, next) {
		t.stepping.state = next
		return false, nil
	}
	if err := t.storeStep(ctx, at, next, changed); err != nil {
		return false, err
	}
	if changed {
		t.log.Info("plan published", "epoch", next.Plan.Epoch, "number", next.Plan.Number, "unplaced", len(next.Plan.Unplaced), "all_down", next.Plan.AllDown)
	}
	return true, nil
}

// storeStep stores the state, and the signed plan when it changed: first their blobs, then in one commit all that refers to
// them. Blobs of a step that fails stay behind for the sweep.
func (t *term) storeStep(ctx context.Context, at store.Revision, next steer.State, changed bool) error {
	ctx, cancel := context.WithTimeout(ctx, storeStepPatience)
	defer cancel()
	mark, was := t.intent.mark(store.KeySweep), t.stepping.rec
	rec, ops := steeringRecord{Form: referenceForm, Plan: was.Plan}, []store.Op(nil)
	plan := t.stepping.plan
	if changed {
		var err error
		if plan, err = t.depositPlan(ctx, &next.Plan, mark); err != nil {
			return err
		}
		rec.Plan, ops = &plan.planRecord, append(ops, store.Put(store.KeyPlan, encode(plan.planRecord)), store.Put(store.KeyPastPlan(plan.Epoch, plan.Number), encode(plan.planRecord)))
	}
	bare := next
	if rec.Plan != nil {
		bare.Plan = steer.Plan{}
	}
	value := encode(bare)
	rec.Bytes = len(value)
	var err error
	if rec.Blob, err = t.globalBlobs.Write(ctx, pack(value), t.Fence(), mark.Cond); err != nil {
		return err
	}
	rev, err := t.commit(ctx, []store.Cond{{Key: store.KeySteering, Modified: at}, mark.Cond}, append(ops, store.Put(store.KeySteering, encode(rec))))
	if err != nil {
		return err
	}
	t.stepping = stepping{at: rev, rec: rec, plan: plan, stored: next, state: next}
	if changed {
		t.plans.put(plan)
	}
	if was.Blob != "" && was.Blob != rec.Blob {
		t.forget(ctx, t.globalBlobs, was.Blob, t.Fence())
	}
	return nil
}

// storeStepPatience bounds the storing of one step, beside what each commit is given.
const storeStepPatience = 20 * time.Second

// depositPlan signs the plan and stores it as a blob.
func (t *term) depositPlan(ctx context.Context, p *steer.Plan, mark sweepMark) (*openPlan, error) {
	envelope, err := t.opt.Signer.Sign(trust.KindPlan, encode(p))
	if err != nil {
		return nil, err
	}
	packed := pack(envelope)
	blob, err := t.globalBlobs.Write(ctx, packed, t.Fence(), mark.Cond)
	if err != nil {
		return nil, err
	}
	rec := planRecord{Form: referenceForm, Epoch: p.Epoch, Number: p.Number, Head: p.Head, Blob: blob, Bytes: len(envelope)}
	return &openPlan{planRecord: rec, packed: packed, envelope: envelope, plan: p}, nil
}

// stepping is the state in memory between two stored ones, valid while the stored one is unchanged.
type stepping struct {
	at            store.Revision
	rec           steeringRecord // of the stored one
	plan          *openPlan      // the published one, as the stored one refers to it
	stored, state steer.State
}

// steerState is the state to step from: the stored one, or what followed from it in memory without being worth storing.
// The mirror may be behind the store; then the next commit conflicts.
func (t *term) steerState(ctx context.Context) (steer.State, store.Revision, error) {
	e, ok := t.intent.get(store.KeySteering)
	if !ok || e.Modified <= t.stepping.at {
		return t.stepping.state, t.stepping.at, nil
	}
	s, rec, plan, err := t.openSteering(ctx, e.Value)
	if err != nil {
		return s, 0, err
	}
	t.stepping = stepping{at: e.Modified, rec: rec, plan: plan, stored: s, state: s}
	return s, e.Modified, nil
}

// worthStoring says whether a step without a new plan came to something that a new leader, or a dry run elsewhere, should
// know at once: a cell's standing, or a load that moved by a twentieth.
func worthStoring(stored, next steer.State) bool {
	if stored.Starting != next.Starting || len(stored.Cells) != len(next.Cells) {
		return true
	}
	const slack = steer.Slots * 1000 // one request per second, in the unit of Granted
	for i := range next.Cells {
		a, b := stored.Cells[i], next.Cells[i]
		if 20*max(a.Granted-b.Granted, b.Granted-a.Granted) > a.Granted+20*slack {
			return true
		}
		a.Granted, b.Granted = 0, 0
		if !reflect.DeepEqual(a, b) {
			return true
		}
	}
	return false
}

// steerInputs gathers intent and evidence for a step, or for a dry run of one.
func (c *Controller) steerInputs(ctx context.Context, epoch uint64, now time.Time) (steer.Inputs, error) {
	names, err := c.names.read(ctx, c)
	if err != nil {
		return steer.Inputs{}, err
	}
	shown, _ := c.shown()
	return steer.Inputs{
		Topology:    c.opt.Topology,
		Names:       names,
		TTL:         c.opt.TTL,
		Epoch:       epoch,
		Head:        shown.Head,
		Health:      c.verdicts.get(),
		Load:        c.load(now),
		Evacuations: c.evacuations(),
		Ramp:        c.opt.Ramp,
	}, nil
}

// load is what each cell's nodes measured in their newest windows together.
func (c *Controller) load(now time.Time) map[cells.CellID]steer.CellLoad {
	out := map[cells.CellID]steer.CellLoad{}
	for _, n := range c.evidence.Nodes() {
		age := now.Sub(n.Arrived)
		if age > stale || n.Report.Window <= 0 {
			continue
		}
		id := n.Report.ID.Cell()
		l, seen := out[id]
		rate := float64(n.Report.Counts.Requests) * 1000 / n.Report.Window.Seconds()
		l.RPS += cells.MilliRPS(min(rate, 1e12))
		if !seen || age < l.Age {
			l.Age = age
		}
		out[id] = l
	}
	return out
}

// evacuations is the order that counts for each cell: the strictest of those of the global store and of the regions.
func (c *Controller) evacuations() []cells.Evacuation {
	known := c.globalOrders()
	if !c.intent.ready() {
		known, _, _ = read[[]cells.Evacuation](c.copied, store.KeyCopyEvacuees)
	}
	return cells.Strictest(cells.Unite(known, c.ledger.evacuations()), c.opt.Now())
}

// globalOrders lists the mirrored orders of the global store.
func (c *Controller) globalOrders() []cells.Evacuation {
	var out []cells.Evacuation
	for _, e := range c.intent.list(store.PrefixEvacuations) {
		var ev cells.Evacuation
		if json.Unmarshal(e.Value, &ev) == nil {
			out = append(out, ev)
		}
	}
	return out
}

// names remembers which names the live version steers.
type names struct {
	mu     sync.Mutex
	number uint64
	known  map[string]string
}

// read gives the steered names with the class whose cells may carry each: the configured ones and the hosts of the
// published tenants within the zone.
func (n *names) read(ctx context.Context, c *Controller) (map[string]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	number := c.liveNumber()
	if n.known != nil && n.number == number {
		return n.known, nil
	}
	out := map[string]string{}
	for _, name := range c.opt.SteeredNames {
		out[canonicalName(name)] = string(cells.Public)
	}
	tenants, err := c.tenants(ctx, number)
	if err != nil {
		if n.known != nil && !errors.Is(err, context.Canceled) {
			return n.known, nil // the names of the version before are better than none
		}
		return nil, err
	}
	for _, t := range tenants {
		class := t.Class
		if class == "" {
			class = cells.Public
		}
		for _, h := range t.Hosts {
			if name := canonicalName(h); c.within(name) {
				out[name] = string(class)
			}
		}
	}
	n.number, n.known = number, out
	return out, nil
}

// liveNumber is the version that every ring took last: a name is answered once its routes are everywhere, and until they
// are gone everywhere. Before the first one is live, it is the newest.
func (c *Controller) liveNumber() uint64 {
	if n := c.mirroredRollout().Stable.Number; n > 0 {
		return n
	}
	return c.headNumber()
}

func canonicalName(s string) string { return strings.ToLower(strings.TrimSuffix(s, ".")) }

// within says whether the name is an ordinary name of the zone, not a wildcard.
func (c *Controller) within(name string) bool {
	zone := canonicalName(c.opt.Zone)
	return zone != "" && !strings.Contains(name, "*") && (name == zone || strings.HasSuffix(name, "."+zone))
}

func (c *Controller) tenants(ctx context.Context, number uint64) ([]snapshot.Tenant, error) {
	if number == 0 {
		return nil, nil
	}
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	rec, _, ok := read[versionRecord](c.intent, store.KeyVersion(number))
	if !ok {
		return nil, fmt.Errorf("regionctl: version %d is not known yet", number)
	}
	snap, err := c.open(short, &rec)
	if err != nil {
		return nil, err
	}
	cfg, err := snapshot.OpenShared(snap)
	if err != nil {
		return nil, err
	}
	return cfg.Tenants, nil
}
