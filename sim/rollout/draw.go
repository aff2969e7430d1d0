package rollout

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/cellgate/cellgate/report"
)

// latency is the services' distributions: a log-normal body and a Pareto tail of index 2 over its last 3%.
type latency struct {
	quantile [nServices][1 << 16]float32 // ln of milliseconds
	bucket   [lnSteps]uint8
}

const (
	lnFrom  = -7.0 // ln of 1 µs in ms
	lnScale = 100
	lnSteps = 22 * lnScale
)

func newLatency() *latency {
	r := rand.New(rand.NewPCG(7, 7))
	l := &latency{}
	for s := range nServices {
		median := math.Log(2) + 3*float64(s)/nServices // 2 … 32 ms
		sd := .45 + .3*r.Float64()
		for i := range l.quantile[s] {
			u := (float64(i) + .5) / float64(len(l.quantile[s]))
			z := normal(math.Min(u, .97))
			x := median + sd*z
			if u > .97 {
				x += math.Log(.03/(1-u)) / 2
			}
			l.quantile[s][i] = float32(x)
		}
	}
	for i := range l.bucket {
		ms := math.Exp(lnFrom + float64(i)/lnScale)
		l.bucket[i] = uint8(report.Bucket(time.Duration(math.Min(ms, 1e9) * float64(time.Millisecond))))
	}
	return l
}

func normal(u float64) float64 { return math.Sqrt2 * math.Erfinv(2*u-1) }

// latencies draws each request's latency. Nine of ten cold requests are told as such.
func (w *world) latencies(i, s int, requests uint64, n *now) (warm report.Span, cold uint64) {
	r, f := w.r, &w.fault
	shift, tail := w.svcLat[s]+w.nodeLat[i], 0.0
	if w.failing(s, n.t) {
		shift += .7
	}
	if n.on && f.Slow > 0 {
		shift += math.Log(f.Slow)
	}
	if n.on && f.Tail > 0 {
		tail = math.Log(f.Tail)
	}
	var counts [report.SketchBuckets]uint32
	var bits uint64
	for k := range requests {
		if k&3 == 0 {
			bits = r.Uint64()
		}
		u := bits & 0xffff
		bits >>= 16
		x := float64(w.latency.quantile[s][u]) + shift
		if u > 62915 { // the slowest 4%
			x += tail
		}
		if n.pause > 0 && r.Float64() < n.pause {
			x = math.Log(math.Exp(x) + 100)
		}
		if n.cold > 0 && r.Float64() < n.cold {
			if r.Float64() < .9 {
				cold++
				continue
			}
			x = math.Log(math.Exp(x) + 15)
		}
		counts[w.latency.bucket[max(0, min(lnSteps-1, int((x-lnFrom)*lnScale)))]]++
	}
	return report.SpanOf(counts[:]), cold
}

// gamma draws from the Gamma distribution of shape k and mean 1 (Marsaglia and Tsang, 2000).
func gamma(r *rand.Rand, k float64) float64 {
	if k < 1 {
		return gamma(r, k+1) * (k + 1) / k * math.Pow(r.Float64(), 1/k)
	}
	d := k - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := r.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if math.Log(r.Float64()) < .5*x*x+d-d*v+d*math.Log(v) {
			return d * v / k
		}
	}
}

func poisson(r *rand.Rand, mean float64) uint64 {
	if mean <= 0 {
		return 0
	}
	if mean > 60 {
		return uint64(math.Max(0, math.Round(mean+math.Sqrt(mean)*r.NormFloat64())))
	}
	k, limit := uint64(0), math.Exp(-mean)
	for p := r.Float64(); p > limit; p *= r.Float64() {
		k++
	}
	return k
}
