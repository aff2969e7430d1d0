package cells

import (
	"testing"
	"time"
)

func TestStateFollowsTheOrderThroughItsLife(t *testing.T) {
	t0 := time.Unix(1000, 0)
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	standing := Evacuation{Started: t0, Over: 60 * time.Second, Expires: at(600)}
	restored := standing
	restored.Restored = at(100)
	for _, c := range []struct {
		order Evacuation
		at    int
		want  State
	}{
		{standing, 0, Evacuating}, {standing, 59, Evacuating}, {standing, 60, Evacuated}, {standing, 599, Evacuated},
		{standing, 600, Restoring}, {standing, 629, Restoring}, {standing, 630, Active},
		{restored, 100, Restoring}, {restored, 129, Restoring}, {restored, 130, Active}, {restored, 700, Active},
	} {
		if got := c.order.State(at(c.at), 30*time.Second); got != c.want {
			t.Errorf("at %d s (restored %v): %s, want %s", c.at, !c.order.Restored.IsZero(), got, c.want)
		}
	}
}

// Whoever hears of an order from a clock that is ahead acts on it: nobody orders ahead of time.
func TestAnOrderOfAClockThatIsAheadHasBegun(t *testing.T) {
	t0 := time.Unix(1000, 0)
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	for over, want := range map[int]State{0: Evacuated, 60: Evacuating} {
		e := Evacuation{Started: at(300), Over: time.Duration(over) * time.Second, Expires: at(900)}
		if got := e.State(t0, 30*time.Second); got != want || e.Age(t0) != 0 {
			t.Errorf("over %d s: %s at the age of %v, want %s", over, got, e.Age(t0), want)
		}
	}
}

func TestIdsNameTheirRegionAndCell(t *testing.T) {
	n := NodeID("eu-west/a/1")
	if n.Region() != "eu-west" || n.Cell() != "eu-west/a" || n.Cell().Region() != "eu-west" {
		t.Fatalf("%s stands in %s, %s", n, n.Region(), n.Cell())
	}
}
