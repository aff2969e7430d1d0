package health

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/report"
)

var (
	worldCells = []cells.CellID{"e/1", "u/1", "p/1"}
	vantages   = []cells.RegionID{"e", "u", "p"}
)

func brief() Config {
	return Config{Cells: worldCells, Vantages: vantages, DownAfter: 3 * time.Second, UpAfter: 3 * time.Second,
		FlapCap: 20 * time.Second, Fresh: 2 * time.Second}
}

func at(d time.Duration) time.Time { return time.Unix(1_000_000, 0).Add(d) }

// looks turns "e=+-." into what the prober of e saw.
func looks(t testing.TB, words []string, now time.Time) []Seen {
	var seen []Seen
	for _, w := range words {
		from, marks, ok := strings.Cut(w, "=")
		if !ok || len(marks) != len(worldCells) {
			t.Fatalf("bad look %q", w)
		}
		for i, m := range marks {
			if m != '.' {
				p := report.Probe{From: cells.RegionID(from), Cell: worldCells[i], OK: m == '+', Why: "refused"}
				seen = append(seen, Seen{Probe: p, Arrived: now})
			}
		}
	}
	return seen
}

func letters(s State) string {
	var b strings.Builder
	for _, c := range worldCells {
		b.WriteByte("?HD"[s.Status(c)])
	}
	return b.String()
}

func parseRange(t testing.TB, s string) (from, to time.Duration) {
	lo, hi, ranged := strings.Cut(s, "..")
	if !ranged {
		hi = lo
	}
	from, err := time.ParseDuration(lo)
	if err != nil {
		t.Fatal(err)
	}
	if to, err = time.ParseDuration(hi); err != nil {
		t.Fatal(err)
	}
	return from, to
}

func TestVerdictsScript(t *testing.T) {
	f, err := os.Open("testdata/verdicts.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var s State
	name, steps := "", 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if words[0] == "case" {
			s, name = State{}, words[1]
			continue
		}
		n := len(words)
		if n < 3 || words[n-2] != "->" {
			t.Fatalf("bad line %q", line)
		}
		from, to := parseRange(t, words[0])
		for now := from; now <= to; now += time.Second {
			s = Step(s, looks(t, words[1:n-2], at(now)), brief(), at(now))
		}
		steps++
		if got := letters(s); got != words[n-1] {
			t.Errorf("%s: %s: got %s; first cell: %s", name, strings.TrimSpace(line), got, s.Why("e/1"))
		}
	}
	if steps < 40 {
		t.Fatalf("only %d lines were run", steps)
	}
}

func TestStrangersNodesAndOldNewsDoNotCount(t *testing.T) {
	probe := func(from cells.RegionID, cell cells.CellID, node cells.NodeID) Seen {
		return Seen{Probe: report.Probe{From: from, Cell: cell, Node: node, OK: true}, Arrived: at(0)}
	}
	s := Step(State{}, []Seen{probe("x", "e/1", ""), probe("y", "e/1", ""), probe("e", "z/9", ""), probe("u", "e/1", "e/1/1")}, brief(), at(0))
	if letters(s) != "???" || len(s.Cells) != 3 || len(s.Cells["e/1"].Views) != 0 {
		t.Fatalf("%+v", s)
	}
	now := at(10 * time.Second)
	fresh := looks(t, []string{"e=+++", "u=+++"}, now)
	stale := looks(t, []string{"e=---", "u=---"}, at(9*time.Second))
	if s = Step(s, append(fresh, stale...), brief(), now); letters(s) != "HHH" || !s.Cells["e/1"].Views["e"].OK {
		t.Fatalf("an older look replaced a newer one: %+v", s.Cells["e/1"])
	}
}

func TestWhyNamesWhoSeesWhat(t *testing.T) {
	s := Step(State{}, looks(t, []string{"e=+++", "u=-++", "p=---"}, at(0)), brief(), at(0))
	want := "reached from e; not reached from u (refused); 1 vantage points reach nothing at all and do not count"
	if got := s.Why("e/1"); got != want {
		t.Fatalf("got %q", got)
	}
	if !s.Reached("e/1") || !s.Reached("p/1") || Step(s, nil, brief(), at(5*time.Second)).Reached("e/1") || Step(s, looks(t, []string{"e=-++"}, at(0)), brief(), at(0)).Reached("e/1") {
		t.Fatal("reached is what any vantage point reaches now")
	}
	if (State{}).Why("e/1") != "never probed" || (State{}).Status("e/1") != Unknown {
		t.Fatal("the zero state knows something")
	}
}

func TestOneVantagePointWorldJudgesWithTheOneItHas(t *testing.T) {
	cfg := brief()
	cfg.Cells, cfg.Vantages = []cells.CellID{"e/1", "e/2"}, []cells.RegionID{"e"}
	var s State
	for i := range 6 {
		now := at(time.Duration(i) * time.Second)
		s = Step(s, []Seen{{report.Probe{From: "e", Cell: "e/1", OK: true}, now}, {report.Probe{From: "e", Cell: "e/2"}, now}}, cfg, now)
	}
	if s.Status("e/1") != Healthy || s.Status("e/2") != Unhealthy {
		t.Fatalf("%+v", s)
	}
}

func TestClockJumpsJudgeNothing(t *testing.T) {
	all := []string{"e=+++", "u=+++", "p=+++"}
	s := Step(State{}, looks(t, all, at(0)), brief(), at(0))
	for _, jump := range []time.Duration{24 * time.Hour, -24 * time.Hour} {
		after := Step(s, nil, brief(), at(jump))
		if letters(after) != "???" {
			t.Fatalf("%v: %s", jump, letters(after))
		}
		if after = Step(after, looks(t, all, at(jump)), brief(), at(jump)); letters(after) != "HHH" {
			t.Fatalf("%v and back: %s %+v", jump, letters(after), after)
		}
	}
}

func TestStateSurvivesItsStoredForm(t *testing.T) {
	var s State
	for i := range 8 {
		now := at(time.Duration(i) * time.Second)
		s = Step(s, looks(t, []string{"e=+-+", "u=+-+", "p=+++"}, now), brief(), now)
	}
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var back State
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatal(err)
	}
	now := at(9 * time.Second)
	seen := looks(t, []string{"e=+-+", "u=+-+"}, now)
	a, b := Step(s, seen, brief(), now), Step(back, seen, brief(), now)
	ja, _ := json.Marshal(a)
	jb, _ := json.Marshal(b)
	if string(ja) != string(jb) || letters(a) != "HDH" {
		t.Fatalf("%s\n%s", ja, jb)
	}
}

// history draws rounds of arbitrary looks, a second apart.
func history(t *rapid.T) [][]string {
	look := rapid.SampledFrom([]rune("+++--."))
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) []string {
		var round []string
		for _, v := range vantages {
			round = append(round, fmt.Sprintf("%s=%s", v, string(rapid.SliceOfN(look, 3, 3).Draw(t, "marks"))))
		}
		return round
	}), 1, 60).Draw(t, "rounds")
}

func TestPropertyDeathNeedsAQuorumThatSees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s State
		failing := map[cells.CellID]int{} // seconds for which two vantage points failed to reach the cell
		for i, round := range history(t) {
			now := at(time.Duration(i) * time.Second)
			next := Step(s, looks(nil, round, now), brief(), now)
			for _, id := range worldCells {
				down, ownOK := 0, false
				for from, v := range next.Cells[id].Views {
					if now.Sub(v.At) <= brief().Fresh && !v.OK {
						down++
					}
					ownOK = ownOK || from == id.Region() && v.OK && now.Sub(v.At) <= brief().Fresh
				}
				if failing[id]++; down < 2 {
					failing[id] = 0
				}
				first := next.Cells[id].Verdict == Unhealthy && s.Cells[id].Verdict != Unhealthy
				if first && (failing[id] < 4 || ownOK) {
					t.Fatalf("round %d: %s died on %d s of evidence, own %v", i, id, failing[id]-1, ownOK)
				}
				if down == 0 && next.Status(id) == Unhealthy && s.Status(id) != Unhealthy {
					t.Fatalf("round %d: %s became unhealthy with nobody against it", i, id)
				}
			}
			s = next
		}
	})
}

func TestPropertyStepIsPureAndBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s State
		for i, round := range history(t) {
			now := at(time.Duration(i) * time.Second)
			before, _ := json.Marshal(s)
			a, b := Step(s, looks(nil, round, now), brief(), now), Step(s, looks(nil, round, now), brief(), now)
			if after, _ := json.Marshal(s); string(before) != string(after) || !reflect.DeepEqual(a, b) {
				t.Fatal("Step changed its input or answered twice differently")
			}
			for _, c := range a.Cells {
				if len(c.Views) > len(vantages) || len(a.Cells) > len(worldCells) {
					t.Fatal("state grows")
				}
			}
			s = a
		}
	})
}

// A cell that fails and recovers as the worst adversary would have it is handed back at most once per wait, and the wait grows.
func TestPropertyFlappingIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s State
		ups, seconds := 0, 400
		for i := range seconds {
			now := at(time.Duration(i) * time.Second)
			mark := "-"
			if s.Status("u/1") != Healthy { // recover whenever it is out, fail once it is back
				mark = "+"
			}
			if rapid.IntRange(0, 9).Draw(t, "noise") == 0 {
				mark = "."
			}
			round := []string{"e=+" + mark + "+", "u=+" + mark + "+", "p=+" + mark + "+"}
			next := Step(s, looks(nil, round, now), brief(), now)
			if s.Cells["u/1"].Verdict == Unhealthy && next.Cells["u/1"].Verdict == Healthy {
				ups++
			}
			s = next
		}
		if most := 4 + seconds/20; ups > most {
			t.Fatalf("%d recoveries in %d s, at most %d", ups, seconds, most)
		}
	})
}

func TestUpWaitDoublesToItsCap(t *testing.T) {
	cfg := Config{}.withDefaults()
	for flips, want := range []time.Duration{20, 40, 80, 160, 320, 640, 900, 900} {
		if got := cfg.upWait(flips); got != want*time.Second {
			t.Errorf("%d flips: %v", flips, got)
		}
	}
	if got := cfg.upWait(1 << 30); got != 900*time.Second {
		t.Errorf("many flips: %v", got)
	}
}
