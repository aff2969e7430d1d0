package report

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestSpanCountsAsItsSketchDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var whole, a, b [SketchBuckets]uint32
		for i, us := range rapid.SliceOf(rapid.Int64Range(0, 1e12)).Draw(t, "us") {
			at := Bucket(time.Duration(us) * time.Microsecond)
			whole[at]++
			if i%2 == 0 {
				a[at]++
			} else {
				b[at]++
			}
		}
		s := SpanOf(a[:])
		s.Merge(SpanOf(b[:]))
		bucket, above := rapid.IntRange(-1, SketchBuckets).Draw(t, "bucket"), uint64(0)
		for i, n := range whole {
			if i > bucket {
				above += uint64(n)
			}
		}
		if want := SpanOf(whole[:]); s.Count() != want.Count() || s.Above(bucket) != above || s.Above(-1) != s.Count() {
			t.Fatalf("%d of %d above %d, want %d", s.Above(bucket), s.Count(), bucket, above)
		}
	})
}

func TestHostileSpanStaysBounded(t *testing.T) {
	for _, bad := range []Span{{From: -5, Buckets: []uint32{1}}, {From: 1 << 40, Buckets: []uint32{1}}, {From: SketchBuckets - 1, Buckets: make([]uint32, 99)}} {
		s := Span{From: 7, Buckets: []uint32{1}}
		s.Merge(bad)
		bad.Merge(s)
		if bad.Above(3) > 1 || s.Count() != 1 || s.From < 0 || s.From+len(s.Buckets) > SketchBuckets {
			t.Errorf("%+v, %+v", s, bad)
		}
	}
}

func TestAReportOfAnySizeFitsItsBound(t *testing.T) {
	n := Node{ID: "a/b/1"}
	var requests uint64
	for i := range 1000 {
		s := Stratum{ID: strings.Repeat("x", 100) + fmt.Sprint(i), Counts: Counts{Requests: uint64(i)}}
		for b := range SketchBuckets {
			s.Warm.Merge(Span{From: b, Buckets: []uint32{1000}})
		}
		requests += uint64(i)
		n.Services = append(n.Services, s)
	}
	raw, err := EncodeNode(n)
	if err != nil || len(raw) > MaxBytes+1024 {
		t.Fatalf("%d bytes, %v", len(raw), err)
	}
	back, err := DecodeNode(raw)
	if err != nil || len(back.Services) < 8 {
		t.Fatalf("%d strata left, %v", len(back.Services), err)
	}
	for _, s := range back.Services {
		requests -= s.Requests
	}
	if requests != 0 || len(n.Services) != 1000 {
		t.Errorf("%d requests lost", requests)
	}
}
