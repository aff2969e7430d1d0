package durable

import "time"

// retryEvery is how often a Keeper tries again.
const retryEvery = 5 * time.Second

// Keeper keeps the newest value of one form on disk. What could not be written, because the disk was full, is written once
// it can be. It belongs to one goroutine at a time.
type Keeper struct {
	Path string
	// Failed is told when a value could not be written, Done when a later try has made up for it.
	Failed func(error)
	Done   func()

	waiting any // the value that is not on disk; nil = none
	next    time.Time
}

// Put writes the value; see WriteForm. The value must not be changed afterwards.
func (k *Keeper) Put(v any, now time.Time) {
	err := WriteForm(k.Path, v)
	if err == nil {
		k.waiting = nil
		return
	}
	k.Failed(err)
	k.waiting, k.next = v, now.Add(retryEvery)
}

// Retry writes what still waits, if it is time again.
func (k *Keeper) Retry(now time.Time) {
	if k.waiting == nil || now.Before(k.next) {
		return
	}
	k.next = now.Add(retryEvery)
	if WriteForm(k.Path, k.waiting) == nil {
		k.waiting = nil
		k.Done()
	}
}
