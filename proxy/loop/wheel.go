//go:build linux

package loop

import (
	"math/bits"
	"time"
)

// wheel holds the timers of a loop. Setting one costs next to nothing, because a timer lies where it was first put: when
// it comes up and is due later by now, it is put away again. Invariant: a timer lies in the slot of its tick at, which is
// not after the tick that it is due at; slots before now+1 are empty.
type wheel struct {
	base  time.Time
	now   int64 // the tick up to which all is done
	slots [wheelSlots]*timer
	used  [wheelSlots / 64]uint64 // a bit per slot that isn't empty
}

const (
	wheelSlots = 1 << 12
	wheelTick  = 4 * time.Millisecond
)

// timer calls fire once its time has come: up to a tick later, never before. Its zero value with fire is ready.
type timer struct {
	fire       func()
	due, at    int64 // ticks; at = 0: not in the wheel
	prev, next *timer
}

func (w *wheel) tick(t time.Time) int64 { return int64((t.Sub(w.base) + wheelTick - 1) / wheelTick) }

// set makes t due, whatever it was due at before.
func (w *wheel) set(t *timer, due time.Time) {
	t.due = max(w.tick(due), w.now+1)
	if t.at != 0 && t.at <= t.due {
		return
	}
	w.stop(t)
	w.put(t)
}

// at is when t is due.
func (w *wheel) at(t *timer) time.Time { return w.base.Add(time.Duration(t.due) * wheelTick) }

func (w *wheel) put(t *timer) {
	t.at = min(t.due, w.now+wheelSlots-1)
	i := t.at % wheelSlots
	t.prev, t.next = nil, w.slots[i]
	if t.next != nil {
		t.next.prev = t
	}
	w.slots[i] = t
	w.used[i/64] |= 1 << (i % 64)
}

// stop takes t out.
func (w *wheel) stop(t *timer) {
	if t.at == 0 {
		return
	}
	i := t.at % wheelSlots
	if t.next != nil {
		t.next.prev = t.prev
	}
	if t.prev != nil {
		t.prev.next = t.next
	} else if w.slots[i] = t.next; t.next == nil {
		w.used[i/64] &^= 1 << (i % 64)
	}
	t.at, t.prev, t.next = 0, nil, nil
}

// advance fires what is due at the time. A timer that is put back never lands in the slot at hand: put reaches
// wheelSlots-1 ticks ahead at most.
func (w *wheel) advance(now time.Time) {
	for to := int64(now.Sub(w.base) / wheelTick); w.now < to; {
		ahead := w.ahead()
		if ahead < 0 || w.now+ahead > to {
			w.now = to
			return
		}
		w.now += ahead
		for i := w.now % wheelSlots; w.slots[i] != nil; {
			t := w.slots[i]
			w.stop(t)
			if t.due > w.now {
				w.put(t)
			} else {
				t.fire()
			}
		}
	}
}

// ahead is how many ticks after now the first slot in use lies; -1 = none is.
func (w *wheel) ahead() int64 {
	from := (w.now + 1) % wheelSlots
	word := w.used[from/64] >> (from % 64)
	if word != 0 {
		return 1 + int64(bits.TrailingZeros64(word))
	}
	n := 1 + 64 - from%64
	for k := range int64(wheelSlots / 64) {
		if word := w.used[(from/64+1+k)%(wheelSlots/64)]; word != 0 {
			return n + 64*k + int64(bits.TrailingZeros64(word))
		}
	}
	return -1
}

// wait is how long to sleep until a timer comes up, in whole milliseconds, rounded up; -1 = for ever.
func (w *wheel) wait(now time.Time) int {
	ahead := w.ahead()
	if ahead < 0 {
		return -1
	}
	left := w.base.Add(time.Duration(w.now+ahead) * wheelTick).Sub(now)
	return int(max(0, (left+time.Millisecond-1)/time.Millisecond))
}
