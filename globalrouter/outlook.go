package globalrouter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/globalrouter/view"
	"github.com/cellgate/cellgate/health"
	"github.com/cellgate/cellgate/internal/durable"
	"github.com/cellgate/cellgate/report"
)

// Outlook is a router's own view of the world beside the plan: its probes of the cells, the evacuations that controllers
// signed, and what its controller says of the cells. An Agent asks it what to withdraw. Set the fields before Load.
type Outlook struct {
	Config view.Config
	File   string // keeps the orders over a restart
	// Verify gives the payload of an envelope of signed orders and the region of the controller that signed it.
	Verify func(envelope []byte, now time.Time) (payload []byte, by cells.RegionID, err error)
	Now    func() time.Time
	Log    *slog.Logger

	mu       sync.Mutex // guards all below
	state    view.State
	looks    []health.Seen
	lists    []signedOrders // as they were signed; the own region's comes first
	orders   []cells.Evacuation
	verdicts health.Verdicts
	told     time.Time
	allUp    []string
	said     string // the summary that was logged last
	disk     durable.Keeper
}

// signedOrders is a list of evacuations in its envelope, with the time at which its signature was judged. Adds says that its
// controller knew that it did not know all.
type signedOrders struct {
	Accepted time.Time `json:"accepted"`
	Envelope []byte    `json:"envelope"`
	Adds     bool      `json:"adds,omitempty"`
}

// storedOrders is the form of File: the newest list of the own region, then what others have added since.
type storedOrders struct {
	Form  int            `json:"form"`
	Lists []signedOrders `json:"lists"`
}

const (
	ordersForm = 1
	maxOrders  = 1024 // beyond it the orders that end first are forgotten
	maxLists   = 64   // of other regions since the own one spoke; beyond it the oldest is not stored
	maxLooks   = 1 << 16
	reviewEach = 200 * time.Millisecond
)

// Saw takes a round of the router's own probes; it never blocks. Rounds beyond the bound between two reviews are dropped:
// the next ones say the same.
func (o *Outlook) Saw(round []report.Probe) {
	now := o.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range round {
		if len(o.looks) < maxLooks {
			o.looks = append(o.looks, health.Seen{Probe: p, Arrived: now})
		}
	}
}

// Told takes what the attached controller says of the cells.
func (o *Outlook) Told(v health.Verdicts) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.verdicts, o.told = v, o.Now()
}

// Run reviews the agent's answers until ctx ends.
func (o *Outlook) Run(ctx context.Context, a *Agent) error {
	tick := time.NewTicker(reviewEach)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			a.Review()
			o.mu.Lock()
			o.disk.Retry(o.Now())
			o.mu.Unlock()
		}
	}
}

// Withdraw takes a step of the view and says what is withdrawn of the plan.
func (o *Outlook) Withdraw(p *steer.Plan) ([]steer.Withdrawal, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.Now()
	was := o.state
	o.state = view.Step(was, view.Inputs{Plan: p, Looks: o.looks, Orders: o.orders, Verdicts: o.verdicts.Cells, Reached: o.verdicts.Reached, Told: o.told}, o.Config, now)
	o.looks = nil
	o.tell(was.Blind)
	return o.state.Withdrawals(p)
}

// tell logs what has changed; shares on their way are no news.
func (o *Outlook) tell(wasBlind bool) {
	if o.state.Blind != wasBlind {
		o.Log.Warn("this router takes itself for blind and serves the plan as it is", "on", o.state.Blind, "why", o.state.Why)
	}
	said := o.state.Reasons()
	if said == o.said {
		return
	}
	o.said = said
	if said == "" {
		o.Log.Info("nothing is withdrawn from the plan any more")
		return
	}
	o.Log.Warn("cells are withdrawn from the plan by this router's own view", "cells", o.state.Summary())
}

// Served notes which sets answer as if all were up.
func (o *Outlook) Served(allUp []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Equal(allUp, o.allUp) {
		o.Log.Warn("sets without a living cell answer as if all were up", "sets", allUp)
	}
	o.allUp = allUp
}

// Page is what /plan shows of the outlook.
type Page struct {
	Blind    bool                       `json:"blind"`
	Why      string                     `json:"why,omitempty"`
	AllUp    []string                   `json:"all_up,omitempty"` // sets that answer as if all were up
	Cells    map[cells.CellID]view.Cell `json:"cells"`            // of which something is withdrawn
	Orders   []cells.Evacuation         `json:"orders,omitempty"`
	Verdicts map[cells.CellID]string    `json:"verdicts,omitempty"` // own
}

// Page describes the present view.
func (o *Outlook) Page() Page {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := Page{Blind: o.state.Blind, Why: o.state.Why, AllUp: o.allUp, Orders: o.orders, Cells: map[cells.CellID]view.Cell{}, Verdicts: map[cells.CellID]string{}}
	for id, c := range o.state.Cells {
		if c.Share > 0 || c.Why != "" {
			p.Cells[id] = c
		}
		p.Verdicts[id] = o.state.Health.Status(id).String()
	}
	return p
}

// Load brings back the orders known before the restart; unreadable ones are told and left to the controllers.
func (o *Outlook) Load() {
	var stored storedOrders
	_, err := durable.ReadForm(o.File, ordersForm, &stored)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.disk = durable.Keeper{
		Path: o.File,
		Failed: func(err error) {
			o.Log.Error("evacuations not stored; until they are, they are lost on a restart", "error", err)
		},
		Done: func() { o.Log.Info("the evacuations are stored again") },
	}
	for _, l := range stored.Lists {
		err = errors.Join(err, o.merge(l))
	}
	if err != nil {
		o.Log.Error("stored evacuations are not usable; waiting for a controller to tell", "error", err)
	}
}

// Order takes a signed list of evacuations and stores it; one that adds replaces nothing, whoever signed it. What can't be stored
// still counts until a restart.
func (o *Outlook) Order(envelope []byte, adds bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.merge(signedOrders{o.Now(), envelope, adds}); err != nil {
		return err
	}
	o.disk.Put(storedOrders{ordersForm, slices.Clone(o.lists)}, o.Now())
	return nil
}

// merge takes one list in. That of the own region is complete, unless it says that it adds, and replaces what was known; others
// add to it, so that the strictest wins until it expires or is restored.
func (o *Outlook) merge(l signedOrders) error {
	payload, by, err := o.Verify(l.Envelope, l.Accepted)
	if err != nil {
		return err
	}
	var list []cells.Evacuation
	if err := json.Unmarshal(payload, &list); err != nil {
		return fmt.Errorf("evacuations: %w", err)
	}
	for _, e := range list {
		if e.Form < 1 || e.Form > cells.EvacuationForm {
			return fmt.Errorf("evacuations: form %d is not readable here", e.Form)
		}
	}
	own, before := by == o.Config.Region && !l.Adds, o.orders
	if own {
		o.lists, o.orders = nil, nil
	}
	now := o.Now()
	all := slices.DeleteFunc(cells.Unite(o.orders, list), func(e cells.Evacuation) bool {
		return !now.Before(e.Expires) && e.State(now, o.Config.Ramp) == cells.Active
	})
	slices.SortStableFunc(all, func(x, y cells.Evacuation) int { return y.Expires.Compare(x.Expires) })
	o.orders = all[:min(len(all), maxOrders)]
	if !own && reflect.DeepEqual(before, o.orders) {
		return nil
	}
	if o.lists = append(o.lists, l); len(o.lists) > maxLists {
		o.lists = slices.Delete(o.lists, 1, 2)
	}
	return nil
}
