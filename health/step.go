package health

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/report"
)

// Form is the version of the stored form of State.
const Form = 1

// Seen is one probe with the time at which it reached the judge; the prober's own clock is not asked.
type Seen struct {
	Probe   report.Probe
	Arrived time.Time
}

// Config says whose evidence counts and how long a change of it must last. What names other cells or regions is ignored.
type Config struct {
	Cells    []cells.CellID
	Vantages []cells.RegionID
	// DownAfter of continuous failure make a cell unhealthy; 0 = 5 s.
	DownAfter time.Duration
	// UpAfter · 2^flips of continuous success, FlapCap at most, make it healthy again; 0 = 20 s and 900 s.
	UpAfter, FlapCap time.Duration
	// Fresh is how long a view counts; 0 = 4 s.
	Fresh time.Duration
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	set(&c.DownAfter, 5*time.Second)
	set(&c.UpAfter, 20*time.Second)
	set(&c.FlapCap, 900*time.Second)
	set(&c.Fresh, 4*time.Second)
	return c
}

// quorum is how many vantage points must agree before a verdict: two, or the only one there is.
func (c Config) quorum() int { return min(2, len(c.Vantages)) }

// State is what is believed of every cell. The zero value knows nothing. States are values: Step gives a new one.
type State struct {
	Form  int                   `json:"form"`
	Cells map[cells.CellID]Cell `json:"cells"`
}

// Cell is what is believed of one cell.
//
//	unknown ──quorum sees it──▶ healthy ──DownAfter──▶ unhealthy
//	                               ▲──UpAfter·2^flips──────┘
//
// From either verdict it becomes unknown without fresh evidence, and returns to that verdict with it.
type Cell struct {
	Status Status    `json:"status"`
	Since  time.Time `json:"since,omitzero"` // of Status
	// Verdict is the last status that was not Unknown.
	Verdict Status `json:"verdict"`
	// Lean is what most vantage points say now, and since when without interruption.
	Lean      Status    `json:"lean"`
	LeanSince time.Time `json:"lean_since,omitzero"`
	// Flips counts deaths that followed too soon on a recovery; UpSince is the last recovery.
	Flips   int       `json:"flips,omitempty"`
	UpSince time.Time `json:"up_since,omitzero"`
	// OwnSince is since when the own region's prober reaches the cell without interruption; zero = it doesn't.
	OwnSince time.Time `json:"own_since,omitzero"`
	// Reached says whether any vantage point reaches the cell now.
	Reached bool   `json:"reached,omitempty"`
	Why     string `json:"why,omitempty"`
	// Views holds the newest look from each vantage point, at most one per region of Config.Vantages.
	Views map[cells.RegionID]View `json:"views,omitempty"`
}

// View is one vantage point's newest look at a cell.
type View struct {
	OK  bool      `json:"ok"`
	Why string    `json:"why,omitempty"`
	At  time.Time `json:"at"`
}

// maxWhy bounds a prober's words in bytes.
const maxWhy = 200

// Status is the verdict on a cell; Unknown for a cell never heard of.
func (s State) Status(cell cells.CellID) Status { return s.Cells[cell].Status }

// Reached says whether any vantage point reaches the cell now, whatever the verdict.
func (s State) Reached(cell cells.CellID) bool { return s.Cells[cell].Reached }

// Why says in words what the verdict rests on.
func (s State) Why(cell cells.CellID) string {
	if c, ok := s.Cells[cell]; ok && c.Why != "" {
		return c.Why
	}
	return "never probed"
}

// Step takes in what has arrived and judges every cell at now.
func Step(s State, arrived []Seen, cfg Config, now time.Time) State {
	cfg = cfg.withDefaults()
	next := State{Form: Form, Cells: make(map[cells.CellID]Cell, len(cfg.Cells))}
	for _, id := range cfg.Cells {
		c := s.Cells[id]
		views := make(map[cells.RegionID]View, len(cfg.Vantages))
		for _, v := range cfg.Vantages {
			if view, ok := c.Views[v]; ok {
				views[v] = view
			}
		}
		c.Views = views
		next.Cells[id] = c
	}
	for _, seen := range arrived {
		next.take(seen, cfg, now)
	}
	sees := next.sighted(cfg, now)
	for id, c := range next.Cells {
		next.Cells[id] = c.judge(count(id, c.Views, sees, cfg, now), cfg, now)
	}
	return next
}

// take records a look at a cell. Looks at single nodes, from strangers, or older than what is known are ignored.
func (s State) take(seen Seen, cfg Config, now time.Time) {
	p := seen.Probe
	c, known := s.Cells[p.Cell]
	if !known || p.Node != "" || !slices.Contains(cfg.Vantages, p.From) {
		return
	}
	at := seen.Arrived
	if at.After(now) {
		at = now
	}
	if old, ok := c.Views[p.From]; ok && at.Before(old.At) && !old.At.After(now) {
		return
	}
	c.Views[p.From] = View{OK: p.OK, Why: clip(p.Why), At: at}
}

func clip(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxWhy)], "")
}

func (v View) fresh(cfg Config, now time.Time) bool {
	age := now.Sub(v.At)
	return !v.At.IsZero() && age <= cfg.Fresh && age >= -cfg.Fresh
}

// sighted lists the vantage points that reach any cell at all. One that reaches none says more about itself than about the cells.
func (s State) sighted(cfg Config, now time.Time) map[cells.RegionID]bool {
	sees := map[cells.RegionID]bool{}
	for _, c := range s.Cells {
		for from, v := range c.Views {
			if v.OK && v.fresh(cfg, now) {
				sees[from] = true
			}
		}
	}
	return sees
}

// votes are the fresh views of one cell.
type votes struct {
	up, down int
	ownOK    bool // the prober of the cell's own region reaches it
	blind    int  // fresh views of vantage points that reach nothing
	why      string
}

func count(id cells.CellID, views map[cells.RegionID]View, sees map[cells.RegionID]bool, cfg Config, now time.Time) votes {
	var v votes
	var up, down []string
	for _, from := range slices.Sorted(maps.Keys(views)) {
		view := views[from]
		switch {
		case !view.fresh(cfg, now):
		case !sees[from]:
			v.blind++
		case view.OK:
			up = append(up, string(from))
			v.ownOK = v.ownOK || from == id.Region()
		default:
			down = append(down, fmt.Sprintf("%s (%s)", from, view.Why))
		}
	}
	v.up, v.down = len(up), len(down)
	v.why = v.words(up, down)
	return v
}

func (v votes) words(up, down []string) string {
	var parts []string
	if len(up) > 0 {
		parts = append(parts, "reached from "+strings.Join(up, ", "))
	}
	if len(down) > 0 {
		parts = append(parts, "not reached from "+strings.Join(down, ", "))
	}
	if v.blind > 0 {
		parts = append(parts, fmt.Sprintf("%d vantage points reach nothing at all and do not count", v.blind))
	}
	if len(parts) == 0 {
		return "no fresh evidence"
	}
	return strings.Join(parts, "; ")
}

// lean is what the votes say by themselves. One vantage point alone can confirm a healthy cell but not change a verdict.
func (v votes) lean(verdict Status, quorum int) Status {
	switch {
	case v.up > v.down && (v.up >= quorum || verdict == Healthy):
		return Healthy
	case v.down > v.up && v.down >= quorum:
		return Unhealthy
	default:
		return Unknown
	}
}

func (c Cell) judge(v votes, cfg Config, now time.Time) Cell {
	if lean := v.lean(c.Verdict, cfg.quorum()); lean != c.Lean || c.LeanSince.IsZero() || c.LeanSince.After(now) {
		c.Lean, c.LeanSince = lean, now
	}
	switch {
	case !v.ownOK:
		c.OwnSince = time.Time{}
	case c.OwnSince.IsZero() || c.OwnSince.After(now):
		c.OwnSince = now
	}
	c.Reached, c.Why = v.up > 0, v.why
	status := c.decide(v, cfg, now)
	if status == c.Status && !c.Since.IsZero() {
		return c
	}
	c.note(status, cfg, now)
	return c
}

// decide gives the status that follows from the votes and from how long the lean has lasted.
func (c Cell) decide(v votes, cfg Config, now time.Time) Status {
	lasted := now.Sub(c.LeanSince)
	contested := v.ownOK && (c.Status != Unhealthy || now.Sub(c.OwnSince) >= cfg.DownAfter)
	switch {
	case v.up+v.down+v.blind == 0:
		return Unknown
	case c.Lean == Healthy && (c.Verdict != Unhealthy || lasted >= cfg.upWait(c.Flips)):
		return Healthy
	case c.Lean == Unhealthy && c.Verdict == Unhealthy && !contested:
		return Unhealthy
	case lasted < cfg.DownAfter || c.Lean == Healthy:
		return c.Status
	case c.Lean == Unhealthy && !contested:
		return Unhealthy
	default: // no majority, blindness, or reached by its own region alone: losing sight is no death
		return Unknown
	}
}

// note enters a new status and counts flips: a death sooner than FlapCap after a recovery doubles the next wait.
func (c *Cell) note(status Status, cfg Config, now time.Time) {
	c.Status, c.Since = status, now
	if status == Unknown || status == c.Verdict {
		return
	}
	switch {
	case status == Healthy && c.Verdict == Unhealthy:
		c.UpSince = now
	case status == Unhealthy && !c.UpSince.IsZero() && now.Sub(c.UpSince) < cfg.FlapCap:
		c.Flips = min(c.Flips+1, maxFlips)
	case status == Unhealthy:
		c.Flips = 0
	}
	c.Verdict = status
}

// maxFlips keeps the doubling far from overflow.
const maxFlips = 20

// upWait is UpAfter · 2^flips, FlapCap at most but never below UpAfter.
func (c Config) upWait(flips int) time.Duration {
	wait := c.UpAfter
	for range min(max(flips, 0), maxFlips) {
		if wait >= c.FlapCap {
			break
		}
		wait *= 2
	}
	return max(min(wait, c.FlapCap), c.UpAfter)
}
