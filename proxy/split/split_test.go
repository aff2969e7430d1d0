package split

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func weights(w ...uint32) (int, func(int) uint32) {
	return len(w), func(i int) uint32 { return w[i] }
}

// A6: 5% means 5 ± 0.3%, and 10% keeps the first 5%.
func TestASmallShareIsExactAndGrowsByKeeping(t *testing.T) {
	n, five := weights(95, 5)
	_, ten := weights(90, 10)
	hits := 0
	for i := range 100000 {
		p := Point("split", fmt.Sprintf("user-%d", i))
		if Pick(n, five, p) == 1 {
			hits++
			if Pick(n, ten, p) != 1 {
				t.Fatal("someone of the first 5% left when it became 10%")
			}
		}
	}
	if hits < 4700 || hits > 5300 {
		t.Fatalf("%d of 100000 on the 5%% side", hits)
	}
}

func TestPointsNeverChange(t *testing.T) {
	if p := Point("r", "u"); p != 0xde5b2004c0c3ba43 {
		t.Fatalf("%#x: clients would change sides", p)
	}
}

func TestOnlyBranchesWithWeightArePicked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := rapid.SliceOfN(rapid.Uint32Range(0, 3), 1, 6).Draw(t, "weights")
		n, weight := weights(w...)
		i, some := Pick(n, weight, rapid.Uint64().Draw(t, "point")), false
		for _, v := range w {
			some = some || v > 0
		}
		if i < 0 || i >= n || some && w[i] == 0 {
			t.Fatalf("branch %d of %v", i, w)
		}
	})
}

func TestAPointGoesByWhoeverIsKnown(t *testing.T) {
	for _, c := range []struct{ sticky, user, consumer, by string }{
		{"user", "u", "c", "u"}, {"user", "", "c", "c"}, {"consumer", "u", "c", "c"}, {"consumer", "u", "", ""}, {"user", "", "", ""}, {"", "u", "c", ""},
	} {
		want := uint64(7)
		if c.by != "" {
			want = Point("r", c.by)
		}
		if got := PointOf("r", c.sticky, c.user, c.consumer, 7); got != want {
			t.Errorf("%+v: %d, want %d", c, got, want)
		}
	}
}
