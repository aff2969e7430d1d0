package engine

import (
	"testing"
	"time"
)

func TestAnAllowanceIsEarnedAndNeverHoarded(t *testing.T) {
	now := time.Unix(1e9, 0)
	a := newAllowance(1000, 100, now)
	a.earn(5000)
	if !a.spend(1000, now) || a.spend(1, now) {
		t.Fatal("it is not 1000")
	}
	a = newAllowance(1000, 100, now)
	if !a.spend(1000, now) || !a.spend(100, now.Add(time.Second)) || a.spend(1, now.Add(time.Second)) {
		t.Fatal("a second is not 100")
	}
	a = newAllowance(1000, 100, now)
	if !a.spend(900, now) || !a.spend(1000, now.Add(24*time.Hour)) || a.spend(1, now.Add(24*time.Hour)) {
		t.Fatal("a day is not 1000")
	}
	a = newAllowance(1000, 0, now)
	for range 1000 { // whoever earns as much as it spends never comes to an end
		if !a.spend(900, now) {
			t.Fatal("it has ended")
		}
		a.earn(900)
	}
}
