package regionctl

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/regionctl/fleet"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/trust"
)

// This file carries orders that need neither leader nor global store: from the ledger to the region's processes, to its
// store, and to the other regions' controllers. None of the three waits for another.

const (
	// readEvery bounds how often the region's store is read again while it changes.
	readEvery = 100 * time.Millisecond
	// storePatience is how long an order waits for the region's own store before it goes on without.
	storePatience = time.Second
	// peerPatience is how long an order waits for another region's controller.
	peerPatience = 1500 * time.Millisecond
	// retell is how often everything is told to the other regions again, news or not.
	retell = 30 * time.Second
	// tellAtOnce is how many entries one message between controllers carries.
	tellAtOnce = 2000
)

// runLifeline keeps the ledger in step with the store, the region's processes and the other regions, until ctx ends.
func (c *Controller) runLifeline(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.announceOrders(ctx) })
	g.Go(func() error { return c.keepOrders(ctx) })
	for _, peer := range c.couriers {
		g.Go(func() error { defer peer.Close(); return c.tellPeer(ctx, peer) })
	}
	return g.Wait()
}

// announceOrders shows evacuations and denylist to the processes: at every change, and every second, since orders expire
// without one.
func (c *Controller) announceOrders(ctx context.Context) error {
	said := ""
	var read absorbed
	var shown shownDenials
	for {
		nextIntent, nextCopy, next := c.intent.next(), c.copied.next(), c.ledger.next()
		now := c.opt.Now()
		wait := time.Second
		if now.Sub(read.at) >= readEvery {
			c.absorb(&read, now)
		} else {
			wait, nextCopy, nextIntent = readEvery, nil, nil
		}
		c.ledger.expire(now)
		err := c.postOverrides(read.whole)
		if err2 := shown.post(c, now); err == nil {
			err = err2
		}
		c.watchExpiries(now)
		if err != nil && err.Error() != said {
			c.log.Error("orders cannot be shown to the region's processes", "err", err)
		}
		said = fmt.Sprint(err)
		select {
		case <-ctx.Done():
			return nil
		case <-nextIntent:
		case <-nextCopy:
		case <-next:
		case <-time.After(wait):
		}
	}
}

// absorbed is how far the stores were read already. Owner: announceOrders.
type absorbed struct {
	at             time.Time
	whole          bool // the region's store was among what was read
	intent, copied store.Revision
	entries        map[string]store.Revision // of the denylist, by key
}

// absorb takes in what the region's store holds, and restorations that went through the global one.
func (c *Controller) absorb(read *absorbed, now time.Time) {
	whole, intent, copied := c.copied.ready(), c.intent.revision(), c.copied.revision()
	if whole == read.whole && intent == read.intent && copied == read.copied {
		return
	}
	read.at, read.whole, read.intent, read.copied = now, whole, intent, copied
	var orders []cells.Evacuation
	if e, ok := c.copied.get(store.KeyCopyOrders); ok {
		if stored, err := decodeOrders(e.Value); err == nil {
			orders = stored
		} else {
			c.log.Error("the region's stored orders are not readable", "err", err)
		}
	}
	for _, g := range c.globalOrders() {
		if !g.Restored.IsZero() && g.Restored.Before(g.Expires) {
			orders = append(orders, g)
		}
	}
	var entries []denylist.Entry
	seen := map[string]store.Revision{}
	for _, e := range c.copied.list(store.PrefixDenied) {
		var d denylist.Entry
		if read.entries[e.Key] != e.Modified && json.Unmarshal(e.Value, &d) == nil && d.Check() == nil {
			entries = append(entries, d)
		}
		seen[e.Key] = e.Modified
	}
	read.entries = seen
	c.ledger.add(orders, entries, now)
}

// shownDenials is what the nodes were shown last. Owner: announceOrders.
type shownDenials struct {
	change uint64    // of the ledger
	until  time.Time // when the certificate ends that the lists were signed with
	lists  map[cells.RegionID]denylist.List
	beat   time.Time
	full   bool
}

// post shows each region's nodes their denylist when it has changed, and its beat. Lists of other regions are for their
// nodes that attach here while their own controller is away.
func (s *shownDenials) post(c *Controller, now time.Time) error {
	if change, until := c.ledger.change(), c.opt.Signer.Expires(); change != s.change || !until.Equal(s.until) || s.lists == nil {
		entries := denylist.Current(c.ledger.entries(), now)
		s.lists = map[cells.RegionID]denylist.List{}
		for _, r := range c.opt.Topology.Regions {
			l := denylist.NewList(r.ID, denylist.In(entries, r.ID), now.UTC())
			if err := c.postDenylist(fleet.KindDenylist, l); err != nil {
				return err
			}
			s.lists[r.ID] = l
		}
		s.change, s.until, s.beat = change, until, now
		s.watchSize(c, len(denylist.Live(entries, now)))
	}
	if now.Sub(s.beat) < c.opt.DenyBeat {
		return nil
	}
	for _, l := range s.lists {
		if err := c.postDenylist(fleet.KindDenyBeat, l.NewBeat(now.UTC())); err != nil {
			return err
		}
	}
	s.beat = now
	return nil
}

func (s *shownDenials) watchSize(c *Controller, live int) {
	full := live*100 >= denylist.MaxEntries*alarmPercent
	if full && !s.full {
		c.log.Error("ALARM: the denylist is nearly full", "entries", live, "limit", denylist.MaxEntries)
	}
	s.full = full
}

func (c *Controller) postDenylist(kind fleet.Kind, l denylist.List) error {
	envelope, err := c.opt.Signer.Sign(trust.KindDenylist, encode(l))
	if err == nil {
		c.board.PostTo(l.Region, fleet.Mail{Kind: kind, Envelope: envelope})
	}
	return err
}

// keepOrders writes what the ledger has and the region's store hasn't, as what came from other regions or was ordered
// while the store was away, and deletes what has run out.
func (c *Controller) keepOrders(ctx context.Context) error {
	said, kept, at := "", uint64(0), time.Time{}
	for {
		nextCopy, next, change, now := c.copied.next(), c.ledger.next(), c.ledger.change(), c.opt.Now()
		wait, err := 30*time.Second, error(nil)
		if change != kept || now.Sub(at) >= wait {
			err = c.keep(ctx)
		}
		switch {
		case err == nil && c.copied.ready():
			kept, at = change, now
		case err != nil:
			wait = time.Second
			if err.Error() != said && ctx.Err() == nil {
				c.log.Warn("orders are kept in memory and on the nodes' disks alone: the region's store does not take them", "err", err)
			}
		}
		said = fmt.Sprint(err)
		if err != nil {
			nextCopy = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-nextCopy:
		case <-next:
		case <-time.After(wait):
		}
	}
}

func (c *Controller) keep(ctx context.Context) error {
	if !c.copied.ready() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := c.keepEvacuations(ctx); err != nil {
		return err
	}
	var ops []store.Op
	kept := map[string]bool{}
	for _, e := range c.ledger.entries() {
		key := store.KeyDenied(e.Name())
		kept[key] = true
		if have, ok := c.copied.get(key); !ok || string(have.Value) != string(encode(e)) {
			ops = append(ops, store.Put(key, encode(e)))
		}
	}
	for _, e := range c.copied.list(store.PrefixDenied) {
		var d denylist.Entry
		if !kept[e.Key] && (json.Unmarshal(e.Value, &d) != nil || !c.opt.Now().Before(d.Expires)) {
			ops = append(ops, store.Delete(e.Key))
		}
	}
	return c.putInCopy(ctx, ops)
}

func (c *Controller) keepEvacuations(ctx context.Context) error {
	e, _ := c.copied.get(store.KeyCopyOrders)
	stored, err := decodeOrders(e.Value)
	if err != nil {
		stored = nil // unreadable: replaced
	}
	want := needed(cells.Unite(stored, c.ledger.evacuations()), c.opt.Now())
	if len(want) == 0 && e.Modified == 0 || string(encodeOrders(want)) == string(e.Value) {
		return nil
	}
	rev, err := c.opt.Regional.Commit(ctx, []store.Cond{{Key: store.KeyCopyOrders, Modified: e.Modified}}, []store.Op{store.Put(store.KeyCopyOrders, encodeOrders(want))})
	if err == nil {
		c.copied.see(ctx, rev)
	}
	return err
}

// storedOrders is the stored form of a region's orders.
type storedOrders struct {
	Form   int                `json:"form"`
	Orders []cells.Evacuation `json:"orders"`
}

func encodeOrders(orders []cells.Evacuation) []byte {
	return encode(storedOrders{Form: recordForm, Orders: orders})
}

func decodeOrders(raw []byte) ([]cells.Evacuation, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var s storedOrders
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("regionctl: stored orders: %w", err)
	}
	if s.Form != recordForm {
		return nil, fmt.Errorf("regionctl: stored orders of form %d are not readable here", s.Form)
	}
	return s.Orders, nil
}

// tellPeer tells one other controller what it may not know: news at once, everything now and then and after a failure.
func (c *Controller) tellPeer(ctx context.Context, peer *fleet.Courier) error {
	told, all, said := uint64(0), time.Time{}, false
	for {
		next := c.ledger.next()
		if c.opt.Now().Sub(all) >= retell {
			told = 0
		}
		before := told
		orders, entries, seq := c.ledger.since(told)
		err := c.tell(ctx, peer, orders, entries)
		wait := retell
		switch {
		case err != nil:
			if !said && ctx.Err() == nil {
				c.log.Warn("another region's controller does not hear of orders and denials", "region", string(peer.Region), "err", err)
			}
			told, wait, said = 0, time.Second, true
		default:
			told, said = seq, false
			if before == 0 {
				all = c.opt.Now()
			}
		}
		if err != nil {
			next = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		case <-time.After(wait):
		}
	}
}

func (c *Controller) tell(ctx context.Context, peer *fleet.Courier, orders []cells.Evacuation, entries []denylist.Entry) error {
	if len(orders) > 0 {
		if err := c.take(ctx, peer, &nodeapi.RegionalOrders{}, orders, nil, nil); err != nil {
			return err
		}
	}
	for batch := range slices.Chunk(entries, tellAtOnce) {
		if err := c.take(ctx, peer, &nodeapi.RegionalOrders{}, nil, batch, nil); err != nil {
			return err
		}
	}
	return nil
}

// take signs and delivers; a reply that refuses is a *Fault.
func (c *Controller) take(ctx context.Context, peer *fleet.Courier, m *nodeapi.RegionalOrders, orders []cells.Evacuation, entries []denylist.Entry, stored *bool) error {
	if len(orders) > 0 {
		envelope, err := c.opt.Signer.Sign(trust.KindOverrides, encode(orders))
		if err != nil {
			return err
		}
		m.Overrides = &nodeapi.Signed{Envelope: envelope}
	}
	if len(entries) > 0 {
		envelope, err := c.opt.Signer.Sign(trust.KindDenylist, encode(denylist.NewList("", denylist.Unite(entries), c.opt.Now().UTC())))
		if err != nil {
			return err
		}
		m.Denylist = &nodeapi.Signed{Envelope: envelope}
	}
	ctx, cancel := context.WithTimeout(ctx, peerPatience)
	defer cancel()
	reply, err := peer.Take(ctx, m)
	if err != nil {
		return err
	}
	if stored != nil {
		*stored = reply.GetStored()
	}
	if len(reply.GetFault()) == 0 {
		return nil
	}
	f := &Fault{}
	if err := json.Unmarshal(reply.GetFault(), f); err != nil {
		return fmt.Errorf("regionctl: region %s refused in words that are not understood: %w", peer.Region, err)
	}
	return f
}

// hearOrders is the other side of take: it verifies who signed, judges proposals, and merges.
func (c *Controller) hearOrders(ctx context.Context, from trust.Identity, m *nodeapi.RegionalOrders) (*nodeapi.OrdersReply, error) {
	reply := &nodeapi.OrdersReply{}
	orders, entries, err := c.openOrders(m)
	if err != nil {
		return nil, fmt.Errorf("regionctl: orders from %s: %w", from, err)
	}
	if len(entries) > 0 {
		reply.Stored = c.keepDenials(ctx, entries, nil) == nil
	}
	if len(orders) == 0 {
		return reply, nil
	}
	if !m.GetPropose() {
		c.ledger.add(orders, nil, c.opt.Now()) // keepOrders stores it
		return reply, nil
	}
	stored, err := c.takeOrders(ctx, orders, true, AuditEntry{})
	if err != nil {
		reply.Fault = encode(asFault(err))
	}
	reply.Stored = stored
	return reply, nil
}

func (c *Controller) openOrders(m *nodeapi.RegionalOrders) (orders []cells.Evacuation, entries []denylist.Entry, err error) {
	now := c.opt.Now()
	if s := m.GetOverrides(); s != nil {
		raw, _, err := c.opt.Roots.Verify(trust.KindOverrides, s.GetEnvelope(), now, trust.RoleController)
		if err != nil {
			return nil, nil, err
		}
		if err := json.Unmarshal(raw, &orders); err != nil {
			return nil, nil, err
		}
		for _, e := range orders {
			if _, ok := c.opt.Topology.Cell(e.Cell); !ok || e.Form != cells.EvacuationForm || e.Expires.After(now.Add(remembered)) {
				return nil, nil, fmt.Errorf("an order of form %d for cell %q until %s is not understood here", e.Form, e.Cell, e.Expires)
			}
		}
	}
	if s := m.GetDenylist(); s != nil {
		raw, _, err := c.opt.Roots.Verify(trust.KindDenylist, s.GetEnvelope(), now, trust.RoleController)
		if err != nil {
			return nil, nil, err
		}
		l, err := denylist.Decode(raw)
		if err != nil {
			return nil, nil, err
		}
		entries = l.Entries
	}
	return orders, entries, nil
}

// couriersOf makes a courier to every peer.
func couriersOf(o Options) (map[cells.RegionID]*fleet.Courier, error) {
	out := map[cells.RegionID]*fleet.Courier{}
	tls := trust.ClientTLS(o.Signer, o.Roots, trust.RoleController)
	for _, region := range slices.Sorted(maps.Keys(o.Peers)) {
		peer, err := fleet.NewCourier(region, o.Peers[region], tls)
		if err != nil {
			return nil, err
		}
		out[region] = peer
	}
	return out, nil
}
