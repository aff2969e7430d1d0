package judge

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/report"
)

// Sides are the nodes that are compared. The rest's are grouped by what fails alone: cells if there are enough, else nodes.
// No rest at all means that the canary is compared with its own past. Veterans then are nodes that have run the new version
// for longer: what became of them meanwhile is the world's doing.
type Sides struct {
	Canary   []cells.NodeID
	Rest     [][]cells.NodeID
	Veterans []cells.NodeID
}

// beside are the units that a table has beside the canary: the rest, or the veterans of a canary that is alone.
func (s *State) beside(sides Sides) [][]cells.NodeID {
	if !s.Alone {
		return sides.Rest
	}
	out := make([][]cells.NodeID, len(sides.Veterans))
	for i := range out {
		out[i] = sides.Veterans[i : i+1]
	}
	return out
}

// State is everything that is known of one bake. It is part of a stored form; its size is bounded by maxStrata and maxGauged.
type State struct {
	Window time.Duration `json:"window_ns"`
	Bake   int           `json:"bake"` // windows that one bake has
	// Windows judged since the swap.
	Windows int       `json:"windows"`
	Until   time.Time `json:"until,omitzero"` // end of the last round that was judged
	// Alone: there is no rest, and Before is what the canary is compared with.
	Alone bool `json:"alone,omitempty"`
	// Services and Hosts are the strata that are judged by themselves, in the order in which they were met.
	Services []string `json:"services,omitempty"`
	Hosts    []string `json:"hosts,omitempty"`
	Places   [2]int   `json:"places"` // strata among which the weights are divided, of each kind
	// Tracks by cause and stratum: pooled, other, loose, then those of Services or Hosts.
	Tracks [causes][]track `json:"tracks"`
	// Requests of the canary since the swap, with those that there was nothing to compare with.
	Requests float32 `json:"requests,omitempty"`
	// Last is what was judged before, until enough is known to do without.
	Last *State `json:"last,omitempty"`
	// Present counts nodes times windows, by presence.
	Present [presences]float32 `json:"present"`
	// Slow are the rest's warm latencies lately, by stratum.
	Slow   []decayed `json:"slow,omitempty"`
	Gauges gauges    `json:"gauges,omitzero"`
	// E is the evidence after the last round, Most what adds most to it; Worse is what convicted the canary, once and for all.
	E     float32 `json:"e,omitempty"`
	Most  string  `json:"most,omitempty"`
	Worse string  `json:"worse,omitempty"`
}

// Places of the strata that have no name.
const (
	pooled = iota
	others // what has no place of its own
	loose  // failures of no service, or of one that only one side has, among all requests; latencies of all when some have moved
	firstNamed
)

// Whose presence is counted, and when.
const (
	canaryBefore = iota
	restBefore
	canaryNow
	restNow
	presences
)

// Kinds of strata.
const (
	services = iota
	hosts
	warmOnes // services, but only warm requests count
	kinds
)

func (c cause) kind() int {
	switch {
	case c == noRoute || c == missing: // which upstream gets a request is the version's to decide
		return hosts
	case c >= counted:
		return warmOnes
	}
	return services
}

// track is one e-process with what it needs: one cause in one stratum, or over all of them (pooled).
type track struct {
	// Sums by factor over the windows in which the fault may have begun: of what was counted, and of what is left when every
	// unit is cut at what chance explains. The first sees great faults, the second small steady ones.
	raw, cut [nFactors]float32
	own      float32 // how much worse the canary was before, from 1 to the rule's past
	// Dispersion of the rest's units: squares over what they should be.
	num, den, numCut, denCut float32
	// The rest's events and requests lately.
	restLately, restSeen float32
	// The canary's lately: events, as many as the rest's rate means, requests, and windows with too many.
	lately, expected, seen, hot float32
	// Since the swap.
	events, due, requests, restEvents, rest float32
	// Before the swap: requests of both, and the events of what it is compared with: the rest's, or its own if it is alone.
	pastRequests, pastRest, pastEvents float32
	// The veterans' events and requests before the swap, and lately.
	oldEvents, oldRequests, newEvents, newRequests float32
}

func (t *track) fields() []*float32 {
	out := make([]*float32, 0, 31)
	for i := range t.raw {
		out = append(out, &t.raw[i], &t.cut[i])
	}
	return append(out, &t.own, &t.num, &t.den, &t.numCut, &t.denCut, &t.restLately, &t.restSeen, &t.lately, &t.expected, &t.seen,
		&t.hot, &t.events, &t.due, &t.requests, &t.restEvents, &t.rest, &t.pastRequests, &t.pastRest, &t.pastEvents,
		&t.oldEvents, &t.oldRequests, &t.newEvents, &t.newRequests)
}

// MarshalJSON writes the numbers in the order of fields, without the zeros at the end.
func (t track) MarshalJSON() ([]byte, error) {
	var out []float32
	for _, f := range t.fields() {
		out = append(out, *f)
	}
	for len(out) > 0 && out[len(out)-1] == 0 {
		out = out[:len(out)-1]
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (t *track) UnmarshalJSON(b []byte) error {
	var in []float32
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	fields := t.fields()
	if len(in) > len(fields) {
		return fmt.Errorf("judge: a track of %d numbers", len(in))
	}
	*t = track{}
	for i, v := range in {
		*fields[i] = v
	}
	return nil
}

// Clone copies what Step writes.
func (s *State) Clone() *State {
	if s.Known() == nil {
		return nil
	}
	c := *s
	c.Services, c.Hosts = slices.Clone(s.Services), slices.Clone(s.Hosts)
	for i := range c.Tracks {
		c.Tracks[i] = slices.Clone(s.Tracks[i])
	}
	c.Slow = slices.Clone(s.Slow)
	for i := range c.Slow {
		c.Slow[i].Buckets = slices.Clone(c.Slow[i].Buckets)
	}
	c.Gauges = s.Gauges.clone()
	return &c
}

// Again is the state before the first window of a bake that begins anew: what is known of the time before stays.
func (s *State) Again() *State {
	if s.Known() == nil {
		return nil
	}
	c := s.Clone()
	c.Windows, c.Requests, c.E, c.Most, c.Worse = 0, 0, 0, "", ""
	c.Present[canaryNow], c.Present[restNow] = 0, 0
	for m := range c.Tracks {
		for i, t := range c.Tracks[m] {
			c.Tracks[m][i] = track{own: t.own, num: t.num, den: t.den, numCut: t.numCut, denCut: t.denCut,
				pastRequests: t.pastRequests, pastRest: t.pastRest, pastEvents: t.pastEvents,
				oldEvents: t.oldEvents, oldRequests: t.oldRequests}
		}
	}
	c.Gauges.restart()
	return c
}

// valid says that a decoded state has the shape that Step relies on.
func (s *State) valid() bool {
	ok := s.Window > 0 && s.Bake > 0 && s.Windows >= 0 && len(s.Services) <= maxStrata && len(s.Hosts) <= maxStrata &&
		len(s.Slow) == firstNamed+len(s.Services)
	for c := range causes {
		ok = ok && len(s.Tracks[c]) == firstNamed+len(*s.names(c.kind()))
	}
	for _, d := range s.Slow {
		ok = ok && d.From >= 0 && d.From+len(d.Buckets) <= report.SketchBuckets
	}
	return ok
}

// UnmarshalJSON reads a stored state. One of another shape, as an older or newer release may have left it, becomes one that
// nothing is known of: what is lost is evidence, never a decision.
func (s *State) UnmarshalJSON(b []byte) error {
	type plain State
	var in plain
	if err := json.Unmarshal(b, &in); err != nil || !(*State)(&in).valid() {
		in = plain{}
	}
	*s = State(in)
	return nil
}

// Known is the state, or nil if nothing is known of it.
func (s *State) Known() *State {
	if s == nil || s.Window == 0 {
		return nil
	}
	return s
}

func (s *State) names(kind int) *[]string {
	if kind == hosts {
		return &s.Hosts
	}
	return &s.Services
}

// admit gives the strata of a round places of their own: at first as many as fit, the largest first; later the first comers.
func (s *State) admit(rounds []*Round, most int) {
	for kind := services; kind <= hosts; kind++ {
		seen := map[string]float64{}
		for _, r := range rounds {
			for _, u := range r.units {
				for _, p := range u.of(kind) {
					seen[p.id] += float64(p.n)
				}
			}
		}
		delete(seen, report.Other)
		names := s.names(kind)
		for _, id := range *names {
			delete(seen, id)
		}
		ids := slices.SortedFunc(maps.Keys(seen), func(a, b string) int {
			if seen[a] != seen[b] {
				return int(math.Copysign(1, seen[b]-seen[a]))
			}
			if a < b {
				return -1
			}
			return 1
		})
		for _, id := range ids[:max(0, min(len(ids), most-len(*names)))] {
			s.place(kind, id)
		}
	}
}

func (s *State) place(kind int, id string) {
	names := s.names(kind)
	*names = append(*names, id)
	for c := range causes {
		if s.names(c.kind()) == names {
			s.Tracks[c] = append(s.Tracks[c], track{own: s.Tracks[c][pooled].own})
		}
	}
	if kind == services {
		s.Slow = append(s.Slow, decayed{})
	}
}

// strataName is how a stratum is told.
func (s *State) strataName(c cause, i int) string {
	switch i {
	case pooled, loose:
		return ""
	case others:
		return "the small ones"
	}
	return (*s.names(c.kind()))[i-firstNamed]
}

func (u *unit) of(kind int) []part {
	if kind == hosts {
		return u.hosts
	}
	return u.services
}

// decayed is a sketch whose old counts fade.
type decayed struct {
	From    int       `json:"o,omitempty"`
	Buckets []float32 `json:"b,omitempty"`
}

const (
	fade = .97
	// known is how many latencies must be known before the rest's quantiles mean something.
	known = 300
)

func (d *decayed) fade() {
	for i := range d.Buckets {
		d.Buckets[i] *= fade
	}
}

func (d *decayed) add(s report.Span) {
	if s.From < 0 || s.From+len(s.Buckets) > report.SketchBuckets || len(s.Buckets) == 0 {
		return
	}
	if len(d.Buckets) == 0 {
		d.From = s.From
	}
	from, to := min(d.From, s.From), max(d.From+len(d.Buckets), s.From+len(s.Buckets))
	if from < d.From || to > d.From+len(d.Buckets) {
		wide := make([]float32, to-from)
		copy(wide[d.From-from:], d.Buckets)
		d.From, d.Buckets = from, wide
	}
	for i, n := range s.Buckets {
		d.Buckets[s.From-d.From+i] += float32(n)
	}
}

// thresholds are the buckets above which the slowest half, tenth and hundredth lie. ok is false while too little is known.
func (d *decayed) thresholds() (at [causes - counted]int, ok bool) {
	total := 0.0
	for _, n := range d.Buckets {
		total += float64(n)
	}
	if total < known {
		return at, false
	}
	above, b := 0.0, len(d.Buckets)-1
	for i, tail := range [...]float64{.01, .1, .5} {
		for b > 0 && above+float64(d.Buckets[b]) <= tail*total {
			above += float64(d.Buckets[b])
			b--
		}
		at[len(at)-1-i] = d.From + b
	}
	return at, true
}
