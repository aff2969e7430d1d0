package report

import (
	"cmp"
	"encoding/json"
	"slices"
)

// Bounds of the strata of one report: beyond MaxStrata of a kind, or MaxBytes of all together, those with the fewest
// requests are sent as Other.
const (
	MaxStrata = 64
	MaxBytes  = 32 << 10
)

// Other is the id of the stratum that takes in what has none of its own.
const Other = "other"

// Stratum is what a node saw in one part of its traffic: an upstream's, or a host's.
type Stratum struct {
	ID string `json:"id"`
	Counts
	// Cold exchanges waited for a connection or a key; they are counted but their latency is not in Warm.
	Cold uint64 `json:"cold,omitempty"`
	Warm Span   `json:"warm,omitzero"` // whole exchange, client's view, of those that were not cold
	// Heavy is the client with the most failures and refusals in the window, nil = nobody had two. It is counted from its
	// first one on, or from the window's beginning if it had some in the window before.
	Heavy *Counts `json:"heavy,omitempty"`
}

// Add sums b into s. The heaviest clients of two windows are taken for one, which errs to the side of setting more aside.
func (s *Stratum) Add(b Stratum) {
	s.Counts.Add(b.Counts)
	s.Cold += b.Cold
	s.Warm.Merge(b.Warm)
	if b.Heavy != nil {
		sum := *b.Heavy
		if s.Heavy != nil {
			sum.Add(*s.Heavy)
		}
		s.Heavy = &sum
	}
}

// Failed is the number of exchanges that were somebody's failure, a refusal or not found.
func (c Counts) Failed() uint64 {
	return c.Gateway + c.Upstream + c.Auth + c.NoRoute + c.Missing + c.Limited + c.Shed
}

// Span is a Sketch without the empty buckets at its start.
type Span struct {
	From    int      `json:"o,omitempty"`
	Buckets []uint32 `json:"b,omitempty"`
}

// SpanOf copies the part of counts, indexed by Bucket, that is not empty.
func SpanOf(counts []uint32) Span {
	from, to := 0, min(len(counts), SketchBuckets)
	for to > 0 && counts[to-1] == 0 {
		to--
	}
	for from < to && counts[from] == 0 {
		from++
	}
	if from == to {
		return Span{}
	}
	return Span{From: from, Buckets: slices.Clone(counts[from:to])}
}

// Merge adds b's counts. What lies outside of the buckets, which only a hostile sender makes, is ignored.
func (s *Span) Merge(b Span) {
	if b = b.inside(); len(b.Buckets) == 0 {
		return
	}
	a := s.inside()
	if len(a.Buckets) == 0 {
		*s = Span{From: b.From, Buckets: slices.Clone(b.Buckets)}
		return
	}
	from, to := min(a.From, b.From), max(a.From+len(a.Buckets), b.From+len(b.Buckets))
	sum := make([]uint32, to-from)
	copy(sum[a.From-from:], a.Buckets)
	for i, n := range b.Buckets {
		sum[b.From-from+i] += n
	}
	*s = Span{From: from, Buckets: sum}
}

// inside cuts away what lies outside of the buckets of a sketch.
func (s Span) inside() Span {
	if s.From < 0 || s.From >= SketchBuckets {
		return Span{}
	}
	s.Buckets = s.Buckets[:min(len(s.Buckets), SketchBuckets-s.From)]
	return s
}

// Count is the number of durations seen.
func (s Span) Count() uint64 { return Sketch{Buckets: s.Buckets}.Count() }

// Above is the number of durations in buckets after the given one.
func (s Span) Above(bucket int) uint64 {
	s = s.inside()
	return Span{Buckets: s.Buckets[min(max(bucket+1-s.From, 0), len(s.Buckets)):]}.Count()
}

// Largest keeps the n strata with the most requests; if there are more, the last place is Other's, which takes in the rest.
// It reorders all; the result is sorted by id.
func Largest(all []Stratum, n int) []Stratum {
	return Heaviest(all, n, func(s Stratum) float64 { return float64(s.Requests) })
}

// Heaviest is Largest by another measure.
func Heaviest(all []Stratum, n int, weight func(Stratum) float64) []Stratum {
	if len(all) > n {
		slices.SortFunc(all, func(a, b Stratum) int { return cmp.Or(cmp.Compare(weight(b), weight(a)), cmp.Compare(a.ID, b.ID)) })
		all = fold(all, n-1)
	}
	slices.SortFunc(all, func(a, b Stratum) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// fold keeps the first n strata and merges those after them into Other, the last of the result.
func fold(all []Stratum, n int) []Stratum {
	out, rest := make([]Stratum, 0, n+1), Stratum{ID: Other}
	for _, s := range all {
		if s.ID != Other && len(out) < n {
			out = append(out, s)
		} else {
			rest.Add(s)
		}
	}
	return append(out, rest)
}

// bound cuts the strata of a report down to what may be sent.
func (n *Node) bound() error {
	for most := MaxStrata; most >= 1; most /= 2 {
		n.Services, n.Hosts = Largest(slices.Clone(n.Services), most), Largest(slices.Clone(n.Hosts), most)
		raw, err := json.Marshal([][]Stratum{n.Services, n.Hosts})
		if err != nil || len(raw) <= MaxBytes {
			return err
		}
	}
	n.Services, n.Hosts = nil, nil // ids of many kilobytes: no author's document has them
	return nil
}

// fits says that the strata of a received report keep the bounds.
func (n *Node) fits() bool {
	for _, all := range [][]Stratum{n.Services, n.Hosts} {
		if len(all) > MaxStrata {
			return false
		}
		for _, s := range all {
			if len(s.Warm.Buckets) > SketchBuckets || s.ID == "" || len(s.ID) > 512 {
				return false
			}
		}
	}
	return true
}
