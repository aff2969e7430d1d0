package rollout

import "testing"

// One beat of the leader over 450 nodes in the middle of a bake.
func BenchmarkStep450Nodes(b *testing.B) {
	w := newWorld(b)
	w.build(3, 10, 15)
	for _, line := range []string{"config bake=10s", "rps 100", "publish", "until live", "publish", "until baking rest"} {
		w.do(line)
	}
	b.ReportAllocs()
	for b.Loop() {
		if s := Step(w.state, w.ev, w.cfg, w.now); s.Phase != Baking {
			b.Fatal(s.Phase)
		}
	}
	stored, err := Encode(w.state)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(len(stored)), "B/state")
}
