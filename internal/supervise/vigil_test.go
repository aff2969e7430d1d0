package supervise

import (
	"errors"
	"testing"
	"time"
)

// Each probe is how late it began, how long it took, and whether it was answered; what is hung shows at the end.
func TestOnlyASupervisorThatRunsInTimeTakesAProcessForHung(t *testing.T) {
	type probe struct {
		late, took time.Duration // ms
		answered   bool
	}
	silent, refused, answered := probe{0, 600, false}, probe{0, 1, false}, probe{0, 3, true}
	for name, c := range map[string]struct {
		probes []probe
		hung   bool
	}{
		"silent":                               {[]probe{silent, silent, silent}, true},
		"refuses":                              {[]probe{refused, refused, refused}, true},
		"a little late":                        {[]probe{{90, 600, false}, {0, 690, false}, {90, 690, false}}, true},
		"two are not enough":                   {[]probe{silent, silent}, false},
		"answers the third":                    {[]probe{silent, silent, answered, silent, silent}, false},
		"answers late":                         {[]probe{silent, silent, {0, 900, true}, silent, silent}, false},
		"every tick is late":                   {[]probe{{300, 600, false}, {900, 600, false}, {2000, 600, false}, {150, 600, false}}, false},
		"every timeout is late":                {[]probe{{0, 950, false}, {0, 1600, false}, {0, 720, false}, {0, 950, false}}, false},
		"the machine stood still":              {[]probe{silent, silent, {60_000, 600, false}, silent, silent}, false},
		"silent after the machine stood still": {[]probe{silent, {60_000, 600, false}, silent, silent, silent}, true},
	} {
		now := time.Unix(1_000_000, 0)
		v, hung := newVigil(700*time.Millisecond, now), false
		for i, p := range c.probes {
			if hung {
				t.Fatalf("%s: hung before probe %d", name, i)
			}
			if now.Before(v.due) {
				now = v.due
			}
			began := now.Add(p.late * time.Millisecond)
			now = began.Add(p.took * time.Millisecond)
			var err error
			if !p.answered {
				err = errors.New("no answer")
			}
			hung = v.probed(began, now, err)
		}
		if hung != c.hung {
			t.Errorf("%s: hung %v, want %v", name, hung, c.hung)
		}
	}
}

// Probes begin at equal distances, whatever they take; what a late supervisor has missed is not made up for.
func TestProbesBeginAtEqualDistances(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	v := newVigil(700*time.Millisecond, start)
	for _, c := range []struct{ began, ended, next time.Duration }{
		{700, 1300, 1400}, {1400, 1401, 2100}, {2150, 2750, 2800}, {9000, 9600, 9600}, {9600, 9601, 10_300},
	} {
		v.probed(start.Add(c.began*time.Millisecond), start.Add(c.ended*time.Millisecond), nil)
		if got := v.due.Sub(start); got != c.next*time.Millisecond {
			t.Errorf("after the probe at %d ms the next is due at %v", c.began, got)
		}
	}
}
