package nodeapi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/quota"
)

// The bounds of the lease protocol.
const (
	// MaxAsks bounds one message.
	MaxAsks = 2048
	// maxOutstanding is how many messages may wait for their answers; the oldest is given up for another.
	maxOutstanding = 32
	// leaseSilence is how long a stream may answer nothing; it is more than TTL and less than maxOutstanding intervals.
	leaseSilence = 2500 * time.Millisecond
	// leaseSpacing is the least time between two messages of one holder, in ns.
	leaseSpacing = int64(8 * time.Millisecond)
	// leasePatience is how long a request waits for an answer, in ns; it may wait twice.
	leasePatience = int64(9 * time.Millisecond)
)

// Leases keeps a table of leases settled with its grantor: one message about every interval with all that is due, and one
// in between for what can't wait.
//
//	go l.Watch(ctx)               // wakes the requests that have waited too long
//	err := l.Serve(ctx, client)   // for every connection to the grantor, one after the other
type Leases[K comparable, V any, P interface {
	*V
	quota.Holding
}] struct {
	Table *quota.Table[K, V, P]

	terms quota.Terms
	clock func() int64
	wake  chan struct{} // there is something to tell
	press chan struct{} // something can't wait

	down   atomic.Int64 // the instant from which on there is no grantor; 0 = there is one
	oldest atomic.Int64 // when the oldest message was sent that has no answer; 0 = all have
	stats  struct{ messages, asks, failed, lag atomic.Int64 }

	mu  sync.Mutex
	out map[uint64]*quota.Batch[K, V, P]
	seq uint64
}

// NewLeases makes an empty table for about most keys. Clock is monotonic, in ns.
func NewLeases[K comparable, V any, P interface {
	*V
	quota.Holding
}](terms quota.Terms, most int, clock func() int64) *Leases[K, V, P] {
	h := &Leases[K, V, P]{
		Table: quota.NewTable[K, V, P](terms, most), terms: terms, clock: clock,
		wake: make(chan struct{}, 1), press: make(chan struct{}, 1), out: map[uint64]*quota.Batch[K, V, P]{},
	}
	h.cut()
	return h
}

// Lost is the instant from which on the grantor doesn't answer; 0 = it does. Without a connection to it nobody waits for
// an answer: it counts as lost for long enough to go on alone.
func (h *Leases[K, V, P]) Lost(now int64) int64 {
	if down := h.down.Load(); down != 0 {
		return down
	}
	if oldest := h.oldest.Load(); oldest != 0 && now-oldest > h.terms.TTL/2 {
		return oldest
	}
	return 0
}

// Connected says that the grantor answers; Serve says it for its own.
func (h *Leases[K, V, P]) Connected() { h.down.Store(0) }

// Wake says that a key which had nothing to tell has something.
func (h *Leases[K, V, P]) Wake() { poke(h.wake) }

// Press says that a key can't wait for the next message.
func (h *Leases[K, V, P]) Press() {
	poke(h.press)
	poke(h.wake)
}

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// LeaseStats are counts since the start, and how long the last answer took, or has not come for.
type LeaseStats struct {
	Messages, Asks, Failed int64 // Failed: messages that got no answer
	Lag                    time.Duration
	Lost                   bool
	Keys                   int
}

// Stats reads the numbers.
func (h *Leases[K, V, P]) Stats() LeaseStats {
	now, lag := h.clock(), h.stats.lag.Load()
	lost := h.Lost(now)
	if lost != 0 {
		lag = now - lost
	}
	return LeaseStats{h.stats.messages.Load(), h.stats.asks.Load(), h.stats.failed.Load(), time.Duration(lag), lost != 0, h.Table.Len()}
}

// Watch wakes those who have waited too long, until ctx ends.
func (h *Leases[K, V, P]) Watch(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			h.Table.Pressing(h.clock(), 0)
			return nil
		case <-h.press:
		}
		for h.Table.Pressing(h.clock(), leasePatience) && ctx.Err() == nil {
			time.Sleep(3 * time.Millisecond)
		}
	}
}

// Serve settles leases over one stream until it breaks or ctx ends.
func (h *Leases[K, V, P]) Serve(ctx context.Context, client ControllerClient) error {
	return h.Settle(ctx, client)
}

// Grantor opens streams on which each message of asks is answered by one of grants, as a controller does.
type Grantor interface {
	Leases(ctx context.Context, opts ...grpc.CallOption) (grpc.BidiStreamingClient[LeaseAsks, LeaseGrants], error)
}

// Settle is Serve with any grantor.
func (h *Leases[K, V, P]) Settle(ctx context.Context, from Grantor) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := from.Leases(ctx)
	if err != nil {
		return fmt.Errorf("nodeapi: leases: %w", err)
	}
	heard := make(chan error, 1)
	go func() { heard <- h.hear(stream) }()
	go h.guard(ctx, cancel)
	err = h.tell(stream, heard)
	cancel()
	if err == nil {
		err = <-heard
	}
	h.cut()
	return err
}

// guard ends a stream on which nothing is answered.
func (h *Leases[K, V, P]) guard(ctx context.Context, end func()) {
	for pause.For(ctx, leaseSilence/4) {
		if oldest := h.oldest.Load(); oldest != 0 && h.clock()-oldest > int64(leaseSilence) {
			end()
		}
	}
}

// tell sends what is due until the stream is done. A nil error: the other direction knows why.
func (h *Leases[K, V, P]) tell(stream grpc.BidiStreamingClient[LeaseAsks, LeaseGrants], heard chan error) error {
	if err := stream.Send(&LeaseAsks{}); err != nil { // whether there is a grantor
		return nil
	}
	beat, last := time.NewTimer(time.Duration(h.terms.Interval)), int64(0)
	defer beat.Stop()
	urgent := time.NewTimer(time.Hour)
	defer urgent.Stop()
	for idle := false; ; {
		tick := beat.C
		if idle {
			tick = nil
		}
		pressed := false
		select {
		case err := <-heard:
			return errors.Join(err, errors.New("nodeapi: the grantor ended the stream"))
		case <-h.wake:
			if idle {
				idle = false
				beat.Reset(time.Duration(h.terms.Interval))
			}
			if soon := last + leaseSpacing - h.clock(); soon > 0 {
				urgent.Reset(time.Duration(soon))
				continue
			}
			pressed = true
		case <-urgent.C:
			pressed = true
		case <-tick:
			beat.Reset(time.Duration(h.terms.Interval))
			idle = h.Table.Idle()
		}
		sent, err := h.send(stream, pressed)
		if err != nil {
			return nil
		}
		if sent {
			last = h.clock()
		}
	}
}

// send sends what is due, or only what can't wait.
func (h *Leases[K, V, P]) send(stream grpc.BidiStreamingClient[LeaseAsks, LeaseGrants], urgent bool) (sent bool, err error) {
	for {
		b := h.Table.Due(h.clock(), urgent, MaxAsks)
		if len(b.Items) == 0 {
			return sent, nil
		}
		m := &LeaseAsks{Seq: h.note(&b), Asks: make([]*LeaseAsk, len(b.Items))}
		for i := range b.Items {
			m.Asks[i] = askOf(&b.Items[i])
		}
		h.stats.messages.Add(1)
		h.stats.asks.Add(int64(len(b.Items)))
		if err := stream.Send(m); err != nil {
			return sent, err
		}
		sent = true
		if len(b.Items) < MaxAsks {
			return sent, nil
		}
	}
}

// note remembers a batch until it is answered.
func (h *Leases[K, V, P]) note(b *quota.Batch[K, V, P]) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq++
	h.out[h.seq] = b
	if old := h.seq - maxOutstanding; h.seq > maxOutstanding && h.out[old] != nil {
		h.out[old].Failed(h.clock())
		h.stats.failed.Add(1)
		delete(h.out, old)
	}
	h.age()
	return h.seq
}

// age finds the oldest message without an answer. The caller holds mu.
func (h *Leases[K, V, P]) age() {
	oldest := int64(0)
	for _, b := range h.out {
		if oldest == 0 || b.Sent < oldest {
			oldest = b.Sent
		}
	}
	h.oldest.Store(oldest)
}

// hear takes answers until the stream ends.
func (h *Leases[K, V, P]) hear(stream grpc.BidiStreamingClient[LeaseAsks, LeaseGrants]) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		h.mu.Lock()
		b := h.out[m.Seq]
		delete(h.out, m.Seq)
		h.age()
		h.mu.Unlock()
		h.Connected()
		if b == nil {
			continue
		}
		now := h.clock()
		h.stats.lag.Store(now - b.Sent)
		b.Granted(now, grantsOf(m))
	}
}

// cut gives up all that is under way.
func (h *Leases[K, V, P]) cut() {
	now := h.clock()
	since := now - h.terms.TTL
	if since == 0 {
		since--
	}
	h.down.CompareAndSwap(0, since)
	h.mu.Lock()
	out := h.out
	h.out = map[uint64]*quota.Batch[K, V, P]{}
	h.age()
	h.mu.Unlock()
	h.stats.failed.Add(int64(len(out)))
	for _, b := range out {
		b.Failed(now)
	}
}

func askOf(i *quota.Item) *LeaseAsk {
	return &LeaseAsk{
		Key: i.Key[:], Rate: i.Limit.Rate, Burst: i.Limit.Burst, Day: i.Limit.Day, Strict: i.Limit.Strict, Scope: uint32(i.Limit.Scope),
		Tries: i.Ask.Tries, Elapsed: i.Ask.Elapsed, Want: i.Ask.Want, Back: i.Ask.Back, Debt: i.Ask.Debt, Date: i.Ask.Day,
	}
}

// Items reads a message of asks; an error means that its sender can't be worked with.
func (m *LeaseAsks) Items() ([]quota.Item, error) {
	if len(m.Asks) > MaxAsks {
		return nil, fmt.Errorf("nodeapi: %d asks in one message", len(m.Asks))
	}
	items := make([]quota.Item, len(m.Asks))
	for n, a := range m.Asks {
		i := quota.Item{
			Limit: quota.Limit{Rate: a.Rate, Burst: a.Burst, Day: a.Day, Strict: a.Strict, Scope: quota.Scope(min(a.Scope, 255))},
			Ask:   quota.Ask{Tries: a.Tries, Elapsed: a.Elapsed, Want: a.Want, Back: a.Back, Debt: a.Debt, Day: a.Date},
		}
		if copy(i.Key[:], a.Key) != len(a.Key) || len(a.Key) != len(i.Key) || !i.Limit.Valid() || !i.Ask.Valid() {
			return nil, fmt.Errorf("nodeapi: ask %d can't be: %+v", n, i)
		}
		items[n] = i
	}
	return items, nil
}

// absent is what a Grant says whose key could not be served: none is Valid.
func absent() quota.Grant { return quota.Grant{Tokens: -1} }

func grantsOf(m *LeaseGrants) []quota.Grant {
	all := make([]quota.Grant, len(m.Grants))
	for n, g := range m.Grants {
		all[n] = quota.Grant{Tokens: g.Tokens, Share: g.Share, Calm: g.Calm, Credit: g.Credit, Left: g.Left, Day: g.Date, Pause: g.Pause}
		if g.Absent {
			all[n] = absent()
		}
	}
	return all
}

// GrantsTo is the message that answers seq. A grant that is not valid says that its key could not be served.
func GrantsTo(seq uint64, grants []quota.Grant) *LeaseGrants {
	m := &LeaseGrants{Seq: seq, Grants: make([]*LeaseGrant, len(grants))}
	for n, g := range grants {
		m.Grants[n] = &LeaseGrant{Tokens: g.Tokens, Share: g.Share, Calm: g.Calm, Credit: g.Credit, Left: g.Left, Date: g.Day, Pause: g.Pause, Absent: !g.Valid()}
	}
	return m
}
