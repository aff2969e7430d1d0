package report

import (
	"math/bits"
	"time"
)

// Sketch is a log-linear histogram of durations: 8 sub-buckets per power of two of microseconds, relative error ≤ 12.5%.
// The zero value is empty. Buckets beyond the last non-zero one are not kept.
type Sketch struct {
	Buckets []uint32 `json:"b,omitempty"`
}

const (
	subBits = 3
	// SketchBuckets bounds a sketch: durations of about 2^31 µs (36 minutes) and more share the last bucket.
	SketchBuckets = (32 - subBits + 1) << subBits
)

// Bucket is the index that d falls into, 0 ≤ index < SketchBuckets. Negative durations count as 0.
func Bucket(d time.Duration) int {
	us := uint64(max(d, 0) / time.Microsecond)
	if us < 1<<subBits {
		return int(us)
	}
	exp := bits.Len64(us) - 1 - subBits
	return min(exp<<subBits+int(us>>exp), SketchBuckets-1)
}

// Upper is the exclusive upper bound of a bucket.
func Upper(bucket int) time.Duration {
	if bucket < 1<<subBits {
		return time.Duration(bucket+1) * time.Microsecond
	}
	exp := bucket>>subBits - 1
	sub := bucket&(1<<subBits-1) + 1<<subBits
	return time.Duration((sub+1)<<exp) * time.Microsecond
}

// Add counts n durations of the bucket.
func (s *Sketch) Add(bucket int, n uint32) {
	if n == 0 || bucket < 0 || bucket >= SketchBuckets {
		return
	}
	for len(s.Buckets) <= bucket {
		s.Buckets = append(s.Buckets, 0)
	}
	s.Buckets[bucket] += n
}

// Merge adds b's counts; buckets beyond the bound, which only a hostile sender makes, are ignored.
func (s *Sketch) Merge(b Sketch) {
	for i, n := range b.Buckets {
		s.Add(i, n)
	}
}

// Count is the number of durations seen.
func (s Sketch) Count() uint64 {
	var n uint64
	for _, c := range s.Buckets {
		n += uint64(c)
	}
	return n
}

// Quantile is the upper bound of the bucket that holds the q-th duration, 0 < q ≤ 1; 0 when empty.
func (s Sketch) Quantile(q float64) time.Duration {
	total := s.Count()
	if total == 0 {
		return 0
	}
	rank := max(uint64(q*float64(total)+0.9999999), 1)
	var seen uint64
	for i, c := range s.Buckets {
		if seen += uint64(c); seen >= rank {
			return Upper(i)
		}
	}
	return Upper(len(s.Buckets) - 1)
}
