package regionctl

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/store"
)

// The times of an evacuation that names none, and their bounds.
const (
	defaultOver    = 5 * time.Minute
	defaultExpires = 2 * time.Hour
	maxOver        = 24 * time.Hour
	maxExpires     = 7 * 24 * time.Hour
	shortest       = time.Second // what is shorter has ended before anybody hears of it
	maxReason      = 1000        // bytes
)

// orders is every evacuation in the store and of the regions at one moment, with what a commit must compare so that nobody
// else's order comes in between: two orders that are each safe may not be safe together.
type orders struct {
	all   map[cells.CellID]cells.Evacuation
	at    map[cells.CellID]cells.Evacuation // as the global store has them
	guard store.Entry
	// whole is false when nodes may have orders that are not among these: no store was read since the controller started.
	whole bool
	// newest is the start of each cell's newest order, which may be ahead of the clock here.
	newest map[cells.CellID]time.Time
}

func (c *Controller) orders(ctx context.Context) (*orders, error) {
	guard, err := c.opt.Global.Get(ctx, store.KeyGuard)
	if err != nil && !isAbsent(err) {
		return nil, fmt.Errorf("regionctl: read the evacuations: %w", err)
	}
	entries, _, err := c.opt.Global.List(ctx, store.PrefixEvacuations)
	if err != nil {
		return nil, fmt.Errorf("regionctl: read the evacuations: %w", err)
	}
	o := &orders{all: map[cells.CellID]cells.Evacuation{}, at: map[cells.CellID]cells.Evacuation{}, newest: map[cells.CellID]time.Time{}, guard: store.Entry{Key: store.KeyGuard, Modified: guard.Modified}, whole: true}
	var stored []cells.Evacuation
	for _, e := range entries {
		var ev cells.Evacuation
		if err := json.Unmarshal(e.Value, &ev); err != nil {
			return nil, fmt.Errorf("regionctl: %s: %w", e.Key, err)
		}
		o.at[ev.Cell] = ev
		stored = append(stored, ev)
	}
	o.see(cells.Unite(stored, c.ledger.evacuations()), c.opt.Now())
	return o, nil
}

// see takes the strictest of what is known of each cell as its order.
func (o *orders) see(known []cells.Evacuation, now time.Time) {
	for _, ev := range cells.Strictest(known, now) {
		o.all[ev.Cell] = ev
	}
	for _, ev := range known {
		if ev.Started.After(o.newest[ev.Cell]) {
			o.newest[ev.Cell] = ev.Started
		}
	}
}

func (o *orders) tag() string { return strconv.FormatInt(int64(o.guard.Modified), 10) }

// list gives the orders by cell id.
func (o *orders) list() []cells.Evacuation {
	out := make([]cells.Evacuation, 0, len(o.all))
	for _, ev := range o.all {
		out = append(out, ev)
	}
	slices.SortFunc(out, func(a, b cells.Evacuation) int { return strings.Compare(string(a.Cell), string(b.Cell)) })
	return out
}

// store commits changed orders if no order changed since they were read.
func (c *Controller) storeOrders(ctx context.Context, o *orders, changed []cells.Evacuation, conds []store.Cond, audit AuditEntry) error {
	ops := []store.Op{store.Put(store.KeyGuard, []byte(`{"form":1}`)), c.audit(audit)}
	for _, ev := range changed {
		ops = append(ops, store.Put(store.KeyEvacuation(ev.Cell), encode(ev)))
	}
	rev, err := c.opt.Global.Commit(ctx, append(conds, store.Unchanged(o.guard)), ops)
	if err == nil {
		c.intent.see(ctx, rev)
	}
	return err
}

// resolve gives the cells that a word means: a cell or all cells of a region.
func (c *Controller) resolve(what string) ([]cells.CellID, error) {
	var out []cells.CellID
	for _, r := range c.opt.Topology.Regions {
		for _, cell := range r.Cells {
			if string(r.ID) == what || string(cell.ID) == what {
				out = append(out, cell.ID)
			}
		}
	}
	if len(out) == 0 {
		return nil, notFound("no cell or region %q in this world", what)
	}
	return out, nil
}

func (c *Controller) getEvacuations(r *call) (any, error) {
	o, err := c.orders(r.Context())
	if err != nil {
		return nil, err
	}
	return Evacuated{Orders: o.list()}, r.match(o.tag())
}

func (c *Controller) postEvacuation(r *call) (any, error) {
	req, err := body[EvacuateRequest](r)
	if err != nil {
		return nil, err
	}
	order, err := c.parseOrder(req, r.who)
	if err != nil {
		return nil, err
	}
	ids, err := c.resolve(req.What)
	if err != nil {
		return nil, err
	}
	answer, err := c.globally(r, func(r *call) (any, error) { return c.evacuate(r, ids, order, req) })
	if !unanswered(err) {
		return answer, err
	}
	if !req.BreakGlass {
		return nil, lifelineHint(err, "--break-glass orders it through the regions")
	}
	return c.evacuateRegionally(r, ids, order, req)
}

func (c *Controller) parseOrder(req EvacuateRequest, who string) (cells.Evacuation, error) {
	now := c.opt.Now().UTC()
	over, err1 := duration(req.Over, defaultOver)
	expires, err2 := duration(req.Expires, defaultExpires)
	ev := cells.Evacuation{Form: cells.EvacuationForm, Reason: strings.TrimSpace(req.Reason), By: who, Started: now, Over: over, Expires: now.Add(expires), Force: req.Force, NoForward: req.NoForward}
	switch {
	case ev.Reason == "" || len(ev.Reason) > maxReason:
		return ev, badRequest("a reason of 1…%d bytes is required", maxReason)
	case err1 != nil || over < 0 || over > maxOver:
		return ev, badRequest("over must be a duration of 0…%s, not %q", maxOver, req.Over)
	case err2 != nil || expires < shortest || expires > maxExpires:
		return ev, badRequest("expires must be a duration of %s…%s, not %q", shortest, maxExpires, req.Expires)
	case expires <= over:
		return ev, badRequest("the evacuation would expire (after %s) before it is done (over %s)", expires, over)
	}
	return ev, nil
}

func duration(s string, absent time.Duration) (time.Duration, error) {
	if s == "" {
		return absent, nil
	}
	return time.ParseDuration(s)
}

// evacuate judges and stores the order for every cell, all or none.
func (c *Controller) evacuate(r *call, ids []cells.CellID, order cells.Evacuation, req EvacuateRequest) (any, error) {
	ctx := r.Context()
	o, err := c.orders(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.match(o.tag()); err != nil {
		return nil, err
	}
	answer := Evacuated{DryRun: req.DryRun, Path: PathGlobal, Warnings: c.rolloutWarnings(ids)}
	if answer.Outcomes, err = c.judgeOrders(ctx, o, ids, order, req.BreakGlass); err != nil {
		return nil, err
	}
	what := "evacuate"
	if req.BreakGlass {
		what = "evacuate (break glass)"
		answer.Warnings = append(answer.Warnings, "break glass: whether the rest can carry it was not asked")
	}
	for _, id := range ids {
		ev := order
		ev.Cell = id
		if old := o.all[id]; old.Standing(order.Started) {
			if ev = ev.Renewing(old); req.Over == "" { // nothing is said of the move
				ev.Over = old.Over
			}
			said := fmt.Sprintf("%s is evacuated already, since %s; reason and expiry are replaced", id, old.Started.Format(time.RFC3339))
			if ev.Over < old.Over {
				said += ", and the move is faster"
			}
			answer.Warnings = append(answer.Warnings, said)
		}
		answer.Orders = append(answer.Orders, ev)
	}
	if req.DryRun {
		return answer, nil
	}
	err = c.storeOrders(ctx, o, answer.Orders, nil, AuditEntry{Who: r.who, What: what, On: join(ids), Why: order.Reason, After: fmt.Sprintf("over %s, until %s", order.Over, order.Expires.Format(time.RFC3339))})
	if err != nil {
		return nil, err
	}
	c.log.Info("evacuation ordered", "cells", join(ids), "by", r.who, "reason", order.Reason, "until", order.Expires)
	return answer, nil
}

// judgeOrders applies the safety rules to the orders one after the other, each beside those before it. Breaking the glass
// skips the question of headroom alone.
func (c *Controller) judgeOrders(ctx context.Context, o *orders, ids []cells.CellID, order cells.Evacuation, breakGlass bool) ([]steer.Outcome, error) {
	if err := c.sparesEnough(o, ids, order); err != nil || breakGlass {
		return nil, err
	}
	state, err := c.readSteering(ctx)
	if err != nil {
		return nil, err
	}
	if len(state.Plan.Cells) == 0 {
		if order.Force {
			return nil, nil
		}
		return nil, refused("no_plan", "--force", "there is no steering plan yet to judge the order by")
	}
	in, err := c.steerInputs(ctx, state.Plan.Epoch, order.Started)
	if err != nil {
		return nil, err
	}
	in.Evacuations = nil
	for _, ev := range o.list() {
		if !slices.Contains(ids, ev.Cell) {
			in.Evacuations = append(in.Evacuations, ev)
		}
	}
	standing := in.Evacuations
	var outcomes []steer.Outcome
	for i, id := range ids {
		in.Evacuations = append(slices.Clone(standing), besides(order, ids, i)...)
		order.Cell = id
		out := steer.DryRun(state, in, order, order.Started)
		outcomes = append(outcomes, out)
		if out.Refused != "" && !order.Force {
			f := refused("no_headroom", "--force", "evacuating %s is refused: %s", id, out.Refused)
			f.Outcomes = outcomes
			return nil, f
		}
	}
	return outcomes, nil
}

// besides is the same order on the other cells when it is the turn of the i-th: done on those before it, and
// just begun on those after it, which keep their clients for now but receive none.
func besides(order cells.Evacuation, ids []cells.CellID, i int) []cells.Evacuation {
	var out []cells.Evacuation
	for j, id := range ids {
		if j == i {
			continue
		}
		order.Cell, order.Over = id, 0
		if j > i {
			order.Over = order.Expires.Sub(order.Started)
		}
		out = append(out, order)
	}
	return out
}

func (c *Controller) postRestoration(r *call) (any, error) {
	req, err := body[RestoreRequest](r)
	if err != nil {
		return nil, err
	}
	if err := words("reason", req.Reason); err != nil {
		return nil, err
	}
	ids, err := c.resolve(req.What)
	if err != nil {
		return nil, err
	}
	answer, err := c.globally(r, func(r *call) (any, error) { return c.restore(r, req, ids) })
	if !unanswered(err) {
		return answer, err
	}
	return c.restoreRegionally(r, req, ids)
}

// restore ends every standing order among the cells; they ramp back.
func (c *Controller) restore(r *call, req RestoreRequest, ids []cells.CellID) (any, error) {
	o, err := c.orders(r.Context())
	if err != nil {
		return nil, err
	}
	if err := r.match(o.tag()); err != nil {
		return nil, err
	}
	answer, said, err := c.restoration(r, o, req, ids)
	if err != nil || said || req.DryRun {
		return answer, err
	}
	answer.Path = PathGlobal
	audit := AuditEntry{Who: r.who, What: "restore", On: req.What, Why: req.Reason}
	if err := c.storeOrders(r.Context(), o, answer.Orders, nil, audit); err != nil {
		return nil, err
	}
	c.ledger.add(answer.Orders, nil, c.opt.Now())
	c.log.Info("restoration ordered", "what", req.What, "by", r.who)
	return answer, nil
}

// restoration is what a restoration would change; said is that all of it was ordered before.
func (c *Controller) restoration(r *call, o *orders, req RestoreRequest, ids []cells.CellID) (answer Evacuated, said bool, err error) {
	now := c.opt.Now().UTC()
	answer.DryRun = req.DryRun
	var before []cells.Evacuation // said twice, or answered by a controller that was lost before it could say so
	for _, id := range ids {
		ev := o.all[id]
		switch {
		case ev.Standing(now):
			ev.Restored = now
			if o.newest[id].After(now) { // ordered where clocks are ahead: a restoration ends what started before it
				ev.Restored = o.newest[id]
			}
			answer.Orders = append(answer.Orders, ev)
		case ev.Cell != "" && ev.State(now, c.opt.Ramp) == cells.Restoring:
			before = append(before, ev)
		case !o.whole:
			answer.Orders = append(answer.Orders, endOf(id, r.who, now))
			answer.Warnings = append(answer.Warnings, fmt.Sprintf("this controller has not read its region's store since it started: whatever nodes and routers have of an evacuation of %s is ended", id))
		}
	}
	if len(answer.Orders) == 0 && len(before) > 0 {
		answer.Orders, answer.Warnings = before, []string{req.What + " is being restored already"}
		return answer, true, nil
	}
	if len(answer.Orders) == 0 {
		return answer, false, conflict("%s is not evacuated", req.What)
	}
	return answer, false, nil
}

// endOf is an order that ended as it began: it sends nobody away, and ends every order of the cell that started before it.
func endOf(id cells.CellID, by string, now time.Time) cells.Evacuation {
	return cells.Evacuation{Form: cells.EvacuationForm, Cell: id, Reason: "restored", By: by, Started: now, Over: maxOver, Expires: now.Add(maxExpires), Restored: now}
}

// tendEvacuations notes expiries, as an alarm, and forgets orders whose cells are fully back.
func (t *term) tendEvacuations(ctx context.Context) error {
	now := t.opt.Now().UTC()
	stored := map[cells.CellID]bool{}
	for _, ev := range t.globalOrders() {
		stored[ev.Cell] = true
	}
	for _, ev := range t.evacuations() {
		expired := !ev.Standing(now) && ev.Restored.IsZero()
		over := stored[ev.Cell] && ev.State(now, t.opt.Ramp) == cells.Active // the regions remember restorations for longer
		if !expired && !over {
			continue
		}
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := t.tend(short, ev.Cell, now)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// tend looks at one order again, as stored.
func (t *term) tend(ctx context.Context, id cells.CellID, now time.Time) error {
	o, err := t.orders(ctx)
	if err != nil {
		return err
	}
	ev, ok := o.all[id]
	conds := []store.Cond{t.Fence(), store.Unchanged(o.guard)}
	switch {
	case !ok || ev.Standing(now):
		return nil
	case ev.Restored.IsZero():
		ev.Restored = ev.Expires
		audit := AuditEntry{Who: "leader", What: "evacuation expired", On: string(id), Why: ev.Reason, Before: "ordered by " + ev.By}
		if err := t.storeOrders(ctx, o, []cells.Evacuation{ev}, []store.Cond{t.Fence()}, audit); err != nil {
			return err
		}
		t.log.Warn("ALARM: an evacuation expired and its cell takes clients again", "cell", string(id), "reason", ev.Reason, "by", ev.By)
		return nil
	case ev.State(now, t.opt.Ramp) == cells.Active:
		if _, stored := o.at[id]; !stored {
			return nil // the mirror was behind
		}
		_, err := t.opt.Global.Commit(ctx, conds, []store.Op{store.Delete(store.KeyEvacuation(id)), store.Put(store.KeyGuard, []byte(`{"form":1}`))})
		if err == nil {
			t.log.Info("cell is fully back", "cell", string(id))
		}
		return err
	}
	return nil
}

func join(ids []cells.CellID) string {
	words := make([]string, len(ids))
	for i, id := range ids {
		words[i] = string(id)
	}
	return strings.Join(words, ", ")
}
