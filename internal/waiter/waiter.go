// Package waiter lets one goroutine wait for a signal of others until a time.
//
//	w := waiter.New()
//	for !done() && w.Wait(deadline) { … }   // one goroutine; it looks again after each signal
//	w.Signal()                              // any other
//
// A signal that nobody waits for is kept, and many are one: whoever waits looks what there is, so none is missed.
package waiter

import "time"

// Waiter is used again and again, and allocates its timer once. Make it with New.
type Waiter struct {
	ch    chan struct{}
	timer *time.Timer
}

// New makes a waiter without a signal.
func New() Waiter { return Waiter{ch: make(chan struct{}, 1)} }

// Signal ends the wait that is under way, or else the next one. It never blocks.
func (w *Waiter) Signal() {
	select {
	case w.ch <- struct{}{}:
	default:
	}
}

// Clear forgets a signal that nobody has waited for.
func (w *Waiter) Clear() {
	select {
	case <-w.ch:
	default:
	}
}

// Wait says whether a signal came before the time. It is for one goroutine at once.
func (w *Waiter) Wait(by time.Time) bool {
	d := time.Until(by)
	if d <= 0 {
		return false
	}
	if w.timer == nil {
		w.timer = time.NewTimer(d)
	} else {
		w.timer.Reset(d)
	}
	defer w.timer.Stop()
	select {
	case <-w.ch:
		return true
	case <-w.timer.C:
		return false
	}
}
