// Package view is what one router believes of the cells by itself, and how much of them it therefore takes out of the plan:
// cells that died since the plan was made, and cells that an order evacuates although no plan follows it. It is pure.
//
// A router stands at one place and has no say over the world. It withdraws and never adds; a plan that was made in
// knowledge of what it sees outranks it, as does the word of its controllers, who judge by a quorum; and when too much
// looks dead at once, it takes itself for blind and serves the plan as it is.
package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/health"
)

const (
	// notice is how much longer than DownAfter a leader takes to see a death and publish.
	notice = 3 * time.Second
	// followed is how old a plan that follows an order must be before the router goes on with the order by itself.
	followed = 15 * time.Second
	// strange is how much longer than DownAfter a cell must fail that this router has never seen alive.
	strange = 4
)

// Config is what the view needs to know. Zero times are production's.
type Config struct {
	Region    cells.RegionID // where this router stands
	DownAfter time.Duration  // 5 s
	UpAfter   time.Duration  // 20 s · 2^flips, FlapCap at most
	FlapCap   time.Duration  // 900 s
	Ramp      time.Duration  // 10 min: how long a cell takes to be full again without a leader
	Fresh     time.Duration  // 4 s: how long a look, or a controller's word, counts
}

// WithDefaults fills in production's times.
func (c Config) WithDefaults() Config {
	for d, v := range map[*time.Duration]time.Duration{
		&c.DownAfter: 5 * time.Second, &c.UpAfter: 20 * time.Second, &c.FlapCap: 900 * time.Second,
		&c.Ramp: 10 * time.Minute, &c.Fresh: 4 * time.Second,
	} {
		if *d <= 0 {
			*d = v
		}
	}
	return c
}

// Inputs are what a step goes by.
type Inputs struct {
	Plan   *steer.Plan
	Looks  []health.Seen      // own probes that arrived since the last step
	Orders []cells.Evacuation // known orders, standing or ramping back
	// Verdicts are what the controllers last said, at Told; nil = nothing. Reached are the cells that some vantage point of
	// theirs reaches.
	Verdicts map[cells.CellID]health.Status
	Reached  map[cells.CellID]bool
	Told     time.Time
}

// State is what a router believes. The zero value knows nothing.
type State struct {
	Health health.State `json:"health"`
	// Blind: more than half of what the plan uses, or more than one whole region, looks dead; what the router sees counts
	// for nothing until less does for DownAfter.
	Blind   bool      `json:"blind"`
	Why     string    `json:"why,omitempty"`
	Cleared time.Time `json:"-"` // since when a blind router sees enough
	// Cells has the cells of the plan.
	Cells map[cells.CellID]Cell `json:"cells"`
}

// Cell is what is withdrawn of one cell, and why.
type Cell struct {
	Share  int    `json:"share_256"`        // of every 256 of its slots
	Dead   bool   `json:"dead,omitempty"`   // for this router
	Closed bool   `json:"closed,omitempty"` // evacuated by an order
	Why    string `json:"why,omitempty"`

	known bool // was taken for healthy once
	// A cell that returns without a leader comes back from the share that it had, over the ramp.
	back        time.Time
	from        int
	epoch, plan uint64 // the plan before that; a newer one ends the return
}

// Step takes in what is new and judges every cell of the plan at now.
func Step(s State, in Inputs, cfg Config, now time.Time) State {
	cfg = cfg.WithDefaults()
	hc := health.Config{
		Vantages:  []cells.RegionID{cfg.Region},
		DownAfter: cfg.DownAfter, UpAfter: cfg.UpAfter, FlapCap: cfg.FlapCap, Fresh: cfg.Fresh,
	}
	for _, c := range in.Plan.Cells {
		hc.Cells = append(hc.Cells, c.ID)
	}
	next := State{Health: health.Step(s.Health, in.Looks, hc, now), Cells: make(map[cells.CellID]Cell, len(in.Plan.Cells))}
	j := judge{in: in, cfg: cfg, now: now, health: next.Health}
	next.Blind, next.Cleared, next.Why = j.blind(s)
	for i := range in.Plan.Cells {
		id := in.Plan.Cells[i].ID
		next.Cells[id] = j.cell(i, s.Cells[id], next.Blind)
	}
	return next
}

// Withdrawals are what the plan's cells lose, for Plan.Overlay; none is true when that is nothing.
func (s State) Withdrawals(p *steer.Plan) (by []steer.Withdrawal, none bool) {
	by, none = make([]steer.Withdrawal, len(p.Cells)), true
	for i := range p.Cells {
		c := s.Cells[p.Cells[i].ID]
		by[i] = steer.Withdrawal{Share: c.Share, Dead: c.Dead, Closed: c.Closed}
		none = none && c.Share == 0
	}
	return by, none
}

// judge is one step in the making.
type judge struct {
	in     Inputs
	cfg    Config
	now    time.Time
	health health.State
}

// told is the controllers' word on a cell while it is fresh.
func (j *judge) told(id cells.CellID) health.Status {
	if !j.heard() {
		return health.Unknown
	}
	return j.in.Verdicts[id]
}

// reached says whether somebody reaches a cell of which the controllers have no verdict: then the way from here to it is
// cut, and the cell lives.
func (j *judge) reached(id cells.CellID) bool { return j.heard() && j.in.Reached[id] }

func (j *judge) heard() bool {
	age := j.now.Sub(j.in.Told)
	return age <= j.cfg.Fresh && age >= -j.cfg.Fresh
}

// blind counts what fails right now, of the cells that the plan uses and that the controllers do not know to be dead.
func (j *judge) blind(s State) (blind bool, cleared time.Time, why string) {
	var total, failing int
	alive := map[cells.RegionID]bool{}
	for id := range j.used() {
		if j.told(id) == health.Unhealthy {
			continue
		}
		total++
		r := id.Region()
		if j.fails(id) {
			failing++
			alive[r] = alive[r] || false
		} else {
			alive[r] = true
		}
	}
	regions := 0
	for _, ok := range alive {
		if !ok {
			regions++
		}
	}
	switch {
	case 2*failing > total || regions > 1:
		return true, time.Time{}, fmt.Sprintf("%d of %d cells look dead, all cells of %d regions: the fault is taken to be here", failing, total, regions)
	case !s.Blind:
		return false, time.Time{}, ""
	case s.Cleared.IsZero() || s.Cleared.After(j.now):
		return true, j.now, s.Why
	case j.now.Sub(s.Cleared) < j.cfg.DownAfter:
		return true, s.Cleared, s.Why
	}
	return false, time.Time{}, ""
}

// used are the cells that the plan sends anybody to.
func (j *judge) used() map[cells.CellID]bool {
	out := map[cells.CellID]bool{}
	p := j.in.Plan
	for s := range p.Rows {
		for _, row := range p.Rows[s] {
			for i, c := range row {
				if i == 0 || c != row[i-1] {
					out[p.Cells[c].ID] = true
				}
			}
		}
	}
	return out
}

// fails says whether the newest look at the cell was fresh and bad.
func (j *judge) fails(id cells.CellID) bool {
	v, ok := j.health.Cells[id].Views[j.cfg.Region]
	return ok && !v.OK && j.now.Sub(v.At) <= j.cfg.Fresh
}

func (j *judge) cell(i int, was Cell, blind bool) Cell {
	id := j.in.Plan.Cells[i].ID
	c := was
	own := j.health.Cells[id]
	c.known = was.known || own.Status == health.Healthy
	c.Dead, c.Why = j.dead(id, own, was, blind)
	ordered, closed, why := j.ordered(i)
	c.Closed = closed
	want := ordered
	if c.Dead {
		want = steer.Slots
	} else if why != "" {
		c.Why = why
	}
	// A cell that was never seen alive has not died, and one that a blind router lost has not come back: they return at once.
	c.withdraw(want, blind || was.Dead && !was.known, &j.in, j.cfg.Ramp, j.now)
	if c.Share > want && c.Why == "" {
		c.Why = "coming back"
	}
	return c
}

// dead says whether nobody may be sent to the cell, and why.
func (j *judge) dead(id cells.CellID, own health.Cell, was Cell, blind bool) (bool, string) {
	told := j.told(id)
	switch {
	case told == health.Unhealthy && (own.Status != health.Healthy || j.fails(id)):
		return true, "dead, say the controllers"
	case own.Status == health.Healthy || told == health.Healthy || j.reached(id):
		return false, ""
	case blind:
		return false, ""
	case !was.Dead && !j.fails(id): // it answers, and its verdict is of the blindness that was: trust comes back slowly
		return false, ""
	case own.Status != health.Unhealthy:
		// Without evidence a death stands for as long as this router sees anything at all.
		return was.Dead && own.Verdict == health.Unhealthy && own.Status == health.Unknown && j.sees(), was.Why
	case !was.known && j.now.Sub(own.LeanSince) < strange*j.cfg.DownAfter:
		return false, ""
	case j.in.Plan.Created.After(own.LeanSince.Add(j.cfg.DownAfter + notice)):
		return false, "fails here; the plan is newer and uses it"
	}
	return true, own.Why
}

// sees says whether the router reaches any cell.
func (j *judge) sees() bool {
	for _, c := range j.health.Cells {
		if v := c.Views[j.cfg.Region]; v.OK && j.now.Sub(v.At) <= j.cfg.Fresh {
			return true
		}
	}
	return false
}

// Ordered is what signed orders alone take out of the plan at now, for Plan.Overlay; none is true when that is nothing. It
// is what every router answers by while no leader follows the orders, whatever the router sees of the cells. Orders that
// have ended count for nothing.
func Ordered(p *steer.Plan, orders []cells.Evacuation, now time.Time) (by []steer.Withdrawal, none bool) {
	standing := slices.DeleteFunc(slices.Clone(orders), func(e cells.Evacuation) bool { return !e.Standing(now) })
	j := judge{in: Inputs{Plan: p, Orders: standing}, now: now}
	by, none = make([]steer.Withdrawal, len(p.Cells)), true
	for i := range p.Cells {
		by[i].Share, by[i].Closed, _ = j.ordered(i)
		none = none && by[i].Share == 0
	}
	return by, none
}

// ordered is the share that the strictest order withdraws beyond what the plan has withdrawn already.
func (j *judge) ordered(i int) (share int, closed bool, why string) {
	cell := &j.in.Plan.Cells[i]
	follows := func(e cells.Evacuation) bool { return e.Cell == cell.ID && e.Started.UnixMilli() == cell.Evacuation }
	var end time.Time // of the move that the plan follows
	if at := slices.IndexFunc(j.in.Orders, follows); at >= 0 && j.in.Orders[at].Standing(j.now) {
		end = j.in.Orders[at].Started.Add(j.in.Orders[at].Over)
	}
	for _, e := range j.in.Orders {
		if e.Cell != cell.ID {
			continue
		}
		n := 0
		switch {
		case follows(e):
			n = j.beyond(e)
		case end.IsZero() || e.Started.Add(e.Over).Before(end): // else the plan is at least as strict
			n = j.alone(e)
		}
		closed = closed || e.Standing(j.now)
		if n > share {
			share, why = n, "evacuated: "+e.Reason
		}
	}
	return share, closed, why
}

// beyond is what an order that the plan follows has come to since the plan stopped following: of the slots that the plan
// still leaves to the cell.
func (j *judge) beyond(e cells.Evacuation) int {
	if !e.Standing(j.now) {
		return 0
	}
	kept := steer.Slots*16 - gone(j.in.Plan.Created.Sub(e.Started), e.Over)
	keep := steer.Slots*16 - gone(j.now.Add(-followed).Sub(e.Started), e.Over)
	if kept <= 0 || keep >= kept {
		return 0
	}
	return steer.Slots - keep*steer.Slots/kept
}

// alone is what an order comes to that the plan does not follow. One that has ended fades, unless a plan was made since.
func (j *judge) alone(e cells.Evacuation) int {
	switch e.State(j.now, j.cfg.Ramp) {
	case cells.Evacuating:
		return gone(e.Age(j.now), e.Over) / 16
	case cells.Evacuated:
		return steer.Slots
	case cells.Restoring:
		if j.in.Plan.Created.Before(e.Ended()) {
			return fading(gone(e.Ended().Sub(e.Started), e.Over)/16, j.now.Sub(e.Ended()), j.cfg.Ramp)
		}
	}
	return 0
}

// gone is how much should have left, in 1/16 slots, at an age of an order.
func gone(age, over time.Duration) int {
	const all = steer.Slots * 16
	switch {
	case age >= over:
		return all
	case age <= 0:
		return 0
	}
	return int(all * age.Microseconds() / max(over.Microseconds(), 1))
}

// fading is a share on its way to nothing: 5 % of the cell return at once, the rest in proportion.
func fading(share int, age, ramp time.Duration) int {
	if age >= ramp {
		return 0
	}
	left := max(share-steer.Slots/20, 0)
	return left - int(int64(left)*max(age, 0).Microseconds()/max(ramp.Microseconds(), 1))
}

// withdraw moves the share to what is wanted: up at once, down over the ramp. A plan newer than the one at the time of the
// return ends it, because its maker has decided how the cell comes back.
func (c *Cell) withdraw(want int, atOnce bool, in *Inputs, ramp time.Duration, now time.Time) {
	p := in.Plan
	if want >= c.Share {
		c.Share, c.back, c.epoch, c.plan = want, time.Time{}, p.Epoch, p.Number
		return
	}
	if c.back.IsZero() {
		c.back, c.from = now, c.Share
	}
	newer := p.Epoch > c.epoch || p.Epoch == c.epoch && p.Number > c.plan
	if c.Share = max(want, fading(c.from, now.Sub(c.back), ramp)); newer || atOnce || c.Share == want {
		c.Share, c.back = want, time.Time{}
	}
}

// Summary lists what is withdrawn, for logs: "eu/a 256 (dead), us/b 12 (coming back)"; empty when nothing is.
func (s State) Summary() string {
	var out []string
	for id, c := range s.Cells {
		if c.Share > 0 {
			out = append(out, fmt.Sprintf("%s %d/256 (%s)", id, c.Share, c.Why))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// Reasons is Summary without the shares, which change all the time.
func (s State) Reasons() string {
	var out []string
	for id, c := range s.Cells {
		if c.Share > 0 {
			out = append(out, string(id)+" "+c.Why)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
