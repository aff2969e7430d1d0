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

// stepPlan takes one step from the stored state and stores what came of it together with the signed plan, in one commit.
// A step that changes nothing worth keeping is stored only when save is set.
func (t *term) stepPlan(ctx context.Context, in steer.Inputs, now time.Time, save bool) (stored bool, err error) {
	state, at, err := t.steerState()
	if err != nil {
		return false, err
	}
	next := steer.Step(state, in, now)
	changed := next.Plan.Epoch != state.Plan.Epoch || next.Plan.Number != state.Plan.Number
	if e, ok := t.intent.get(store.KeyPlan); ok && !changed {
		changed = t.endsSoon(trust.KindPlan, e.Value)
	}
	if next.Refused != "" && next.Refused != state.Refused {
		t.log.Warn("steering keeps the old plan", "why", next.Refused)
	}
	if !changed && !save && !worthStoring(t.stepping.stored, next) {
		t.stepping.state = next
		return false, nil
	}
	ops := []store.Op{store.Put(store.KeySteering, encode(next))}
	if changed {
		envelope, err := t.opt.Signer.Sign(trust.KindPlan, encode(next.Plan))
		if err != nil {
			return false, err
		}
		ops = append(ops, store.Put(store.KeyPlan, envelope), store.Put(store.KeyPastPlan(next.Plan.Epoch, next.Plan.Number), envelope))
	}
	rev, err := t.commit(ctx, []store.Cond{{Key: store.KeySteering, Modified: at.Modified}}, ops)
	if err != nil {
		return false, err
	}
	t.stepping = stepping{at: rev, stored: next, state: next}
	if changed {
		t.log.Info("plan published", "epoch", next.Plan.Epoch, "number", next.Plan.Number, "unplaced", len(next.Plan.Unplaced), "all_down", next.Plan.AllDown)
	}
	return true, nil
}

// stepping is the state in memory between two stored ones, valid while the stored one is unchanged.
type stepping struct {
	at            store.Revision
	stored, state steer.State
}

// steerState is the state to step from: the stored one, or what followed from it in memory without being worth storing.
// The mirror may be behind the store; then the next commit conflicts.
func (t *term) steerState() (steer.State, store.Entry, error) {
	e, ok := t.intent.get(store.KeySteering)
	if !ok || e.Modified <= t.stepping.at {
		return t.stepping.state, store.Entry{Key: store.KeySteering, Modified: t.stepping.at}, nil
	}
	var s steer.State
	if err := json.Unmarshal(e.Value, &s); err != nil {
		return s, e, fmt.Errorf("regionctl: the stored steering state is not readable: %w", err)
	}
	t.stepping = stepping{at: e.Modified, stored: s, state: s}
	return s, e, nil
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

// plan is the plan that this controller knows to be published.
func (c *Controller) plan() (steer.Plan, bool) {
	var p steer.Plan
	for _, from := range []struct {
		m   *mirror
		key string
	}{{c.intent, store.KeyPlan}, {c.copied, store.KeyCopyPlan}} {
		e, ok := from.m.get(from.key)
		if !ok {
			continue
		}
		raw, err := trust.Payload(trust.KindPlan, e.Value)
		if err == nil && json.Unmarshal(raw, &p) == nil {
			return p, true
		}
	}
	return p, false
}
