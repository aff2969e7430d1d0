package shed

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/cells"
)

var start = time.Unix(1e9, 0)

func TestTheLowestClassIsShedFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		level, random := Level(rapid.Uint32Range(0, 3000).Draw(t, "level")), rapid.Uint64().Draw(t, "random")
		for c := Background; c < Critical; c++ {
			if Sheds(level, c+1, random) && !Sheds(level, c, random) {
				t.Fatalf("at %d class %d is shed, class %d is not", level, c+1, c)
			}
			if level > Level(c+1)*1000 && !Sheds(level, c, random) {
				t.Fatalf("at %d, above class %d, some of it is served", level, c)
			}
		}
		if Sheds(0, Background, random) {
			t.Fatal("shed without need")
		}
	})
	if Of(cells.PriorityBackground) != Background || Of("") != Normal || Of(cells.PriorityNormal) != Normal || Of(cells.PriorityCritical) != Critical {
		t.Fatal("a priority has another class")
	}
}

func TestALimitKeepsRoomForHigherClasses(t *testing.T) {
	l := Limit{Rule: Rule{Most: 100}}
	fill := func(c Class) (n int) {
		for l.Enter(c) {
			n++
		}
		return n
	}
	if n := fill(Background); n != 70 {
		t.Fatalf("background has %d of 100", n)
	}
	if n := fill(Normal); n != 20 {
		t.Fatalf("normal has %d beyond background", n)
	}
	if n := fill(Critical); n != 10 || l.Under() != 100 {
		t.Fatalf("critical has %d, %d under way", n, l.Under())
	}
	for range 40 {
		l.Leave(time.Millisecond, true, start)
	}
	if l.Enter(Background); l.Under() != 61 || l.Shed(Background) != 1 || l.Shed(Normal) != 1 || l.Shed(Critical) != 1 {
		t.Fatalf("%d under way, shed %d %d %d", l.Under(), l.Shed(Background), l.Shed(Normal), l.Shed(Critical))
	}
	one := Limit{Rule: Rule{Most: 1}}
	if !one.Enter(Background) {
		t.Fatal("a limit of one lets nobody in")
	}
}

// backend serves so many at a time, each for 10 ms; what comes more queues, as far as it pays for it in latency.
type backend struct {
	seats int
	busy  []time.Time // when each seat is free
}

func (b *backend) serve(now time.Time) (done time.Time) {
	first := 0
	for i := range b.busy {
		if b.busy[i].Before(b.busy[first]) {
			first = i
		}
	}
	begin := now
	if b.busy[first].After(now) {
		begin = b.busy[first]
	}
	b.busy[first] = begin.Add(10 * time.Millisecond)
	return b.busy[first]
}

// under plays load on a limit in front of a backend, in steps of a millisecond, and says what came of the last half.
func under(l *Limit, seats, perMS int, lasts time.Duration) (served, offered int, worst time.Duration) {
	b := &backend{seats: seats, busy: make([]time.Time, seats)}
	type call struct{ begin, end time.Time }
	var open []call
	for now := start; now.Sub(start) < lasts; now = now.Add(time.Millisecond) {
		rest := open[:0]
		for _, c := range open {
			if c.end.After(now) {
				rest = append(rest, c)
				continue
			}
			l.Leave(c.end.Sub(c.begin), true, now)
		}
		open = rest
		late := now.Sub(start) > lasts/2
		for range perMS {
			if late {
				offered++
			}
			if !l.Enter(Critical) {
				continue
			}
			end := b.serve(now)
			open = append(open, call{now, end})
			if late {
				served++
				worst = max(worst, end.Sub(now))
			}
		}
	}
	return served, offered, worst
}

// At three times what the backend can do the adaptive limit keeps it busy, and its latency near what it is without a queue;
// below that it hinders nobody.
func TestTheAdaptiveLimitFindsWhatTheUpstreamCanDo(t *testing.T) {
	l := &Limit{Rule: Rule{Adaptive: true, Least: 5, Most: 1000}}
	served, _, worst := under(l, 40, 12, 30*time.Second) // 40 seats do 4 in a millisecond
	if can := 15_000 * 4; served < can*9/10 || worst > 40*time.Millisecond {
		t.Errorf("served %d of %d that the backend can do, the slowest in %v, bound %d", served, can, worst, l.Bound())
	}
	l = &Limit{Rule: Rule{Adaptive: true, Least: 5, Most: 1000}}
	if served, offered, worst := under(l, 40, 3, 30*time.Second); served*1000 < offered*999 || worst > 20*time.Millisecond {
		t.Errorf("below its capacity %d of %d are served, the slowest in %v, bound %d", served, offered, worst, l.Bound())
	}
}

func TestFailuresAndIdleTimesMoveTheBound(t *testing.T) {
	r := Rule{Adaptive: true, Least: 10, Most: 200}
	if b := next(100, 1, 0.5, 100, r); b >= 100 || b < 95 {
		t.Errorf("half failing: %v", b)
	}
	if b := next(100, 1, 0, 10, r); b != 100 {
		t.Errorf("unused: %v", b)
	}
	if b := next(100, 1, 0, 90, r); b <= 100 {
		t.Errorf("used and quick: %v", b)
	}
	if b := next(100, 10, 0, 90, r); b >= 100 {
		t.Errorf("ten times as slow: %v", b)
	}
	if next(10, 10, 0, 10, r) != 10 || next(200, 1, 0, 200, r) != 200 {
		t.Error("the bound leaves its bounds")
	}
}

// node is a core that serves exchanges in order; what waits is its lag.
type node struct {
	served, offered [Classes]int
	queue           time.Duration
}

// I10: three times as much as the node can do. Critical is served, background is shed first, and the node comes through.
func TestOverloadThreefoldServesTheCritical(t *testing.T) {
	const (
		cost     = time.Millisecond      // of an exchange
		shedCost = 20 * time.Microsecond // of one that is shed
	)
	r, g, n := rand.New(rand.NewPCG(1, 2)), &Guard{}, &node{}
	level, used := Level(0), time.Duration(0)
	normalShedBefore := 0
	for tick := range 600 { // a minute, in steps of 100 ms
		for range 300 { // 3,000/s at 1,000/s
			class := Normal
			switch r.IntN(10) {
			case 0, 1:
				class = Critical
			case 2, 3, 4, 5:
				class = Background
			}
			late := tick >= 30
			if late {
				n.offered[class]++
			}
			if Sheds(level, class, r.Uint64()) {
				if n.queue += shedCost; class == Normal && level <= 1000 {
					normalShedBefore++
				}
				continue
			}
			if n.queue += cost; late {
				n.served[class]++
			}
		}
		used = min(n.queue, 100*time.Millisecond)
		n.queue -= used
		level = g.Step(Gauges{CPU: used.Seconds() * 10, Lag: n.queue})
		if tick >= 100 && n.queue > 400*time.Millisecond {
			t.Fatalf("after %d ticks the node is %v behind, at level %d", tick, n.queue, level)
		}
	}
	if c := n.served[Critical]; c*1000 < n.offered[Critical]*999 {
		t.Errorf("%d of %d critical ones are served", c, n.offered[Critical])
	}
	if normalShedBefore != 0 {
		t.Errorf("%d normal ones were shed before the last background one", normalShedBefore)
	}
	background := float64(n.served[Background]) / float64(n.offered[Background])
	normal := float64(n.served[Normal]) / float64(n.offered[Normal])
	if background > 0.05 || normal < 0.24 {
		t.Errorf("background %.2f, normal %.2f are served; there is room for all critical and 0.30 of normal", background, normal)
	}
	for range 200 {
		level = g.Step(Gauges{CPU: 0.3})
	}
	if level != 0 {
		t.Errorf("20 s after the overload the level is %d", level)
	}
}

func TestABusyNodeIsNotOverloaded(t *testing.T) {
	g := &Guard{}
	for range 100 {
		if l := g.Step(Gauges{CPU: 1, Lag: 2 * time.Millisecond, Memory: 0.5, Pools: 0.5}); l != 0 {
			t.Fatalf("level %d at full CPU without lag", l)
		}
	}
	for range 100 {
		if l := g.Step(Gauges{CPU: 0.2, Lag: time.Second}); l != 0 {
			t.Fatalf("level %d for a pause of an idle node", l)
		}
	}
}

func TestMemoryAndPoolsAreShedForInSteps(t *testing.T) {
	for what, gauges := range map[string]func(float64) Gauges{
		"memory": func(v float64) Gauges { return Gauges{Memory: v} },
		"pools":  func(v float64) Gauges { return Gauges{Pools: v} },
	} {
		g := &Guard{}
		for range 200 {
			g.Step(gauges(0.95))
		}
		if l := g.Step(gauges(0.95)); l != 2000 {
			t.Errorf("%s at 95%%: level %d", what, l)
		}
		for range 200 {
			g.Step(gauges(0.99))
		}
		if l := g.Step(gauges(0.99)); l != 3000 {
			t.Errorf("%s at 99%%: level %d", what, l)
		}
		if l := g.Step(gauges(0.95)); l != 2000 {
			t.Errorf("%s at 95%% again: level %d", what, l)
		}
	}
}

// Between its goal and far below it a node is well: it may stay there for days, with what no shedding makes less, such as
// connections at rest.
func TestANodeThatIsBelowItsGoalTakesMoreAgain(t *testing.T) {
	for what, gauges := range map[string]Gauges{
		"memory": {Memory: 0.85}, "pools": {Pools: 0.85}, "lag": {CPU: 0.9, Lag: 18 * time.Millisecond},
	} {
		g := &Guard{}
		for range 200 {
			g.Step(Gauges{Memory: 0.95})
		}
		level := Level(0)
		for range 300 { // half a minute
			level = g.Step(gauges)
		}
		if level != 0 {
			t.Errorf("%s: level %d", what, level)
		}
	}
}

func TestNothingAllocates(t *testing.T) {
	l := &Limit{Rule: Rule{Adaptive: true, Least: 5, Most: 100}}
	now := start
	if n := testing.AllocsPerRun(1000, func() {
		now = now.Add(10 * time.Millisecond)
		if l.Enter(Normal) {
			l.Leave(time.Millisecond, true, now)
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
