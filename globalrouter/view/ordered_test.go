package view

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/cells"
)

// A router that sees every cell alive withdraws what standing orders alone withdraw: whoever goes by Ordered says the same.
func TestOrdersAloneWithdrawWhatARouterWithdraws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newScript(t, 3)
		plan := *s.in.Plan
		plan.Cells = append(plan.Cells[:0:0], plan.Cells...)
		s.in.Plan = &plan
		for i := range rapid.IntRange(0, 4).Draw(t, "orders") {
			e := cells.Evacuation{
				Form: 1, Cell: plan.Cells[rapid.IntRange(0, len(plan.Cells)-1).Draw(t, "cell")].ID, Reason: "r",
				Started: s.now.Add(time.Duration(i-rapid.IntRange(0, 60).Draw(t, "age")) * time.Second).Truncate(time.Millisecond),
				Over:    time.Duration(rapid.IntRange(0, 60).Draw(t, "over")) * time.Second, Expires: s.now.Add(time.Hour),
			}
			s.in.Orders = append(s.in.Orders, e)
			if rapid.IntRange(0, 2).Draw(t, "followed") == 0 {
				for c := range plan.Cells {
					if plan.Cells[c].ID == e.Cell {
						plan.Cells[c].Evacuation = e.Started.UnixMilli()
					}
				}
			}
		}
		s.wait(time.Duration(rapid.IntRange(0, 90).Draw(t, "wait")) * time.Second)
		s.state = Step(s.state, s.in, s.cfg, s.now)
		want, wantNone := s.state.Withdrawals(&plan)
		got, none := Ordered(&plan, s.in.Orders, s.now)
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("%s: %+v, the router %+v", plan.Cells[i].ID, got[i], want[i])
			}
		}
		if none != wantNone {
			t.Fatalf("none: %v, %v", none, wantNone)
		}
	})
}

func TestOrdersThatHaveEndedTakeNothing(t *testing.T) {
	s := newScript(t, 2)
	e := cells.Evacuation{Form: 1, Cell: s.in.Plan.Cells[0].ID, Started: s.now.Add(-time.Hour), Expires: s.now.Add(time.Hour)}
	if by, none := Ordered(s.in.Plan, []cells.Evacuation{e}, s.now); none || by[0].Share != 256 || !by[0].Closed || by[1].Share != 0 {
		t.Fatalf("standing: %+v, %v", by, none)
	}
	restored, expired, withdrawn := e, e, e
	restored.Restored, expired.Expires, withdrawn.Withdrawn = s.now.Add(-time.Second), s.now, true
	for _, e := range []cells.Evacuation{restored, expired, withdrawn} {
		if by, none := Ordered(s.in.Plan, []cells.Evacuation{e}, s.now); !none {
			t.Errorf("%+v takes %+v", e, by[0])
		}
	}
}
