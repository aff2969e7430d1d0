package capacity

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/cells"
)

func load(cell cells.CellID, limit, load cells.MilliRPS) Load {
	return Load{Cell: cell, Limit: limit, Load: load}
}

func TestHeadroomIsTheFreePartOfTheTarget(t *testing.T) {
	for _, c := range []struct {
		load cells.MilliRPS
		want float64
	}{{0, 1}, {406_000, 0.42}, {350_000, 0.5}, {700_000, 0}, {900_000, 0}, {5_000_000, 0}} {
		got, ok := Headroom(load("e/a", 1_000_000, c.load), Config{})
		if !ok || math.Abs(got-c.want) > 0.005 {
			t.Errorf("load %d: %.3f, %v; want %.2f", c.load, got, ok, c.want)
		}
	}
}

func TestStaleAndAbsurdFiguresProveNoRoom(t *testing.T) {
	good := Load{Cell: "e/a", Limit: 1000, Load: 10}
	for name, spoil := range map[string]func(*Load){
		"stale":           func(l *Load) { l.Age = 31 * time.Second },
		"never":           func(l *Load) { l.Age = -1 },
		"negative load":   func(l *Load) { l.Load = -5 },
		"absurd load":     func(l *Load) { l.Load = math.MaxInt64 },
		"no limit":        func(l *Load) { l.Limit = 0 },
		"negative limit":  func(l *Load) { l.Limit = math.MinInt64 },
		"limit too large": func(l *Load) { l.Limit = math.MaxInt64 },
	} {
		bad := good
		spoil(&bad)
		if h, ok := Headroom(bad, Config{}); ok || h != 0 {
			t.Errorf("%s: headroom %v, %v", name, h, ok)
		}
		sum := Sum([]Load{good, bad}, Config{})
		if sum.Untrusted != 1 || sum.Room != 690 {
			t.Errorf("%s: %+v", name, sum)
		}
	}
}

func TestOneCellsExcessDoesNotEatAnothersRoom(t *testing.T) {
	sum := Sum([]Load{load("e/a", 1000, 1200), load("e/b", 1000, 100), {Cell: "e/c", Limit: 1000, Load: 50, Out: true}}, Config{})
	if h, ok := sum.Headroom(); !ok || sum.Room != 600 || sum.Load != 1350 || sum.Out != 1 || math.Abs(h-600.0/1400) > 1e-9 {
		t.Fatalf("%+v %v", sum, h)
	}
	if _, ok := Sum(nil, Config{}).Headroom(); ok {
		t.Fatal("nothing has headroom")
	}
}

func TestLossOfARegionIsCarriedOrNamed(t *testing.T) {
	world := []Load{load("e/a", 1000, 400), load("e/b", 1000, 400), load("u/a", 1000, 400), load("u/b", 1000, 400), load("p/a", 1000, 100)}
	out := Fail(world, Region("e"), Config{})
	if !out.Fits() || out.Displaced != 800 || out.After.Room != 1200-800 || out.After.Load != 1700 {
		t.Fatalf("%+v", out)
	}
	world[4].Age = time.Hour // p/a proves nothing any more
	if out = Fail(world, Region("e"), Config{}); out.Fits() || out.Unplaced != 200 || out.Classes[0] != (Shortage{cells.Public, 200}) {
		t.Fatalf("%+v", out)
	}
	if out = Fail(world, Cell("p/a"), Config{}); out.Uncertain != 1 || out.Displaced != 100 {
		t.Fatalf("held demand is lost: %+v", out)
	}
}

func TestClassesDoNotMix(t *testing.T) {
	world := []Load{load("e/a", 1000, 400), load("u/a", 1000, 0), load("u/p", 1000, 600)}
	world[0].Class, world[2].Class = cells.Partner, cells.Partner
	out := Fail(world, Cell("e/a"), Config{})
	if out.Unplaced != 300 || len(out.Classes) != 1 || out.Classes[0].Class != cells.Partner {
		t.Fatalf("partner load went to public cells: %+v", out)
	}
}

func TestSurveyHasEveryCellAndRegion(t *testing.T) {
	got := ""
	for _, c := range Survey([]Load{load("e/a", 1, 0), load("e/b", 1, 0), load("u/a", 1, 0)}, Config{}) {
		got += fmt.Sprintf("%s:%s ", c.Region, c.Cell)
	}
	if got != "e:e/a e: e:e/b u:u/a u: " {
		t.Fatal(got)
	}
}

func TestPropertyLoadIsConservedAndNoCellPassesItsTarget(t *testing.T) {
	any := rapid.Custom(func(t *rapid.T) Load {
		return Load{
			Cell:  cells.CellID(fmt.Sprintf("%s/%d", rapid.SampledFrom([]string{"e", "u", "p"}).Draw(t, "region"), rapid.IntRange(0, 3).Draw(t, "cell"))),
			Class: rapid.SampledFrom([]cells.Class{"", cells.Partner}).Draw(t, "class"),
			Limit: cells.MilliRPS(rapid.Int64().Draw(t, "limit")), Load: cells.MilliRPS(rapid.Int64().Draw(t, "load")),
			Age: time.Duration(rapid.IntRange(-1, 40).Draw(t, "age")) * time.Second, Out: rapid.Bool().Draw(t, "out"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.SliceOfN(any, 0, 12).Draw(t, "world")
		before := Sum(world, Config{})
		for _, c := range Survey(world, Config{}) {
			o := c.Outcome
			if o.After.Load+o.Unplaced != before.Load || o.Unplaced > o.Displaced || o.After.Room < 0 || o.Unplaced < 0 {
				t.Fatalf("%+v of %+v", o, before)
			}
			if h, _ := o.After.Headroom(); h < 0 || h > 1 {
				t.Fatalf("headroom %v", h)
			}
		}
	})
}
