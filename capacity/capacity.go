// Package capacity is the arithmetic of spare room: headroom of a cell, a region and the globe against the target,
// and whether the rest carries what a loss displaces. Rates are integers (milli-requests per second).
//
//	h, ok := capacity.Headroom(load, cfg)                  // 0.42, true
//	out := capacity.Fail(loads, capacity.Region("us-east"), cfg)
//	if !out.Fits() { out.Unplaced … }
package capacity

import (
	"time"

	"github.com/cellgate/cellgate/cells"
)

// MaxRate bounds what is believed of a limit or a load: a billion requests per second.
const MaxRate cells.MilliRPS = 1e12

// Config is the policy of the arithmetic. The zero value is production's.
type Config struct {
	// Target is the part of a limit that plans fill, in percent; 0 = 70.
	Target int64
	// MaxAge is how old a measured load may be and still prove room; 0 = 30 s.
	MaxAge time.Duration
}

func (c Config) withDefaults() Config {
	if c.Target <= 0 || c.Target > 100 {
		c.Target = 70
	}
	if c.MaxAge <= 0 {
		c.MaxAge = 30 * time.Second
	}
	return c
}

// Load is one cell's measured load against its proven limit.
type Load struct {
	Cell  cells.CellID
	Class cells.Class // empty = cells.Public
	Limit cells.MilliRPS
	Load  cells.MilliRPS
	// Age is how long ago Load arrived; negative = never.
	Age time.Duration
	// Out is set for a cell that may take nothing: unhealthy, or evacuated. What it still carries counts as load alone.
	Out bool
}

func (l Load) class() cells.Class {
	if l.Class == "" {
		return cells.Public
	}
	return l.Class
}

// demand is what the cell carries as far as is known: an old figure is held, since silence is not absence.
func (l Load) demand() cells.MilliRPS { return min(max(l.Load, 0), MaxRate) }

// trusted says whether the figures prove anything: present, fresh, and neither negative nor absurd.
func (l Load) trusted(cfg Config) bool {
	return l.Age >= 0 && l.Age <= cfg.MaxAge && l.Load >= 0 && l.Load <= MaxRate && l.Limit > 0 && l.Limit <= MaxRate
}

// target is the load that plans fill the cell to. The caller has checked the limit.
func (l Load) target(cfg Config) cells.MilliRPS { return l.Limit * cells.MilliRPS(cfg.Target) / 100 }

// room is the confirmed spare capacity below the target; none without trust. A load above the target, also one that
// contradicts the limit, leaves none.
func (l Load) room(cfg Config) cells.MilliRPS {
	if l.Out || !l.trusted(cfg) {
		return 0
	}
	return max(l.target(cfg)-l.Load, 0)
}

// Headroom is the free part of the cell's target, 0 to 1; ok is false when the figures are stale or not to be trusted.
func Headroom(l Load, cfg Config) (free float64, ok bool) {
	cfg = cfg.withDefaults()
	if !l.trusted(cfg) {
		return 0, false
	}
	return ratio(l.room(cfg), l.target(cfg)), true
}

func ratio(part, whole cells.MilliRPS) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// Total is the headroom of several cells together.
type Total struct {
	Limit  cells.MilliRPS // of the cells that count
	Load   cells.MilliRPS // of all cells, held figures included
	Room   cells.MilliRPS // confirmed spare capacity below the target; one cell's excess doesn't eat another's room
	Target cells.MilliRPS
	// Untrusted cells prove no room; Out cells take nothing.
	Untrusted, Out int
}

// Headroom is the free part of the target, 0 to 1; ok is false when no cell's figures are to be trusted.
func (t Total) Headroom() (free float64, ok bool) {
	if t.Target <= 0 {
		return 0, false
	}
	return ratio(t.Room, t.Target), true
}

// Sum adds up cells: those of a region, of a class, or all.
func Sum(loads []Load, cfg Config) Total {
	cfg = cfg.withDefaults()
	var t Total
	for _, l := range loads {
		t.Load += l.demand()
		switch {
		case l.Out:
			t.Out++
		case !l.trusted(cfg):
			t.Untrusted++
		default:
			t.Limit += l.Limit
			t.Target += l.target(cfg)
			t.Room += l.room(cfg)
		}
	}
	return t
}
