package retry

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Unix(1e9, 0)

var all = Rule{Attempts: 2, OnConnectFailure: true, OnReset: true, On502: true, On503: true, On504: true}

func TestAPostWhoseBytesLeftIsNeverRepeated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := Machine{Rule: all, Replayable: rapid.Bool().Draw(t, "replayable"), Budget: new(Budget)}
		for range 4 {
			a := Attempt{Result: Result(rapid.IntRange(0, int(Fatal)).Draw(t, "result")), Status: 503, Sent: rapid.Bool().Draw(t, "sent")}
			if m.Again(a, start) && a.Sent {
				t.Fatalf("%+v was repeated", a)
			}
		}
	})
}

func TestAttemptsNeverPassTheRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rule := all
		rule.Attempts = rapid.IntRange(0, 2).Draw(t, "attempts")
		m, retries := Machine{Rule: rule, Reads: true, Idempotent: true, Replayable: true, Budget: new(Budget)}, 0
		for range 8 {
			if m.Again(Attempt{Result: Result(rapid.IntRange(0, int(Fatal)).Draw(t, "result")), Status: 503}, start) {
				retries++
			}
		}
		if retries > rule.Attempts+1 {
			t.Fatalf("%d retries with %d attempts and one stale connection allowed", retries, rule.Attempts)
		}
	})
}

func TestConditionsAreByName(t *testing.T) {
	for name, c := range map[string]struct {
		rule Rule
		a    Attempt
		want bool
	}{
		"connect failure named":     {Rule{Attempts: 1, OnConnectFailure: true}, Attempt{Result: ConnectFailed}, true},
		"connect failure not named": {Rule{Attempts: 1, OnReset: true}, Attempt{Result: ConnectFailed}, false},
		"reset named":               {Rule{Attempts: 1, OnReset: true}, Attempt{Result: Reset, Sent: true}, true},
		"stale needs no rule":       {Rule{}, Attempt{Result: Stale, Sent: true}, true},
		"502 is not 503":            {Rule{Attempts: 1, On503: true}, Attempt{Result: Answered, Status: 502}, false},
		"503 named":                 {Rule{Attempts: 1, On503: true}, Attempt{Result: Answered, Status: 503, Sent: true}, true},
		"200 never":                 {all, Attempt{Result: Answered, Status: 200}, false},
		"timeout never":             {all, Attempt{Result: TimedOut, Sent: true}, false},
		"fatal never":               {all, Attempt{Result: Fatal}, false},
	} {
		m := Machine{Rule: c.rule, Reads: true, Idempotent: true, Replayable: true, Budget: new(Budget)}
		if got := m.Again(c.a, start); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestBudgetIsATenthOfOriginalsOrThreeASecond(t *testing.T) {
	b, now, retries := new(Budget), start, 0
	for i := range 40000 {
		if i%4 == 0 {
			now = now.Add(time.Millisecond)
		}
		b.Original(now)
		if b.Take(now) {
			retries++
		}
	}
	if retries < 3900 || retries > 4000 {
		t.Fatalf("%d retries for 40000 originals", retries)
	}
	b, now, retries = new(Budget), start, 0
	for range 600 {
		now = now.Add(100 * time.Millisecond)
		b.Original(now)
		if b.Take(now) {
			retries++
		}
	}
	if retries < 170 || retries > 190 {
		t.Fatalf("the floor gave %d retries in a minute, not 3 a second", retries)
	}
}

// Hedges have a twentieth of the originals, without a floor, and what they take is gone for retries.
func TestHedgesAreFivePercentInsideTheBudget(t *testing.T) {
	b, hedges, retries := new(Budget), 0, 0
	for range 19 {
		if b.Original(start); b.Hedge(start) {
			t.Fatal("a hedge within twenty requests")
		}
	}
	for range 4000 - 19 {
		if b.Original(start); b.Hedge(start) {
			hedges++
		}
	}
	for b.Take(start) {
		retries++
	}
	if hedges != 200 || retries != 200 || b.Hedge(start) {
		t.Fatalf("%d hedges, then %d retries for 4000 originals", hedges, retries)
	}
	if (*Budget)(nil).Hedge(start) {
		t.Fatal("no budget gave a hedge")
	}
}

// A write with a key that the upstream knows it by is repeated when it may not have arrived, never for what was answered.
func TestAWriteWithAKeyIsRepeatedUnlessItWasAnswered(t *testing.T) {
	for a, want := range map[Attempt]bool{
		{Result: Reset, Sent: true}: true, {Result: ConnectFailed}: true, {Result: Answered, Status: 503, Sent: true}: false, {Result: TimedOut, Sent: true}: false,
	} {
		m := Machine{Rule: all, Idempotent: true, Replayable: true, Budget: new(Budget)}
		if got := m.Again(a, start); got != want {
			t.Errorf("%+v: %v", a, got)
		}
	}
}
