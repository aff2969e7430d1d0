package record

import (
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/retry"
)

func TestATrailKeepsMainAttemptsAndRivalsApart(t *testing.T) {
	var tr Trail
	tr.Begin()
	tr.End(Attempt{Result: retry.ConnectFailed, Status: 200})
	tr.Begin()
	tr.Challenge()
	if tr.Begun() != 3 {
		t.Errorf("%d have begun", tr.Begun())
	}
	tr.End(Attempt{Result: retry.Answered, Status: 503})
	tr.TakeOver()
	tr.End(Attempt{Result: retry.Answered, Status: 200})
	want := []Attempt{{Number: 1, Result: retry.ConnectFailed}, {Number: 2, Status: 503}, {Number: 3, Hedge: true, Status: 200}}
	for i, a := range tr.Ended() {
		if a != want[i] {
			t.Errorf("%d: %+v, want %+v", i, a, want[i])
		}
	}
	for range 2 * mostAttempts {
		tr.Begin()
		tr.End(Attempt{})
	}
	if n := len(tr.Ended()); n != mostAttempts {
		t.Errorf("%d are kept", n)
	}
	if tr.Reset(); len(tr.Ended()) != 0 || tr.Begun() != 0 {
		t.Error("a trail outlives its exchange")
	}
}

func TestAWatchCountsWaitsAndNotWhatIsBetweenSteps(t *testing.T) {
	at := func(ms int) func() time.Time {
		return func() time.Time { return time.Unix(1, 0).Add(time.Duration(ms) * time.Millisecond) }
	}
	w := Watch{On: true}
	w.Start(at(0))
	w.Stop(Route, false, at(1))
	w.Start(at(5))
	w.Stop(Auth, true, at(6))
	w.Start(at(8))
	w.Stop(Auth, false, at(9))
	if want := [Parts]time.Duration{time.Millisecond, 4 * time.Millisecond, 0}; w.Parts != want {
		t.Errorf("%v, want %v", w.Parts, want)
	}
	var off Watch
	off.Start(nil)
	if off.Stop(Auth, false, nil); off != (Watch{}) {
		t.Error("one that is off has measured")
	}
}
