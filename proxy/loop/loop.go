//go:build linux

package loop

import (
	"crypto/tls"
	"net/netip"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/proxy/relay"
	"github.com/cellgate/cellgate/proxy/upstream"
)

// loop is one thread with all that it owns. Everything but mail and pulse is its goroutine's.
type loop struct {
	e      *Engine
	ep     int32
	slots  []slot
	free   []uint32
	events [maxEvents]unix.EpollEvent
	iov    [2]unix.Iovec
	now    time.Time
	began  time.Time // of the turn
	heard  time.Time // of the last turn that had events
	wheel  wheel
	calls  calls

	in     []byte // what is read and used up at once
	out    []byte // what is made and written at once
	raw    []byte // what is read for crypto/tls
	sealed []byte // what crypto/tls has made of out
	buffers
	bundle
	flights     []*flight // free ones
	streams     []*h2stream
	spareStream *h2stream // for the next request over HTTP/2
	due         []ref     // clients of HTTP/2 that are looked at at the turn's end
	dueNext     []ref

	clients   int
	listeners []uint32 // slots
	resume    timer    // of accepting, after a failure
	delay     time.Duration
	again     []ref // clients that have more to do than was their turn
	shaking   []ref // clients whose handshake can go on, first come first served
	lanes     map[*upstream.Pool]*lane
	last      *lane // the one used last
	released  []*conn
	judging   []sender // what goes through the pipeline in this turn
	sending   []sender // what goes upstream after the next wait
	spare     []sender
	sweeping  timer
	hand      int     // the slot at which the next client is sought that has to go
	current   uint32  // the slot being served, for what a panic must close
	serving   *flight // of it, while nothing else of its client is touched
	ending    bool    // no listener any more: ends with the last client

	mail mailbox
	*pulse
}

// pulse says from outside how a loop is doing. Written by: the loop; longest also by whoever asks.
type pulse struct {
	busySince atomic.Int64 // unix nanoseconds since the loop last slept; 0 while it does
	longest   atomic.Int64 // turn since it was last asked for, nanoseconds
	_         [48]byte     // those of two loops share no cache line
}

// maxEvents bounds a turn: what arrives meanwhile is seen after it.
const maxEvents = 128

// slot is a place in the loop's table of descriptors. Its generation changes whenever its descriptor leaves it.
type slot struct {
	gen      uint32
	client   *client
	conn     *conn
	listener *listener
	fd       int32 // -1 = free
}

// listener is a listening socket; tls nil means plain. The last of the loops that take connections from it closes it.
type listener struct {
	fd     int32
	tls    *tls.Config
	altSvc string
	loops  atomic.Int32
	close  func() error
}

// sender is a flight that is about to be judged or to get a connection, if it still is at its attempt gen.
type sender struct {
	f   *flight
	gen uint32
}

// ref names what was in a slot at some time.
type ref struct{ slot, gen uint32 }

// The mailbox is slot 0: an eventfd that wakes the loop.
type mailbox struct {
	fd     int32
	mu     sync.Mutex
	queue  []func()
	spare  []func()
	closed bool
}

// post leaves a message. It is false when the loop has ended and will not run it.
func (l *loop) post(do func()) bool {
	m := &l.mail
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	if m.queue = append(m.queue, do); len(m.queue) == 1 {
		one := [8]byte{1} // eventfd(2): the byte order doesn't matter
		_, _ = unix.Write(int(m.fd), one[:])
	}
	return true
}

func (l *loop) readMail() {
	m := &l.mail
	var b [8]byte
	_, _ = unix.Read(int(m.fd), b[:])
	m.mu.Lock()
	m.queue, m.spare = m.spare[:0], m.queue
	todo := m.spare
	m.mu.Unlock()
	for i, do := range todo {
		todo[i] = nil
		l.guarded(do)
	}
}

func newLoop(e *Engine, p *pulse) (*loop, error) {
	l := &loop{e: e, pulse: p, in: make([]byte, readSize), raw: make([]byte, readSize), out: make([]byte, 0, bigSize), lanes: map[*upstream.Pool]*lane{}, began: time.Now()}
	l.now, l.wheel.base = l.began, l.began
	l.resume.fire, l.sweeping.fire = l.resumeAccepting, l.sweep
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	l.ep = int32(ep)
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		unix.Close(ep)
		return nil, err
	}
	l.mail.fd = int32(fd)
	at := l.take(slot{fd: l.mail.fd})
	if err := l.watch(unix.EPOLL_CTL_ADD, l.mail.fd, readEvents, at, 0); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// take puts a descriptor's owner into a free slot.
func (l *loop) take(s slot) uint32 {
	if n := len(l.free); n > 0 {
		i := l.free[n-1]
		l.free = l.free[:n-1]
		s.gen = l.slots[i].gen
		l.slots[i] = s
		return i
	}
	l.slots = append(l.slots, s)
	return uint32(len(l.slots) - 1)
}

// leave empties a slot; its descriptor is somebody else's, or closed.
func (l *loop) leave(i uint32) {
	l.slots[i] = slot{gen: l.slots[i].gen + 1, fd: -1}
	l.free = append(l.free, i)
}

// clock reads the time anew. Within a turn it goes on from the turn's beginning, which spares the look at the wall's clock.
func (l *loop) clock() time.Time {
	l.now = l.began.Add(time.Since(l.began))
	return l.now
}

// run serves until there is nothing left to serve after end was called.
func (l *loop) run() {
	runtime.LockOSThread() // no UnlockOSThread: the thread ends with the loop
	for !l.ending || l.clients > 0 {
		n := 0
		if len(l.again)+len(l.shaking)+len(l.judging)+len(l.sending)+len(l.due) > 0 || l.awaited() {
			n = l.poll(0)
		} else {
			n = l.sleep(l.wheel.wait(l.now))
		}
		l.began = time.Now()
		l.now = l.began
		if n > 0 {
			l.heard = l.began
		}
		l.busySince.Store(l.began.UnixNano())
		l.turn(n)
		if took := l.clock().Sub(l.began); took > time.Duration(l.longest.Load()) {
			l.longest.Store(int64(took))
		}
	}
	l.close()
}

// turn serves what a wait found. A fault of ours is kept to the connection that met it.
func (l *loop) turn(n int) {
	l.posting = l.ring != nil && n+len(l.sending)+len(l.again)+len(l.due) > 1
	l.quiet(n)
	l.sendOff()
	l.sendPosted()
	for at := 0; at < n; at += inBundle {
		l.serve(l.events[at:min(at+inBundle, n)])
	}
	if todo := l.again; len(todo) > 0 {
		l.again = nil
		for i := range todo {
			l.guarded(func() { l.goOn(todo[i]) })
		}
		if l.again == nil {
			l.again = todo[:0]
		}
	}
	l.judge()
	for !l.guarded(func() { l.wheel.advance(l.now) }) {
	}
	due := l.due
	l.due = l.dueNext[:0]
	for _, r := range due {
		l.guarded(func() { l.flushClient(r, n > 0) })
	}
	l.dueNext = due
	l.sendPosted()
	l.posting = false
	l.shakeNext()
}

// serve serves some events, at most inBundle.
func (l *loop) serve(some []unix.EpollEvent) {
	l.receiveAhead(some)
	at := 0
	for !l.guarded(func() {
		for ; at < len(some); at++ {
			ev := &some[at]
			l.event(ref{uint32(ev.Fd), uint32(ev.Pad)}, ev.Events)
		}
	}) {
		at++
	}
	l.keepAhead()
}

// flushClient sends what has come for a client of HTTP/2. busy says that the next turn, which comes at once then, may bring more.
func (l *loop) flushClient(r ref, busy bool) {
	s := &l.slots[r.slot]
	switch {
	case s.gen != r.gen || s.client == nil || s.client.h2 == nil:
	case busy && s.client.h2.hold():
		l.due = append(l.due, r)
	default:
		l.attend(r.slot)
		s.client.h2.flush()
	}
}

// guarded says whether do went well. After a panic the connection that was being served is closed.
func (l *loop) guarded(do func()) (ok bool) {
	l.attend(0)
	defer func() {
		if fault := recover(); fault != nil {
			l.e.opts.Log.Error("panic on a connection", "panic", fault, "stack", string(debug.Stack()))
			l.sealed = l.sealed[:0] // it is nobody else's
			l.afterFault()
		}
	}()
	do()
	return true
}

// attend says what a panic from here on costs.
func (l *loop) attend(slot uint32) { l.current, l.serving = slot, nil }

// afterFault closes what was being served: the stream of HTTP/2 alone if the fault was in its exchange, else the connection.
// Should that fail as well, what was held for it is lost, and nothing more.
func (l *loop) afterFault() {
	c := l.slots[l.current].client
	if c == nil {
		return
	}
	if f := l.serving; f != nil && c.h2 != nil && c.h2.codec.Sound() {
		if s, ok := f.side.(*h2stream); ok && s.h == c.h2 && l.attempt(func() { c.h2.touch(); s.breakOff() }) {
			l.later(c)
			return
		}
	}
	if !l.attempt(c.drop) && c.fd >= 0 {
		unix.Close(int(c.fd))
		c.forget()
	}
}

// attempt says whether do went well.
func (l *loop) attempt(do func()) (ok bool) {
	defer func() {
		if fault := recover(); fault != nil {
			l.e.opts.Log.Error("panic after a panic", "panic", fault, "stack", string(debug.Stack()))
		}
	}()
	do()
	return true
}

// quiet closes the idle upstream connections that have something to say, ahead of everything else that a wait has found:
// none of them is used for a request then. What was laid aside in the last turn may be used from now on, because this wait
// came after it and would have told.
func (l *loop) quiet(n int) {
	for i := range n {
		ev := &l.events[i]
		s := &l.slots[ev.Fd]
		if s.gen == uint32(ev.Pad) && s.conn != nil && s.conn.flight == nil && ev.Events&^unix.EPOLLOUT != 0 {
			s.conn.lane.remove(s.conn)
			s.conn.close()
		}
	}
	for i, u := range l.released {
		if l.released[i] = nil; u.fd >= 0 {
			u.lane.shelve(u)
		}
	}
	l.released = l.released[:0]
}

// abreast is how many exchanges go through the pipeline side by side. Each looks up what is in no cache, and while the memory of
// one is on its way, the others go on. Too many would push each other out of the cache.
const abreast = 16

// judge takes what has come in this turn through the pipeline.
func (l *loop) judge() {
	for todo := l.judging; len(todo) > 0; {
		some := todo[:min(abreast, len(todo))]
		todo = todo[len(some):]
		for len(some) > 0 {
			some = l.stepAll(some)
		}
	}
	l.judging = l.judging[:0]
}

// stepAll takes each a step further. It gives those that have another one before them, in the place of the others.
func (l *loop) stepAll(all []sender) (more []sender) {
	more = all[:0]
	at := 0
	for !l.guarded(func() {
		for at < len(all) {
			s := all[at]
			at++ // whatever happens: it is not called again
			if s.f.gen == s.gen && s.f.phase == judged && s.f.judge() {
				more = append(more, s)
			}
		}
	}) {
	}
	return more
}

// awaited says whether somebody waits in line for what was laid aside. Who comes into the line from now on wakes the loop.
func (l *loop) awaited() bool {
	for _, u := range l.released {
		if u.lane.pool.Wanted() {
			return true
		}
	}
	return false
}

// sendOff gives the attempts that wait for it a connection. They wait since the last turn, so that a pooled connection is
// looked at, by the wait for events, after the request was read and right before it is written (decision 12).
func (l *loop) sendOff() {
	todo := l.sending
	l.sending = l.spare[:0]
	for _, s := range todo {
		if s.f.gen == s.gen && s.f.phase == sending {
			l.guarded(s.f.get)
		}
	}
	l.spare = todo
}

func (l *loop) event(r ref, events uint32) {
	s := &l.slots[r.slot]
	if s.gen != r.gen {
		return
	}
	ended := events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	switch {
	case s.client != nil:
		c := s.client
		l.attend(r.slot)
		c.ended = c.ended || ended
		c.broken = c.broken || events&(unix.EPOLLHUP|unix.EPOLLERR) != 0
		if events&unix.EPOLLIN != 0 || ended {
			c.canRead = true
			if c.secure != nil {
				c.secure.canRead = true
			}
		}
		if events&unix.EPOLLOUT != 0 && len(c.out) > 0 && !c.wrote(l.write(c.fd, c.out[c.sent:])) {
			return
		}
		if c.canRead {
			c.readable()
		}
	case s.conn != nil:
		u := s.conn
		u.ended = u.ended || ended
		if events&unix.EPOLLIN != 0 || ended {
			u.canRead = true
		}
		if f := u.flight; f != nil {
			f.serve()
			f.upstreamReady(events&unix.EPOLLOUT != 0)
		}
	case s.listener != nil:
		l.accept(r.slot)
	case r.slot == 0:
		l.readMail()
	}
}

// later gives a client another turn.
func (l *loop) later(c *client) {
	if !c.queued {
		c.queued = true
		l.again = append(l.again, ref{c.slot, l.slots[c.slot].gen})
	}
}

func (l *loop) goOn(r ref) {
	if s := &l.slots[r.slot]; s.gen == r.gen && s.client != nil {
		l.attend(r.slot)
		s.client.queued = false
		s.client.goOn()
	}
}

// accepts is how many connections one turn takes of a listening socket.
const accepts = 16

// accept says whether there may be more to take.
func (l *loop) accept(at uint32) bool {
	for range accepts {
		from := l.slots[at].listener
		fd, peer, err := accept(from.fd)
		switch err {
		case nil:
			l.delay = 0
			l.client(fd, peer, from)
		case unix.EAGAIN:
			return false
		case unix.ECONNABORTED, unix.EINTR, unix.EPROTO:
		default: // no descriptors, or no memory: it passes
			if exhausted(err) && l.makeRoom() {
				continue
			}
			l.e.rest.Unaccepted(err)
			l.delay = min(max(2*l.delay, 5*time.Millisecond), time.Second)
			l.accepting(0)
			l.wheel.set(&l.resume, l.now.Add(l.delay))
			return false
		}
	}
	return true
}

// accepting turns the events of the listening sockets on or off. They are level-triggered: a full turn comes again.
func (l *loop) accepting(events uint32) {
	for _, at := range l.listeners {
		_ = l.watch(unix.EPOLL_CTL_MOD, l.slots[at].fd, events, at, l.slots[at].gen)
	}
}

func (l *loop) resumeAccepting() { l.accepting(unix.EPOLLIN) }

// listen takes a listening socket over.
func (l *loop) listen(on *listener) error {
	at := l.take(slot{listener: on, fd: on.fd})
	if err := l.watch(unix.EPOLL_CTL_ADD, on.fd, unix.EPOLLIN, at, l.slots[at].gen); err != nil {
		l.leave(at)
		return err
	}
	l.listeners = append(l.listeners, at)
	return nil
}

// client begins to serve a connection, within the bound.
func (l *loop) client(fd int32, peer netip.Addr, from *listener) {
	if !l.e.rest.Room(l.evict) {
		unix.Close(int(fd))
		return
	}
	c := &client{socket: socket{fd: fd}, l: l, peer: peer, text: peer.String()}
	c.timer.fire = c.expired
	c.old = relay.Age(l.now, l.e.opts.MaxAge, l.e.opts.LeaveOver, l.e.server.Leaving()).UnixNano()
	c.slot = l.take(slot{client: c, fd: fd})
	if err := l.watch(unix.EPOLL_CTL_ADD, fd, readEvents, c.slot, l.slots[c.slot].gen); err != nil {
		l.leave(c.slot)
		unix.Close(int(fd))
		return
	}
	l.clients++
	l.e.server.Connections.Add(1)
	if from.tls != nil {
		c.shakeHands(from)
		return
	}
	c.wait()
}

// each calls do for every client that is there.
func (l *loop) each(do func(*client)) {
	for i := range l.slots {
		if c := l.slots[i].client; c != nil {
			do(c)
		}
	}
}

// end stops listening, once all that the kernel has accepted is taken: the loop ends when its last client has gone.
func (l *loop) end() {
	for _, at := range l.listeners {
		for l.accept(at) {
		}
		on := l.slots[at].listener
		_ = unix.EpollCtl(int(l.ep), unix.EPOLL_CTL_DEL, int(on.fd), nil) // another process may have it open still
		if l.leave(at); on.loops.Add(-1) == 0 {
			_ = on.close()
		}
	}
	l.listeners, l.ending = nil, true
}

// close gives back all that is left. Nobody's message is lost: those that come too late are told so, those that wait are run.
func (l *loop) close() {
	l.mail.mu.Lock()
	l.mail.closed = true
	left := l.mail.queue
	l.mail.mu.Unlock()
	for _, do := range left {
		do()
	}
	for _, a := range l.lanes {
		a.end()
	}
	for _, f := range l.flights {
		if f.x != nil {
			l.e.server.Release(f.x)
		}
	}
	if s := l.spareStream; s != nil {
		l.e.server.Release(s.flight.x)
	}
	unix.Close(int(l.mail.fd))
	unix.Close(int(l.ep))
	if l.ring != nil {
		l.ring.Close()
	}
}
