// Package door is whether a node wants its clients: open, asking them to leave, or shut.
//
//	d.Reconnect(true)              // clients are asked to connect anew, elsewhere; new ones are served
//	d.Drain()                      // the process goes; there is no way back
//	for { <-d.Changed(); … d.Leaving(), d.Draining() }
package door

import "sync/atomic"

// Door is one node's. The zero value is open.
type Door struct {
	draining, succeeded, reconnect atomic.Bool
	changed                        atomic.Pointer[chan struct{}]
}

// Open says whether new clients are wanted here: a successor takes those of a process that drains.
func (d *Door) Open() bool { return d.succeeded.Load() || !d.draining.Load() }

// Succeed says that another process serves the node's addresses from now on: what drains here is no word about the node.
func (d *Door) Succeed() { d.succeeded.Store(true) }

// Leaving says whether clients are asked to make a new connection, elsewhere.
func (d *Door) Leaving() bool { return d.reconnect.Load() || d.draining.Load() }

// Reconnect asks clients to leave, or to stay again.
func (d *Door) Reconnect(on bool) {
	if d.reconnect.Swap(on) != on {
		d.announce()
	}
}

// Drain makes the node not ready and lets clients go; there is no way back.
func (d *Door) Drain() {
	if !d.draining.Swap(true) {
		d.announce()
	}
}

// Draining says whether Drain was called.
func (d *Door) Draining() bool { return d.draining.Load() }

// Changed is closed at the next change of Leaving or Draining.
func (d *Door) Changed() <-chan struct{} {
	for {
		if ch := d.changed.Load(); ch != nil {
			return *ch
		}
		ch := make(chan struct{})
		d.changed.CompareAndSwap(nil, &ch)
	}
}

func (d *Door) announce() {
	next := make(chan struct{})
	if old := d.changed.Swap(&next); old != nil {
		close(*old)
	}
}
