package report

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBucketHoldsItsDurationWithinAnEighth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(30*time.Minute)).Draw(t, "d")).Truncate(time.Microsecond)
		i := Bucket(d)
		upper := Upper(i)
		if d >= upper {
			t.Fatalf("%v is not below the bound %v of bucket %d", d, upper, i)
		}
		if i > 0 && d < Upper(i-1) {
			t.Fatalf("%v belongs into bucket %d already", d, i-1)
		}
		if slack := upper - d; slack > d/8+time.Microsecond {
			t.Fatalf("bucket %d is %v too wide for %v", i, slack, d)
		}
	})
}

func TestMergedSketchIsTheSumOfItsParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ds := rapid.SliceOf(rapid.Int64Range(0, 1e10)).Draw(t, "ds")
		var whole, left, right Sketch
		for i, d := range ds {
			b := Bucket(time.Duration(d))
			whole.Add(b, 1)
			if i%2 == 0 {
				left.Add(b, 1)
			} else {
				right.Add(b, 1)
			}
		}
		left.Merge(right)
		for _, q := range []float64{0.01, 0.5, 0.99, 1} {
			if left.Quantile(q) != whole.Quantile(q) {
				t.Fatalf("quantile %v: %v after merging, %v at once", q, left.Quantile(q), whole.Quantile(q))
			}
		}
	})
}

func TestHostileSketchStaysBounded(t *testing.T) {
	var s Sketch
	s.Merge(Sketch{Buckets: make([]uint32, 1<<16)})
	s.Add(1<<20, 1)
	s.Add(Bucket(1<<62), 1)
	if len(s.Buckets) > SketchBuckets {
		t.Fatalf("sketch grew to %d buckets", len(s.Buckets))
	}
}
