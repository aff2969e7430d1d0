//go:build linux

package loop

import (
	"bytes"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/internal/uring"
)

// socket is the descriptor of a client or of an upstream connection, with what is on its way through it.
type socket struct {
	fd   int32 // -1 once closed
	slot uint32

	canRead bool // more may be there to be read
	ended   bool // the peer will send no more
	polled  bool // the kernel is asked about room for writing as well
	posted  bool // out goes out at the turn's end together with others'; if not, it waits for room

	out   []byte // what has not been sent yet is out[sent:]; nil when there is nothing
	sent  int
	ahead ahead
}

// blocked says that the peer takes no more for now.
func (k *socket) blocked() bool { return len(k.out) > 0 && !k.posted }

// ahead is what a receive gave that was made together with others', ahead of the socket's turn. It lies in the bundle's memory
// until the events of the bundle have been served.
type ahead struct {
	there bool
	full  bool // it took all the room it had: there may be more
	e     syscall.Errno
	b     []byte
}

// bundle is the sends and receives of a turn, which go to the kernel together as soon as there are two of them.
type bundle struct {
	ring    *uring.Ring // nil = none: each is a call of its own
	room    []byte      // for what is received ahead
	asked   []*socket   // whose it is
	outbox  []ref       // of sockets that have something posted
	posting bool        // this turn has more than one thing to do
}

const (
	// inBundle bounds what is asked of the kernel at once. It takes about 0.1 ms, for which Go's scheduler can't stop the loop.
	inBundle = 32
	// aheadSize bounds what is received ahead of an upstream. A client's is what its buffer takes.
	aheadSize = 16 << 10
	// stride is how far apart the rooms of receives lie: no multiple of a page, lest they compete for the same sets of a cache.
	stride = aheadSize + 1<<10
	// gathered is how much a socket's posted output may be: what is longer costs more to copy than a call.
	gathered = 16 << 10
)

// openRing makes a ring for the loop, if the kernel gives one.
func (l *loop) openRing() (err error) {
	if l.ring, err = uring.New(inBundle); err == nil {
		l.room, l.asked = make([]byte, inBundle*stride), make([]*socket, 0, inBundle)
	}
	return err
}

// receiveAhead receives, in one call, for those sockets among some events that will read when they are served.
func (l *loop) receiveAhead(events []unix.EpollEvent) {
	if !l.posting || len(events) < 2 {
		return
	}
	for i := range events {
		ev := &events[i]
		s := &l.slots[ev.Fd]
		if s.gen != uint32(ev.Pad) || ev.Events&unix.EPOLLIN == 0 {
			continue
		}
		if k, size := s.reader(); k != nil && !k.ahead.there {
			k.ahead.b = l.room[len(l.asked)*stride:][:size]
			l.ring.Receive(k.fd, k.ahead.b)
			l.asked = append(l.asked, k)
		}
	}
	for i, got := range l.do(&l.calls.received) {
		switch k := l.asked[i]; {
		case got == uring.NotDone:
			k.ahead = ahead{}
		case got < 0:
			k.ahead = ahead{there: true, e: syscall.Errno(-got)}
		default:
			b := k.ahead.b
			k.ahead = ahead{there: true, full: int(got) == len(b), b: b[:got]}
		}
	}
}

// do has the ring's calls carried out and counts them as of one kind.
func (l *loop) do(kind *uint64) []int32 {
	if n := l.ring.Len(); n > 0 {
		l.calls.bundles++
		*kind += uint64(n)
	}
	return l.ring.Do()
}

// keepAhead saves what was received ahead and not read: its memory is used again. By the time that it is read more may have come,
// of which the kernel has told, once, already.
func (l *loop) keepAhead() {
	for i, k := range l.asked {
		l.asked[i] = nil
		switch a := &k.ahead; {
		case len(a.b) > 0:
			a.b, a.full = bytes.Clone(a.b), true
		case a.e == syscall.EAGAIN:
			*a = ahead{}
		}
	}
	l.asked = l.asked[:0]
}

// reader is the slot's socket if it reads as soon as it can, and how much it takes then.
func (s *slot) reader() (k *socket, size int) {
	switch c, u := s.client, s.conn; {
	case c != nil && c.in == nil && c.state != busy && c.state != lingering:
		return &c.socket, inSize
	case u != nil && u.flight != nil && u.flight.phase == awaiting:
		return &u.socket, aheadSize
	}
	return nil, 0
}

// receive reads once into b. more says that there may be more; e is 0 with n = 0 at the end of what the peer sends.
func (l *loop) receive(k *socket, b []byte) (n int, more bool, e syscall.Errno) {
	a := &k.ahead
	if !a.there {
		n, e = l.read(k.fd, b)
		return n, n == len(b), e
	}
	n, e = copy(b, a.b), a.e
	a.b = a.b[n:]
	if more = a.full || len(a.b) > 0; len(a.b) == 0 {
		*a = ahead{}
	}
	return n, more, e
}

// send sends a and b, or keeps what doesn't go out at once: for the turn's end, or until there is room. n is what has gone out.
func (l *loop) send(k *socket, a, b []byte) (n int, ok bool) {
	if k.blocked() {
		k.out = l.append(k.out, a, b)
		return 0, true
	}
	if l.posting && len(k.out)+len(a)+len(b) <= gathered {
		k.out = l.append(k.out, a, b)
		if !k.posted {
			k.posted = true
			l.outbox = append(l.outbox, ref{k.slot, l.slots[k.slot].gen})
		}
		return 0, true
	}
	posted := k.out
	if k.posted {
		a = append(posted, a...)
		k.out, k.posted = nil, false
	}
	n, e := l.write2(k.fd, a, b)
	ok = e == 0 || e == syscall.EAGAIN
	if ok && n < len(a)+len(b) {
		rest := a[min(n, len(a)):]
		k.out = l.append(nil, rest, b[n-len(a)+len(rest):])
		ok = l.pollWrite(k)
	}
	l.buffers.put(posted)
	return n, ok
}

// append appends a and b to what is in a buffer of the loop's, or nil, in a larger one if need be.
func (l *loop) append(out, a, b []byte) []byte {
	n := len(out) + len(a) + len(b)
	switch {
	case out == nil:
		out = l.buffers.out(n)
	case n > cap(out) && n <= bigSize:
		small := out
		out = append(l.buffers.out(n), small...)
		l.buffers.put(small)
	}
	return append(append(out, a...), b...)
}

// pollWrite asks the kernel to tell about room for writing, from now on.
func (l *loop) pollWrite(k *socket) bool {
	if k.polled {
		return true
	}
	k.polled = true
	return l.watch(unix.EPOLL_CTL_MOD, k.fd, allEvents, k.slot, l.slots[k.slot].gen) == nil
}

// wrote takes in what became of a send of what was kept. It is false if the connection is broken.
func (l *loop) wrote(k *socket, n int, e syscall.Errno) bool {
	k.posted = false
	if e != 0 && e != syscall.EAGAIN {
		return false
	}
	if k.sent += n; k.sent < len(k.out) {
		return l.pollWrite(k)
	}
	l.buffers.put(k.out)
	k.out, k.sent = nil, 0
	return true
}

// unsend forgets what has not been sent.
func (k *socket) unsend(l *loop) {
	l.buffers.put(k.out)
	k.out, k.sent, k.posted = nil, 0, false
}

// sendPosted sends what the turn has posted. What follows from it goes out at once.
func (l *loop) sendPosted() {
	posting := l.posting
	l.posting = false
	for some := range slices.Chunk(l.outbox, inBundle) {
		l.sendTogether(some)
	}
	l.outbox, l.posting = l.outbox[:0], posting
}

func (l *loop) sendTogether(some []ref) {
	todo := some[:0]
	for _, r := range some {
		if k := l.socket(r); k != nil && k.posted { // if not, it went out with something larger
			k.posted = false // what is sent to it from here on waits until it is known what became of this
			l.ring.Send(k.fd, k.out)
			todo = append(todo, r)
		}
	}
	for i, n := range l.do(&l.calls.posts) {
		if k := l.socket(todo[i]); k != nil { // what was done to others may have ended it
			l.guarded(func() { l.sentPosted(todo[i], k, n) })
		}
	}
}

// socket is the one that was in a slot, if it still is.
func (l *loop) socket(r ref) *socket {
	s := &l.slots[r.slot]
	switch {
	case s.gen != r.gen:
	case s.client != nil:
		return &s.client.socket
	case s.conn != nil:
		return &s.conn.socket
	}
	return nil
}

// sentPosted goes on with a socket whose output went out with others', with so many bytes of it or an errno below 0.
func (l *loop) sentPosted(r ref, k *socket, outcome int32) {
	n, e := max(int(outcome), 0), syscall.Errno(0)
	if outcome < 0 && outcome != uring.NotDone {
		e = syscall.Errno(-outcome)
	} else if n < len(k.out) {
		var more int
		more, e = l.write(k.fd, k.out[n:])
		n += more
	}
	if s := &l.slots[r.slot]; s.client != nil {
		l.attend(r.slot)
		s.client.wrote(n, e)
	} else {
		u, f := s.conn, s.conn.flight
		f.serve()
		if f.wrote(n, e); f.conn == u && u.canRead { // what it said ahead of the request has waited for that
			f.hear()
		}
	}
}
