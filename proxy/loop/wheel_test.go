//go:build linux

package loop

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Timers that are set, moved and stopped at random fire once each, never early and at most a tick late, however long the
// loop was away.
func TestTimersFireOnceAndNeverEarly(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		now := time.Now()
		w := &wheel{base: now}
		type watched struct {
			timer
			by time.Time // zero = not set
		}
		all := make([]*watched, 40)
		for i := range all {
			one := &watched{}
			one.fire = func() {
				if one.by.IsZero() || now.Before(one.by) {
					t.Fatalf("seed %d: fired %v early", seed, one.by.Sub(now))
				}
				one.by = time.Time{}
			}
			all[i] = one
		}
		for range 2000 {
			one := all[r.IntN(len(all))]
			switch r.IntN(6) {
			case 0:
				w.stop(&one.timer)
				one.by = time.Time{}
			case 1, 2, 3:
				one.by = now.Add(time.Duration(r.Int64N(int64(1) << r.IntN(36))))
				w.set(&one.timer, one.by)
			default:
				now = now.Add(time.Duration(r.Int64N(int64(1) << r.IntN(36))))
				w.advance(now)
				for _, o := range all {
					if !o.by.IsZero() && now.Sub(o.by) > wheelTick+time.Millisecond {
						t.Fatalf("seed %d: not fired, due %v ago", seed, now.Sub(o.by))
					}
				}
			}
		}
	}
}

// Whoever sleeps for as long as the wheel says misses nothing and doesn't wake up for nothing more than once a turn of it.
func TestTheWheelSaysHowLongToSleep(t *testing.T) {
	now := time.Now()
	w := &wheel{base: now}
	if ms := w.wait(now); ms != -1 {
		t.Fatalf("nothing is set, and it says %d ms", ms)
	}
	fired := false
	tm := timer{fire: func() { fired = true }}
	begin := now
	w.set(&tm, now.Add(75*time.Second))
	for n := 0; !fired; n++ {
		ms := w.wait(now)
		if ms < 0 || n > 10 {
			t.Fatalf("after %d sleeps: %d ms", n, ms)
		}
		now = now.Add(time.Duration(ms) * time.Millisecond)
		w.advance(now)
	}
	if took := now.Sub(begin); took < 75*time.Second || took > 75*time.Second+10*time.Millisecond {
		t.Fatalf("fired after %v", took)
	}
}
