package regionctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/regionctl/fleet"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/trust"
)

const (
	// alarmPercent of the denylist's limit is an alarm.
	alarmPercent = 80
	// busyPercent is the share of a cell's traffic above which denying a route needs a confirmation (C10).
	busyPercent = 1
	maxDeny     = 365 * 24 * time.Hour
	// How long a denial holds that says nothing about it. Callers with tokens are denied as long as any token of theirs can
	// live; unbounded is for policies that don't bound that.
	unbounded    = 7 * 24 * time.Hour
	defaultKey   = 30 * 24 * time.Hour
	defaultRoute = 24 * time.Hour
	clockSlack   = time.Minute // twice what issuers' clocks may differ
)

// getDenials lists what is denied, everywhere or where it concerns ?region=.
func (c *Controller) getDenials(r *call) (any, error) {
	live := denylist.Live(c.ledger.entries(), c.opt.Now())
	answer := Denials{Entries: live, Used: len(live), Limit: denylist.MaxEntries}
	if region := cells.RegionID(r.URL.Query().Get("region")); region != "" {
		if !c.hasRegion(region) {
			return nil, notFound("no region %q in this world", region)
		}
		answer.Entries = denylist.In(live, region)
	}
	if answer.Used*100 >= denylist.MaxEntries*alarmPercent {
		answer.Warnings = append(answer.Warnings, fmt.Sprintf("the denylist is nearly full: %d of %d", answer.Used, answer.Limit))
	}
	return answer, nil
}

func (c *Controller) hasRegion(id cells.RegionID) bool {
	return slices.ContainsFunc(c.opt.Topology.Regions, func(r cells.Region) bool { return r.ID == id })
}

func (c *Controller) postDenial(r *call) (any, error) {
	req, err := body[DenyRequest](r)
	if err != nil {
		return nil, err
	}
	e, err := c.parseDenial(r, req)
	if err != nil {
		return nil, err
	}
	if e.Kind == denylist.Route && !req.Confirm {
		if err := c.sparesRoute(e); err != nil {
			return nil, err
		}
	}
	return c.deny(r, req, e, "deny")
}

func (c *Controller) postPermission(r *call) (any, error) {
	req, err := body[DenyRequest](r)
	if err != nil {
		return nil, err
	}
	e, err := c.parseDenial(r, req)
	if err != nil {
		return nil, err
	}
	e.Removed = true
	// A removal may be said again: who was told that nobody kept it has to.
	known := denylist.Current(c.ledger.entries(), c.opt.Now())
	i := slices.IndexFunc(known, func(k denylist.Entry) bool { return k.Name() == e.Name() })
	switch others := otherwise(denylist.Live(known, c.opt.Now()), e); {
	case i >= 0 && known[i].Expires.After(e.Expires):
		e.Expires = known[i].Expires // nobody may believe the denial longer than he remembers the removal
	case i < 0 && c.copied.ready():
		if others != "" {
			others = "; there is of " + others
		}
		return nil, notFound("there is no denial of %s %q %s%s", e.Kind, e.ID, where(e.Region), others)
	case i < 0: // nodes may have on their disks what this controller has not read
		e.Expires = e.At.Add(maxDeny)
	}
	return c.deny(r, req, e, "permit")
}

// otherwise says under which other words the same caller is denied.
func otherwise(live []denylist.Entry, e denylist.Entry) string {
	var found []string
	for _, l := range live {
		if l.Kind != e.Kind || l.ID != e.ID || l.Name() == e.Name() {
			continue
		}
		issuer := "any issuer"
		if l.Issuer != "" {
			issuer = "issuer " + l.Issuer
		}
		if l.Kind != denylist.User && l.Kind != denylist.Token {
			issuer = "one"
		}
		found = append(found, issuer+" "+where(l.Region))
	}
	return strings.Join(found, ", ")
}

func where(r cells.RegionID) string {
	if r == "" {
		return "everywhere"
	}
	return "in region " + string(r)
}

func (c *Controller) parseDenial(r *call, req DenyRequest) (denylist.Entry, error) {
	now := c.opt.Now().UTC()
	e := denylist.Entry{Kind: denylist.Kind(req.Kind), ID: req.ID, Issuer: req.Issuer, Region: req.Region, Reason: strings.TrimSpace(req.Reason), By: r.who, At: now}
	if e.Kind == denylist.Key {
		e.ID = strings.ToLower(e.ID)
	}
	if err := e.Check(); err != nil {
		return e, badRequest("%v", err)
	}
	if e.Reason == "" {
		return e, badRequest("a reason is required")
	}
	if e.Region != "" && !c.hasRegion(e.Region) {
		return e, notFound("no region %q in this world", e.Region)
	}
	life, err := duration(req.For, 0)
	if err != nil || life != 0 && life < shortest || life > maxDeny {
		return e, badRequest("for must be a duration of %s…%s, not %q", shortest, maxDeny, req.For)
	}
	if life == 0 {
		life = c.defaultLife(r.Context(), e.Kind)
	}
	e.Expires = now.Add(life)
	return e, nil
}

// deny takes the entry into this region and tells the others.
func (c *Controller) deny(r *call, req DenyRequest, e denylist.Entry, verb string) (any, error) {
	e.At = c.ledger.after(e)
	answer := Denied{Entry: e, DryRun: req.DryRun}
	check := func() error {
		if e.Removed {
			return nil
		}
		return c.hasRoom(e)
	}
	if req.DryRun {
		answer.Warnings = c.denialWarnings(r.Context(), e)
		return answer, check()
	}
	audit := AuditEntry{Who: r.who, What: verb, On: string(e.Kind) + " " + e.ID, Why: e.Reason, After: where(e.Region) + ", until " + e.Expires.Format(time.RFC3339)}
	reach := RegionReach{Region: c.opt.Region, Taken: true}
	err := c.keepDenials(r.Context(), []denylist.Entry{e}, &denialTerms{check, audit})
	switch {
	case err == nil:
		reach.Stored = true
	case unanswered(err):
		reach.Why = "the region's store does not answer; it is kept in memory and on the nodes' disks"
	default:
		return nil, err
	}
	answer.Reached = append([]RegionReach{reach}, c.tellAll(r.Context(), nil, []denylist.Entry{e})...)
	if err := c.heldBySomebody(answer.Reached, trust.RoleProxy); err != nil {
		return nil, err
	}
	answer.Warnings = c.denialWarnings(r.Context(), e)
	c.log.Info(verb, "kind", string(e.Kind), "region", string(e.Region), "by", r.who, "reason", e.Reason, "until", e.Expires)
	for _, reached := range answer.Reached {
		if !reached.Taken && (e.Region == "" || e.Region == reached.Region) {
			answer.Warnings = append(answer.Warnings, fmt.Sprintf("region %s was not reached: its nodes hear of it when its controller is back, or when they attach elsewhere", reached.Region))
		}
	}
	return answer, nil
}

// denialWarnings says what whoever gave the order may not have meant.
func (c *Controller) denialWarnings(ctx context.Context, e denylist.Entry) []string {
	if !e.Removed {
		return c.unknown(ctx, e)
	}
	var out []string
	if others := otherwise(denylist.Live(c.ledger.entries(), c.opt.Now()), e); others != "" {
		out = append(out, fmt.Sprintf("%s %q is still denied: of %s", e.Kind, e.ID, others))
	}
	if !c.copied.ready() {
		out = append(out, "this controller has not read its region's store since it started: whatever nodes have of this denial is removed")
	}
	return out
}

// unknown warns of a route or key that the live version doesn't have: in a hurry, people mistype. The denial holds all the
// same, since a version that has it may follow. Who can't be asked is not warned of.
func (c *Controller) unknown(ctx context.Context, e denylist.Entry) []string {
	if e.Kind != denylist.Route && e.Kind != denylist.Key {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	number := c.liveNumber()
	rec, _, ok := read[versionRecord](c.intent, store.KeyVersion(number))
	if !ok {
		return nil
	}
	snap, err := c.open(ctx, &rec)
	if err != nil {
		return nil
	}
	cfg, err := snapshot.Open(snap)
	if err != nil {
		return nil
	}
	has := slices.ContainsFunc(cfg.Routes, func(r snapshot.Route) bool { return r.ID == e.ID })
	if e.Kind == denylist.Key {
		keys, err := c.readKeys()
		issued := func(h string) bool { return strings.HasPrefix(h, e.ID) }
		has = err == nil && slices.ContainsFunc(slices.Collect(maps.Keys(keys.owners)), issued) || slices.ContainsFunc(cfg.Consumers, func(c snapshot.Consumer) bool {
			return slices.ContainsFunc(c.APIKeyHashes, func(h string) bool { return strings.HasPrefix(strings.ToLower(h), e.ID) })
		})
	}
	if has {
		return nil
	}
	return []string{fmt.Sprintf("version %d has no %s %s: is it spelt right?", number, e.Kind, e.ID)}
}

// hasRoom refuses an entry that is one too many. Saying again what is denied is always possible.
func (c *Controller) hasRoom(e denylist.Entry) error {
	all := c.ledger.entries()
	live := denylist.Live(all, c.opt.Now())
	if slices.ContainsFunc(live, func(l denylist.Entry) bool { return l.Name() == e.Name() }) {
		return nil
	}
	if len(live) >= denylist.MaxEntries || len(all) >= 2*denylist.MaxEntries {
		return refused("denylist_full", "", "the denylist is full: %d entries; remove some, or publish without the route or key", len(live))
	}
	return nil
}

// denialTerms are what an entry that an operator gave has to meet, and how it is remembered.
type denialTerms struct {
	check func() error
	audit AuditEntry
}

// keepDenials takes entries into the ledger and then the region's store. The nodes hear of them at once, whether or not
// the store answers; an error that is no *Fault says that it didn't. With terms, the bound holds over concurrent operators:
// their additions in one region are put one after the other.
func (c *Controller) keepDenials(ctx context.Context, entries []denylist.Entry, terms *denialTerms) error {
	if terms == nil {
		c.ledger.add(nil, entries, c.opt.Now())
		return c.storeDenials(ctx, entries)
	}
	c.ordering.Lock()
	defer c.ordering.Unlock()
	ctx, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	var conds []store.Cond
	if err := c.roomInStore(ctx, terms, &conds); err != nil && !unanswered(err) {
		return err
	}
	c.ledger.add(nil, entries, c.opt.Now())
	ops := []store.Op{store.Put(store.KeyDenyGuard, []byte(`{"form":1}`)), c.audit(terms.audit)}
	for _, e := range entries {
		ops = append(ops, store.Put(store.KeyDenied(e.Name()), encode(e)))
	}
	if len(conds) == 0 {
		return errStoreAway
	}
	_, err := c.opt.Regional.Commit(ctx, conds, ops)
	if errors.Is(err, store.ErrConflict) {
		return nil // another controller of the region added one at the same moment; keepOrders stores ours beside it
	}
	return err
}

// storeDenials writes what other regions told into the region's store, as the ledger has it by now. It doesn't wait long:
// what the store doesn't take now, keepOrders writes.
func (c *Controller) storeDenials(ctx context.Context, entries []denylist.Entry) error {
	if !c.copied.ready() || c.regionalSeen.lost.Load() {
		return errStoreAway
	}
	ctx, cancel := context.WithTimeout(ctx, storePatience/2)
	defer cancel()
	var ops []store.Op
	for _, e := range c.ledger.known(entries) {
		key := store.KeyDenied(e.Name())
		if have, ok := c.copied.get(key); !ok || string(have.Value) != string(encode(e)) {
			ops = append(ops, store.Put(key, encode(e)))
		}
	}
	return c.putInCopy(ctx, ops)
}

// putInCopy writes to the region's store, piece by piece, and lets the mirror see it.
func (c *Controller) putInCopy(ctx context.Context, ops []store.Op) error {
	for batch := range slices.Chunk(ops, store.MaxOps/2) {
		rev, err := c.opt.Regional.Commit(ctx, nil, batch)
		if err != nil {
			return err
		}
		c.copied.see(ctx, rev)
	}
	return nil
}

var errStoreAway = errors.New("regionctl: the region's store does not answer")

// roomInStore checks the bound over what the region's store holds, and gives the condition that it still does.
func (c *Controller) roomInStore(ctx context.Context, terms *denialTerms, conds *[]store.Cond) error {
	if c.regionalSeen.lost.Load() {
		return cmp.Or(terms.check(), errStoreAway)
	}
	guard, err := c.opt.Regional.Get(ctx, store.KeyDenyGuard)
	if err == nil {
		c.copied.see(ctx, guard.Modified)
	}
	if fault := terms.check(); fault != nil {
		return fault
	}
	if err == nil || isAbsent(err) {
		*conds = []store.Cond{{Key: store.KeyDenyGuard, Modified: guard.Modified}}
		return nil
	}
	return err
}

// tellAll tells every other region at once, and says which heard it. tellPeer goes on with those that did not.
func (c *Controller) tellAll(ctx context.Context, orders []cells.Evacuation, entries []denylist.Entry) []RegionReach {
	var reached []RegionReach
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, region := range c.opt.Topology.Regions {
		peer := c.couriers[region.ID]
		if peer == nil {
			continue
		}
		wg.Go(func() {
			reach := c.tellOne(ctx, peer, orders, entries)
			mu.Lock()
			defer mu.Unlock()
			reached = append(reached, reach)
		})
	}
	wg.Wait()
	slices.SortFunc(reached, func(a, b RegionReach) int { return strings.Compare(string(a.Region), string(b.Region)) })
	return reached
}

func (c *Controller) tellOne(ctx context.Context, peer *fleet.Courier, orders []cells.Evacuation, entries []denylist.Entry) RegionReach {
	reach := RegionReach{Region: peer.Region, Taken: true}
	if err := c.take(ctx, peer, &nodeapi.RegionalOrders{}, orders, entries, &reach.Stored); err != nil {
		reach.Taken, reach.Why = false, err.Error()
	}
	return reach
}

// sparesRoute asks for a confirmation when the route carries more than busyPercent of a cell's traffic, or when nothing is
// known of any cell's traffic.
func (c *Controller) sparesRoute(e denylist.Entry) error {
	type sum struct{ all, route uint64 }
	sums, now := map[cells.CellID]sum{}, c.opt.Now()
	for _, n := range c.evidence.Nodes() {
		if now.Sub(n.Arrived) > stale || e.Region != "" && n.Report.ID.Region() != e.Region {
			continue
		}
		s := sums[n.Report.ID.Cell()]
		s.all += n.Report.Busy.Requests
		s.route += n.Report.Busy.Routes[e.ID]
		sums[n.Report.ID.Cell()] = s
	}
	if len(sums) == 0 {
		return refused("route_traffic_unknown", "--confirm", "no node is heard of, so nobody knows what the route %s carries", e.ID)
	}
	for _, cell := range c.opt.Topology.Cells() {
		if s := sums[cell.ID]; s.route*100 > s.all*busyPercent {
			return refused("busy_route", "--confirm", "the route %s carries %d%% of the requests of cell %s", e.ID, s.route*100/s.all, cell.ID)
		}
	}
	return nil
}

// lifetimes remembers how long tokens may live under the policies of a version.
type lifetimes struct {
	mu     sync.Mutex
	number uint64
	most   time.Duration // 0 = not known
}

// defaultLife is how long an entry holds that says nothing about it.
func (c *Controller) defaultLife(ctx context.Context, kind denylist.Kind) time.Duration {
	switch kind {
	case denylist.Key:
		return defaultKey
	case denylist.Route:
		return defaultRoute
	}
	c.lives.mu.Lock()
	defer c.lives.mu.Unlock()
	number := c.liveNumber()
	if c.lives.most == 0 || c.lives.number != number {
		ctx, cancel := context.WithTimeout(ctx, storePatience)
		defer cancel()
		most, err := c.longestToken(ctx, number)
		if err != nil {
			return unbounded
		}
		c.lives.number, c.lives.most = number, most
	}
	return c.lives.most
}

// longestToken is how long a token may live under any policy of the version.
func (c *Controller) longestToken(ctx context.Context, number uint64) (time.Duration, error) {
	rec, _, ok := read[versionRecord](c.intent, store.KeyVersion(number))
	if !ok {
		return 0, fmt.Errorf("regionctl: version %d is not known here", number)
	}
	snap, err := c.open(ctx, &rec)
	if err != nil {
		return 0, err
	}
	cfg, err := snapshot.OpenShared(snap)
	if err != nil {
		return 0, err
	}
	var most time.Duration
	for _, p := range cfg.Policies {
		if p.JWT == nil {
			continue
		}
		if p.JWT.MaxTokenLifetime <= 0 {
			return unbounded, nil
		}
		most = max(most, p.JWT.MaxTokenLifetime+clockSlack)
	}
	if most == 0 {
		return unbounded, nil
	}
	return min(most, maxDeny), nil
}
