package nodeapi

import "sync"

// outbox holds the newest unsent message of each kind, so that a slow or absent controller costs a bounded memory.
type outbox struct {
	ready chan struct{} // capacity 1: something was put

	mu                  sync.Mutex
	ack, report, probes *Up
	lastAck             *Up // repeated after every attach: an answer may have died with its stream
}

func newOutbox() *outbox { return &outbox{ready: make(chan struct{}, 1)} }

// slot is where a message of this kind waits; nil for kinds that are not the caller's to send.
// The caller holds mu.
func (o *outbox) slot(up *Up) **Up {
	switch up.GetMessage().(type) {
	case *Up_Ack:
		return &o.ack
	case *Up_Report:
		return &o.report
	case *Up_Probes:
		return &o.probes
	default:
		return nil
	}
}

func (o *outbox) put(up *Up) {
	o.mu.Lock()
	if s := o.slot(up); s != nil {
		*s = up
	}
	if up.GetAck() != nil {
		o.lastAck = up
	}
	o.mu.Unlock()
	o.wake()
}

// giveBack returns a message that could not be sent, unless a newer one waits.
func (o *outbox) giveBack(up *Up) {
	o.mu.Lock()
	if s := o.slot(up); s != nil && *s == nil {
		*s = up
	}
	o.mu.Unlock()
	o.wake()
}

// attached queues the last ACK once more.
func (o *outbox) attached() {
	o.mu.Lock()
	if o.ack == nil {
		o.ack = o.lastAck
	}
	o.mu.Unlock()
	o.wake()
}

// take removes one waiting message, ACKs first; nil when none waits.
func (o *outbox) take() *Up {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range []**Up{&o.ack, &o.report, &o.probes} {
		if up := *s; up != nil {
			*s = nil
			return up
		}
	}
	return nil
}

func (o *outbox) wake() {
	select {
	case o.ready <- struct{}{}:
	default:
	}
}
