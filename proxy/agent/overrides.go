package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/internal/durable"
	"github.com/cellgate/cellgate/trust"
)

// signedList is a list of evacuations as it was signed. Accepted is when its signature was verified. Adds says that its
// controller knew that it did not know all.
type signedList struct {
	Accepted time.Time `json:"accepted"`
	Envelope []byte    `json:"envelope"`
	Adds     bool      `json:"adds,omitempty"`
}

// storedLists is the form of overrides.json: the newest list of the node's own region, then what others added since.
type storedLists struct {
	Form  int          `json:"form"`
	Lists []signedList `json:"lists"`
}

const (
	listsForm = 1
	maxOrders = 1024 // of one node; beyond it the ones that end first are forgotten
)

func newOverrides(a *Agent) durable.Keeper {
	return durable.Keeper{
		Path: a.shelf.path("overrides.json"),
		Failed: func(err error) {
			a.log.Error("evacuations not stored; until they are, they are lost on a restart", "error", err)
		},
		Done: func() { a.log.Info("the evacuations are stored again") },
	}
}

// mergeOverrides looks at the lists that arrived, keeps them on disk and acts on them.
func (a *Agent) mergeOverrides(now time.Time) {
	a.mu.Lock()
	lists := a.lists
	a.lists = nil
	a.mu.Unlock()
	if len(lists) == 0 {
		return
	}
	for _, l := range lists {
		l.Accepted = now
		if err := a.mergeList(l, now); err != nil {
			a.log.Warn("list of evacuations refused", "error", err)
		}
	}
	a.overrides.Put(storedLists{listsForm, slices.Clone(a.kept)}, now)
	a.judgeEvacuation(now)
}

// mergeList takes one signed list in. A list of the node's own region is complete, unless it says that it adds, and replaces what
// that region said before; one of another region adds to it, so the strictest wins until it expires or is restored.
func (a *Agent) mergeList(l signedList, now time.Time) error {
	payload, by, err := a.opt.Roots.Verify(trust.KindOverrides, l.Envelope, l.Accepted, trust.RoleController)
	if err != nil {
		return err
	}
	var list []cells.Evacuation
	if err := json.Unmarshal(payload, &list); err != nil {
		return fmt.Errorf("agent: evacuations: %w", err)
	}
	for _, e := range list {
		if e.Form < 1 || e.Form > cells.EvacuationForm {
			return fmt.Errorf("agent: an evacuation of form %d is not readable here", e.Form)
		}
	}
	own := by.ID.Region() == a.opt.ID.Region() && !l.Adds
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.orders
	if own {
		before, a.kept = nil, nil
	}
	a.orders = merge(before, list, now)
	if own || !reflect.DeepEqual(before, a.orders) {
		if a.kept = append(a.kept, l); len(a.kept) > maxLists {
			a.kept = slices.Delete(a.kept, 1, 2) // the first is the own region's, if it has spoken: nobody else says all of it
		}
	}
	return nil
}

// merge unites two lists of orders. A restored one is remembered until it would have expired, since a list from elsewhere
// may not know of the restoration.
func merge(have, more []cells.Evacuation, now time.Time) []cells.Evacuation {
	all := slices.DeleteFunc(cells.Unite(have, more), func(e cells.Evacuation) bool { return !now.Before(e.Expires) })
	slices.SortStableFunc(all, func(x, y cells.Evacuation) int { return y.Expires.Compare(x.Expires) })
	return all[:min(len(all), maxOrders)]
}

// judgeEvacuation tells the node whether clients should leave it, when that has changed. Orders end by themselves.
func (a *Agent) judgeEvacuation(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	on, why := false, ""
	var since time.Time
	forward := true
	for _, e := range a.orders {
		if e.Cell == a.opt.ID.Cell() && e.Standing(now) {
			on, why = true, e.Reason
			forward = forward && !e.NoForward
			if e.Started.After(since) {
				since = e.Started
			}
		}
	}
	a.steer.order(since, forward, a.orders)
	if on == a.evacuate {
		return
	}
	a.evacuate = on
	a.log.Info("evacuation of the own cell", "on", on, "reason", why)
	a.opt.Reconnect(on)
}

// loadOverrides brings back what was known before the restart.
func (a *Agent) loadOverrides(now time.Time) {
	var stored storedLists
	_, err := durable.ReadForm(a.overrides.Path, listsForm, &stored)
	for _, l := range stored.Lists {
		err = errors.Join(err, a.mergeList(l, now))
	}
	if err != nil {
		a.log.Error("stored evacuations are not usable; waiting for a controller to tell", "error", err)
	}
	a.judgeEvacuation(now)
}
