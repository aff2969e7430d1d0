package regionctl

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/trust"
)

// maxRegional bounds the orders that are kept outside of the global store.
const maxRegional = 1024

// globally tries an order against the global store, again when somebody else's came first, and no longer than orders wait
// for a store that is known not to answer.
func (c *Controller) globally(r *call, do func(*call) (any, error)) (any, error) {
	patience := 5 * time.Second
	if c.globalSeen.lost.Load() {
		patience = time.Second
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	short := *r
	short.Request = r.WithContext(ctx)
	for range maxContest {
		answer, err := do(&short)
		if !errors.Is(err, store.ErrConflict) {
			return answer, err
		}
	}
	return nil, store.ErrConflict
}

// unanswered says whether the error is that of a store which doesn't answer, not one that somebody decided on.
func unanswered(err error) bool {
	var f *Fault
	return err != nil && !errors.As(err, &f) && !errors.Is(err, store.ErrConflict)
}

// lifelineHint is the fault of a global store that doesn't answer, with what can be done about it.
func lifelineHint(err error, hint string) error {
	f := fault(503, "store_unavailable", "The global store does not answer", "%v; %s", err, hint)
	return f
}

// evacuateRegionally orders through every region that can be reached, one after the other in the order of the topology:
// each takes the order by compare-and-set in its own store under the safety rules, and the first that refuses ends it.
// So two operators who order at once meet in the first region that both reach, wherever each of them asked.
func (c *Controller) evacuateRegionally(r *call, ids []cells.CellID, order cells.Evacuation, req EvacuateRequest) (any, error) {
	answer := Evacuated{DryRun: req.DryRun, Path: PathRegional, Warnings: []string{
		"the global store does not answer: the order goes through the regions; routers and proxies act on it without a leader",
		"break glass: whether the rest can carry it was not asked"}}
	for _, id := range ids {
		ev := order
		ev.Cell = id
		answer.Orders = append(answer.Orders, ev)
	}
	if req.DryRun {
		return answer, c.sparesEnough(c.knownOrders(nil), ids, order)
	}
	audit := AuditEntry{Who: r.who, What: "evacuate (break glass, regional)", On: join(ids), Why: order.Reason, After: fmt.Sprintf("over %s, until %s", order.Over, order.Expires.Format(time.RFC3339))}
	reached, err := c.propose(r.Context(), answer.Orders, audit)
	if err == nil {
		err = c.heldBySomebody(reached, trust.RoleProxy, trust.RoleRouter)
	}
	if err != nil {
		return nil, err
	}
	answer.Reached = reached
	c.log.Warn("evacuation ordered through the regions", "cells", join(ids), "by", r.who, "reason", order.Reason, "until", order.Expires)
	return answer, nil
}

// heldBySomebody keeps this controller from saying that an order holds which is in its own memory alone: no store took it, no
// other region, and no process of those that hear of it is attached. A controller that stops has let all of them go.
func (c *Controller) heldBySomebody(reached []RegionReach, hearers ...trust.Role) error {
	for _, r := range reached {
		if r.Taken && (r.Stored || r.Region != c.opt.Region) {
			return nil
		}
	}
	for _, id := range c.nodes.Attached() {
		if slices.Contains(hearers, id.Role) {
			return nil
		}
	}
	return fault(503, "not_kept", "Nobody but this controller's memory has the order",
		"the region's store does not answer, no other region was reached and no node is attached: give the order again")
}

// propose has every reachable region take the orders. When one refuses, those that took them are told that it is withdrawn.
func (c *Controller) propose(ctx context.Context, orders []cells.Evacuation, audit AuditEntry) ([]RegionReach, error) {
	var reached []RegionReach
	taken := false
	for _, region := range c.opt.Topology.Regions {
		reach := RegionReach{Region: region.ID}
		var err error
		if region.ID == c.opt.Region {
			reach.Stored, err = c.takeOrders(ctx, orders, true, audit)
		} else if peer := c.couriers[region.ID]; peer != nil {
			err = c.take(ctx, peer, &nodeapi.RegionalOrders{Propose: true}, orders, nil, &reach.Stored)
		} else {
			err = errors.New("this controller knows no address of the region's")
		}
		if f := (*Fault)(nil); errors.As(err, &f) {
			if taken {
				c.withdraw(ctx, orders)
			}
			return nil, f
		}
		reach.Taken = err == nil
		taken = taken || reach.Taken
		if err != nil {
			reach.Why = err.Error()
		}
		reached = append(reached, reach)
	}
	return reached, nil
}

// withdraw takes back what was taken in part: another region knew of orders that this one did not.
func (c *Controller) withdraw(ctx context.Context, orders []cells.Evacuation) {
	for i := range orders {
		orders[i].Withdrawn = true
	}
	if _, err := c.takeOrders(ctx, orders, false, AuditEntry{}); err != nil {
		c.log.Warn("a refused evacuation is withdrawn in memory only", "err", err)
		c.ledger.add(orders, nil, c.opt.Now())
	}
	c.tellAll(ctx, orders, nil)
}

// takeOrders takes orders into this region: by compare-and-set in its store, or in memory when the store doesn't answer.
// With judge, the safety rules must hold over everything known here.
func (c *Controller) takeOrders(ctx context.Context, orders []cells.Evacuation, judge bool, audit AuditEntry) (stored bool, err error) {
	c.ordering.Lock()
	defer c.ordering.Unlock()
	now := c.opt.Now().UTC()
	for range maxContest {
		short, cancel := context.WithTimeout(ctx, storePatience)
		stored, err = c.commitOrders(short, orders, judge, audit, now)
		cancel()
		if !errors.Is(err, store.ErrConflict) {
			break
		}
	}
	if unanswered(err) {
		c.log.Warn("an order is kept in memory and on the nodes' disks alone: the region's store does not take it", "err", err)
		if judge {
			err = c.judgeRegional(nil, orders)
		} else {
			err = nil
		}
	}
	if err == nil {
		c.ledger.add(orders, nil, now)
	}
	return stored, err
}

func (c *Controller) commitOrders(ctx context.Context, orders []cells.Evacuation, judge bool, audit AuditEntry, now time.Time) (bool, error) {
	e, err := c.opt.Regional.Get(ctx, store.KeyCopyOrders)
	if err != nil && !isAbsent(err) {
		return false, err
	}
	had, err := decodeOrders(e.Value)
	if err != nil {
		had = nil // unreadable: replaced, the ledger has what matters
	}
	if judge {
		if err := c.judgeRegional(had, orders); err != nil {
			return false, err
		}
	}
	next := needed(cells.Unite(had, c.ledger.evacuations(), orders), now)
	ops := []store.Op{store.Put(store.KeyCopyOrders, encodeOrders(next))}
	if audit.What != "" {
		ops = append(ops, c.audit(audit))
	}
	_, err = c.opt.Regional.Commit(ctx, []store.Cond{{Key: store.KeyCopyOrders, Modified: e.Modified}}, ops)
	return err == nil, err
}

// judgeRegional applies the safety rules to orders that are not known yet, beside everything known here. What stands
// already is taken as often as it is told.
func (c *Controller) judgeRegional(stored, orders []cells.Evacuation) error {
	known, news := c.knownOrders(stored), []cells.CellID(nil)
	var strictest cells.Evacuation
	for _, ev := range orders {
		if !known.all[ev.Cell].Standing(ev.Started) {
			news, strictest = append(news, ev.Cell), ev
		}
	}
	if len(news) == 0 {
		return nil
	}
	if len(known.all)+len(news) > maxRegional {
		return refused("too_many_orders", "", "%d orders are kept without the global store, at most %d", len(known.all), maxRegional)
	}
	return c.sparesEnough(known, news, strictest)
}

// known is everything that this controller knows of evacuations without asking the global store.
func (c *Controller) knownOrders(stored []cells.Evacuation) *orders {
	o := &orders{all: map[cells.CellID]cells.Evacuation{}, newest: map[cells.CellID]time.Time{}, whole: c.copied.ready()}
	o.see(cells.Unite(c.evacuations(), stored, c.ledger.evacuations()), c.opt.Now())
	return o
}

// restoreRegionally ends orders through every region that can be reached. What was said before is told again, since the answer
// may have been that nobody keeps it.
func (c *Controller) restoreRegionally(r *call, req RestoreRequest, ids []cells.CellID) (any, error) {
	answer, _, err := c.restoration(r, c.knownOrders(nil), req, ids)
	answer.Path = PathRegional
	answer.Warnings = append(answer.Warnings, "the global store does not answer: the restoration goes through the regions; it ends the order there too once it is back")
	if err != nil || req.DryRun {
		return answer, err
	}
	reach := RegionReach{Region: c.opt.Region, Taken: true}
	reach.Stored, err = c.takeOrders(r.Context(), answer.Orders, false, AuditEntry{Who: r.who, What: "restore (regional)", On: req.What, Why: req.Reason})
	if err != nil {
		return nil, err
	}
	answer.Reached = append([]RegionReach{reach}, c.tellAll(r.Context(), answer.Orders, nil)...)
	if err := c.heldBySomebody(answer.Reached, trust.RoleProxy, trust.RoleRouter); err != nil {
		return nil, err
	}
	c.log.Warn("restoration ordered through the regions", "what", req.What, "by", r.who)
	return answer, nil
}

// reconcile brings the global store up to what the regions ordered while it was away, until ctx ends. Every controller
// does it: what each would write is a function of what is known, so it is written once and then left alone.
func (c *Controller) reconcile(ctx context.Context) error {
	said := ""
	for {
		nextIntent, next := c.intent.next(), c.ledger.next()
		err := c.reconcileOnce(ctx)
		if err == nil {
			err = c.forwardAudit(ctx)
		}
		wait := 30 * time.Second
		if err != nil {
			wait, nextIntent, next = time.Second+rand.N(time.Second), nil, nil
			if !errors.Is(err, store.ErrConflict) && err.Error() != said && ctx.Err() == nil && !c.globalSeen.lost.Load() {
				c.log.Warn("the global store does not know yet what the regions ordered", "err", err)
				said = err.Error()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-nextIntent:
		case <-next:
		case <-time.After(wait):
		}
	}
}

func (c *Controller) reconcileOnce(ctx context.Context) error {
	if !c.intent.ready() || len(c.differing(c.globalOrders())) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	o, err := c.orders(ctx)
	if err != nil {
		return err
	}
	var stored []cells.Evacuation
	for _, ev := range o.at {
		stored = append(stored, ev)
	}
	changed := c.differing(stored)
	if len(changed) == 0 {
		return nil
	}
	var ids []cells.CellID
	for _, ev := range changed {
		ids = append(ids, ev.Cell)
	}
	err = c.storeOrders(ctx, o, changed, nil, AuditEntry{Who: string(c.opt.ID), What: "evacuations reconciled", On: join(ids), Why: "ordered through the regions while the global store did not answer"})
	if err == nil {
		c.log.Info("the global store knows now what the regions ordered", "cells", join(ids))
	}
	return err
}

// differing are the orders that the global store should hold and doesn't: of cells that the regions know more about.
func (c *Controller) differing(global []cells.Evacuation) []cells.Evacuation {
	now := c.opt.Now()
	at := map[cells.CellID]cells.Evacuation{}
	for _, ev := range global {
		at[ev.Cell] = ev
	}
	var out []cells.Evacuation
	for _, want := range cells.Strictest(cells.Unite(global, c.ledger.evacuations()), now) {
		have, ok := at[want.Cell]
		switch {
		case want.Standing(now) && (!ok || !same(have, want)):
			out = append(out, want)
		case !want.Standing(now) && ok && have.Standing(now):
			out = append(out, want)
		}
	}
	return out
}

// same says whether two standing orders keep clients away alike.
func same(a, b cells.Evacuation) bool {
	return a.Standing(b.Started) && a.Started.Equal(b.Started) && a.Over == b.Over && a.Expires.Equal(b.Expires)
}

// alarm names an expiry that was told.
type alarm struct {
	cell  cells.CellID
	start int64
}

// watchExpiries gives the alarm for orders of the own region that run out while no leader can do so.
func (c *Controller) watchExpiries(now time.Time) {
	if !c.globalSeen.lost.Load() {
		return
	}
	for _, ev := range c.evacuations() {
		name := alarm{ev.Cell, ev.Started.UnixNano()}
		if ev.Cell.Region() != c.opt.Region || !ev.Restored.IsZero() || ev.Withdrawn || now.Before(ev.Expires) || now.Sub(ev.Expires) > time.Minute || c.alarmed[name] {
			continue
		}
		if len(c.alarmed) > maxRegional {
			clear(c.alarmed)
		}
		c.alarmed[name] = true
		c.log.Error("ALARM: an evacuation expired and its cell takes clients again if it is healthy", "cell", string(ev.Cell), "reason", ev.Reason, "by", ev.By)
	}
}

// forwardAudit brings what was noted in the region's store into the global audit.
func (c *Controller) forwardAudit(ctx context.Context) error {
	if c.regionalSeen.lost.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if c.globalSeen.lost.Load() {
		_ = trim(ctx, c.opt.Regional, store.PrefixAudit, maxAudit) // next time
		return nil
	}
	entries, _, err := c.opt.Regional.List(ctx, store.PrefixAudit)
	if err != nil {
		return nil // it waits there
	}
	for batch := range slices.Chunk(entries, store.MaxOps/2) {
		var puts, deletes []store.Op
		for _, e := range batch {
			puts, deletes = append(puts, store.Put(e.Key, e.Value)), append(deletes, store.Delete(e.Key))
		}
		if _, err := c.opt.Global.Commit(ctx, nil, puts); err != nil {
			return err
		}
		if _, err := c.opt.Regional.Commit(ctx, nil, deletes); err != nil {
			return nil // put again, under the same keys
		}
	}
	return nil
}
