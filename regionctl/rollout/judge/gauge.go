package judge

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/cellgate/cellgate/cells"
)

// gauges judges CPU time per request and resident memory: one sample in ten seconds, the canary's logarithm less the median
// of the rest's, less what that was before the swap.
type gauges struct {
	// Sum is the sample being gathered, by node; the canary's nodes are one, "".
	Sum     map[cells.NodeID]sample `json:"sum,omitempty"`
	Rounds  int                     `json:"rounds,omitempty"`
	Samples int                     `json:"samples,omitempty"` // since the swap
	// Before are the sums of each node's distance from the median before the swap, over so many samples.
	Before  map[cells.NodeID][nGauges]float32 `json:"before,omitempty"`
	Base    int                               `json:"base,omitempty"`
	Swapped bool                              `json:"swapped,omitempty"`
	// E are the e-processes by gauge and shift, Now the canary's last distances less what they were before.
	E   [nGauges][nShifts]float32 `json:"e"`
	Now [nGauges]float32          `json:"now"`
}

// sample is what a node used.
type sample struct {
	CPU, Requests, RSS float32
}

const (
	nGauges = 2 // CPU per request, memory
	nShifts = 4
	every   = 10 * time.Second
	// Nodes with less traffic in a sample say nothing: idle work outweighs it. So do fewer nodes.
	gaugeTraffic = 1000
	gaugeNodes   = 4
	minSpread    = .06
	tolerated    = 1.2
	afterSwap    = 1 // CPU: samples that are spent on compiling and filling caches
	memorySettle = 6 // memory: samples until the old tables are gone
	gaugePrior   = 1. / 12
)

func (g gauges) clone() gauges {
	g.Sum, g.Before = maps.Clone(g.Sum), maps.Clone(g.Before)
	return g
}

// restart begins the bake anew.
func (g *gauges) restart() {
	*g = gauges{Before: g.Before, Base: g.Base, Swapped: g.Swapped}
}

// swap ends the time before.
func (g *gauges) swap() {
	*g = gauges{Before: g.Before, Base: g.Base, Swapped: true}
}

// see gathers a round, and judges when a sample is full.
func (g *gauges) see(r *Round, sides Sides, window time.Duration) {
	if g.Sum == nil {
		g.Sum = map[cells.NodeID]sample{}
	}
	for _, id := range sides.Canary {
		g.gather("", r.units[id])
	}
	for _, unit := range sides.Rest {
		for _, id := range unit {
			if _, known := g.Sum[id]; known || len(g.Sum) <= maxGauged {
				g.gather(id, r.units[id])
			}
		}
	}
	if g.Rounds++; time.Duration(g.Rounds)*window < every {
		return
	}
	g.judge(float32(len(sides.Canary)))
	g.Sum, g.Rounds = nil, 0
}

func (g *gauges) gather(id cells.NodeID, u *unit) {
	if u == nil {
		return
	}
	s := g.Sum[id]
	s.CPU, s.Requests, s.RSS = s.CPU+float32(u.cpu.Seconds()), s.Requests+float32(u.requests), s.RSS+float32(u.rss)
	g.Sum[id] = s
}

// judge takes a full sample.
func (g *gauges) judge(canaries float32) {
	values := map[cells.NodeID][nGauges]float64{}
	for id, s := range g.Sum {
		n := float32(1)
		if id == "" {
			n = canaries
		}
		if s.Requests >= gaugeTraffic*n && s.CPU > 0 && s.RSS > 0 {
			values[id] = [nGauges]float64{math.Log(float64(s.CPU / s.Requests)), math.Log(float64(s.RSS / n))}
		}
	}
	canary, ok := values[""]
	if !ok || len(values) <= gaugeNodes {
		return
	}
	if g.Swapped {
		g.Samples++
	} else {
		g.Base++
	}
	for k := range nGauges {
		g.one(k, values, canary[k])
	}
}

func (g *gauges) one(k int, values map[cells.NodeID][nGauges]float64, canary float64) {
	var rest []float64
	for _, id := range slices.Sorted(maps.Keys(values)) {
		if id != "" {
			rest = append(rest, values[id][k])
		}
	}
	mid := median(rest)
	if !g.Swapped {
		g.remember(k, values, mid)
		return
	}
	if g.Base == 0 || k == 0 && g.Samples <= afterSwap || k == 1 && g.Samples <= memorySettle {
		return
	}
	var off []float64
	for _, id := range slices.Sorted(maps.Keys(values)) {
		if before, known := g.Before[id]; known && id != "" {
			off = append(off, math.Abs(values[id][k]-mid-float64(before[k])/float64(g.Base)))
		}
	}
	if len(off) < gaugeNodes {
		return
	}
	sd := math.Max(minSpread, 1.48*median(off))
	z := canary - mid - float64(g.Before[""][k])/float64(g.Base)
	g.Now[k] = float32(z)
	for i, shift := range [nShifts]float64{.15, .3, .6, 1.2} {
		l := (shift*(z-math.Log(tolerated)) - shift*shift/2) / (sd * sd) / 2 // halved: samples depend on each other
		g.E[k][i] = clamp((float64(g.E[k][i]) + gaugePrior) * math.Exp(math.Min(l, windowCap)))
	}
}

func (g *gauges) remember(k int, values map[cells.NodeID][nGauges]float64, mid float64) {
	if g.Before == nil {
		g.Before = map[cells.NodeID][nGauges]float32{}
	}
	for id, v := range values {
		b := g.Before[id]
		b[k] += float32(v[k] - mid)
		g.Before[id] = b
	}
}

// e is the gauges' e-value, and the stronger of them in words.
func (g *gauges) e() (total float64, words string) {
	names, most := [nGauges]string{"CPU time per request", "resident memory"}, 0.0
	for k, shifts := range g.E {
		v := 0.0
		for _, e := range shifts {
			v += float64(e) / nShifts / nGauges
		}
		if total += v; v > most {
			most, words = v, fmt.Sprintf("%s is %.0f%% above the rest's, beyond what it was before", names[k], 100*(math.Exp(float64(g.Now[k]))-1))
		}
	}
	return total, words
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n%2 == 1 {
		return v[n/2]
	} else if n > 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return 0
}
