//go:build linux

package loop

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/relay"
	"github.com/cellgate/cellgate/reason"
)

// client is one client connection. It owns buffers only while they hold something, and a flight from the first byte of a
// head to the end of the answer: an idle connection is this and its slot. One that speaks HTTP/2 has a codec instead, and its
// streams have the flights.
//
//	shaking ─ TLS is agreed on ─▶ waiting
//	waiting ─ a byte ─▶ heading ─ a whole head ─▶ busy ─ answered ─▶ waiting
//	   │                   └── no HTTP, or too slow ──┴── answered with close ─▶ lingering ─▶ gone
//	   └─ HTTP/2 ─▶ framed ─ over ──────────────────────────────────────────────────▲
type client struct {
	socket
	l     *loop
	state state

	broken bool // the kernel says that the connection is dead both ways
	mute   bool // the end of what it sends has been read
	queued bool // in the loop's list of those that go on

	secure *secure // nil = plain
	h2     *h2conn // nil = HTTP/1
	timer  timer
	flight *flight
	in     []byte // what has been read and isn't used up is in[r:w]; nil when there is nothing
	r, w   int

	peer    netip.Addr
	text    string
	framing relay.Framing // of the answer under way
	old     int64         // unix nanoseconds from which the client is asked to leave
	goneBy  time.Time     // when to look whether it is there; zero = it has not ended its sending
	asked   bool          // during this exchange, by something that was sent
	seen    int64         // of the answer's body, when it was last looked at
	spare   int           // bytes that a lingering connection may still send
	until   time.Time     // and how long
}

type state uint8

const (
	shaking state = iota
	waiting
	heading
	busy
	framed
	lingering
)

// wait begins the wait for the next request. Nothing of it is here yet.
func (c *client) wait() {
	c.state = waiting
	c.l.wheel.set(&c.timer, c.l.now.Add(c.idle()))
}

func (c *client) idle() time.Duration {
	s := c.l.e.server
	if s.Draining() {
		return relay.DrainIdle
	}
	if s.Leaving() {
		return relay.LeaveIdle
	}
	return c.l.e.opts.Idle
}

// leave makes the client old by a time, and gives it until another if it is idle.
func (c *client) leave(old, idle time.Time) {
	c.old = min(c.old, old.UnixNano())
	switch c.state {
	case waiting:
		c.l.wheel.set(&c.timer, idle)
	case framed:
		c.l.wheel.set(&c.timer, c.h2.wakeBy())
	}
}

// readable is called when something may be there to be read.
func (c *client) readable() {
	switch c.state {
	case shaking:
		c.shakeSoon()
	case waiting, heading:
		c.readHead()
	case busy:
		c.ready()
	case framed:
		c.h2.read()
	case lingering:
		c.discard()
	}
}

// goOn is another turn.
func (c *client) goOn() {
	switch {
	case c.state == shaking:
		c.secure.shake()
	case c.state == busy:
		c.flight.goOn()
	case c.state == framed:
		c.h2.goOn()
	case c.state == waiting && c.w > c.r:
		if c.head(); c.state == heading && c.canRead { // the rest may have come while the last exchange was under way
			c.readHead()
		}
	case c.canRead:
		c.readable()
	}
}

// read reads once into b and keeps the books. more says that nothing came but may come.
func (c *client) read(b []byte) (n int, more bool) {
	if c.secure != nil {
		return c.secure.read(b)
	}
	n, more, e := c.l.receive(&c.socket, b)
	switch {
	case e == syscall.EAGAIN:
		c.canRead = false
		return 0, true
	case n > 0:
		c.canRead = c.ended || more // a short read has emptied the socket, but for its end
		return n, true
	}
	c.canRead, c.mute = false, e == 0
	return 0, false
}

// readHead reads until a whole head is there.
func (c *client) readHead() {
	for c.canRead && (c.state == waiting || c.state == heading) {
		if c.in == nil {
			c.in = c.l.buffers.in()
		}
		if c.w == len(c.in) {
			c.grow(2 * len(c.in))
		}
		n, more := c.read(c.in[c.w:])
		if !more {
			c.drop()
			return
		}
		if c.w += n; n > 0 {
			c.head()
		}
	}
	if c.state == waiting && c.r == c.w {
		c.rest()
	}
}

// head takes in what has been read of a head. There is some.
func (c *client) head() {
	l := c.l
	if c.state == waiting {
		c.state = heading
		l.clock()
		c.flight = l.takeFlight()
		c.flight.of(c, c, &c.timer, "HTTP/1.1")
	}
	b := c.in[c.r:c.w]
	x := c.flight.x
	n, err := 0, error(nil)
	if c.secure != nil || !http1.Preface(b) {
		n, err = x.Request.Parse(b)
	} else {
		c.speakHTTP2()
		return
	}
	switch {
	case errors.Is(err, http1.ErrForeign):
		c.drop()
	case err != nil:
		c.refuse(relay.HeadReason(err))
	case n > 0:
		c.r += n
		c.state = busy
		c.flight.begin()
	default:
		l.wheel.set(&c.timer, x.Start.Add(l.e.opts.HeaderTime))
	}
}

// refuse answers a head that could not be read.
func (c *client) refuse(why reason.Reason) {
	c.state = busy
	c.flight.refuse(why)
}

// next is called when an exchange has ended and the connection goes on.
func (c *client) next() {
	c.state = waiting
	if c.r < c.w {
		c.w = copy(c.in, c.in[c.r:c.w])
		c.r = 0
		c.l.later(c)
		return
	}
	c.rest()
	c.wait()
	if c.canRead {
		c.l.later(c)
	}
}

// rest gives back what an idle connection doesn't need.
func (c *client) rest() {
	if c.in != nil {
		c.l.buffers.put(c.in)
		c.in, c.r, c.w = nil, 0, 0
	}
}

// grow moves the unread bytes into a buffer of at least n bytes. One that holds the head of the exchange under way stays
// with the exchange.
func (c *client) grow(n int) {
	bigger := make([]byte, max(min(n, http1.MaxHead+inSize), c.w-c.r+inSize))
	c.w = copy(bigger, c.in[c.r:c.w])
	c.r = 0
	if c.state == busy {
		c.flight.keep(c.in)
	} else {
		c.l.buffers.put(c.in)
	}
	c.in = bigger
}

// send gives the client a and b. It is false when the connection is broken.
func (c *client) send(a, b []byte) bool {
	if c.secure != nil {
		return c.secure.send(a, b)
	}
	return c.sendRaw(a, b)
}

// sendRaw sends a and b as they are, or keeps what doesn't go out at once.
func (c *client) sendRaw(a, b []byte) bool {
	_, ok := c.l.send(&c.socket, a, b)
	c.broken = c.broken || !ok
	return ok
}

// wrote takes in what became of a write of what waited, and goes on. It is false when the connection is gone afterwards.
func (c *client) wrote(n int, e syscall.Errno) bool {
	switch ok := c.l.wrote(&c.socket, n, e); {
	case !ok:
		c.broken = true
		if c.state == busy { // else what has come of a head is no exchange yet
			c.flight.clientBroke()
		} else {
			c.drop()
		}
	case len(c.out) > 0:
	case c.flight != nil:
		c.flight.drained()
	case c.h2 != nil:
		c.h2.drained()
		c.h2.flush()
	case c.state == lingering:
		c.hangUp()
	}
	return c.fd >= 0
}

// linger lets the client read its answer before the connection is closed.
func (c *client) linger() {
	c.rest()
	c.state, c.spare, c.until = lingering, relay.LingerBytes, c.l.now.Add(relay.LingerTime)
	if c.secure != nil {
		c.secure.farewell()
	}
	c.stay()
	if len(c.out) == 0 { // else once that is sent
		c.hangUp()
	}
}

// hangUp ends the sending, and reads what comes until the client has read all.
func (c *client) hangUp() {
	_ = unix.Shutdown(int(c.fd), unix.SHUT_WR)
	if c.canRead {
		c.discard()
	}
}

// stay bounds the silence of a lingering connection, from now on, and its time.
func (c *client) stay() {
	by := c.l.now.Add(relay.LingerQuiet)
	if c.until.Before(by) {
		by = c.until
	}
	c.l.wheel.set(&c.timer, by)
}

// discard passes over what a client sends that has its last answer.
func (c *client) discard() {
	for n := 0; c.canRead; n++ {
		if n == turns {
			c.later()
			return
		}
		got, more := c.read(c.l.in)
		if c.spare -= got; !more || c.spare <= 0 {
			c.drop()
			return
		}
		if got > 0 {
			c.stay()
		}
	}
}

// expired is called when the connection's time is up.
func (c *client) expired() {
	c.l.attend(c.slot)
	switch c.state {
	case waiting:
		if c.secure != nil {
			c.secure.farewell()
		}
		c.drop()
	case shaking, lingering:
		c.drop()
	case heading:
		c.refuse(reason.HeaderTimeout)
	case busy:
		c.flight.expired()
	case framed:
		c.h2.expired()
	}
}

// drop closes the connection, and breaks off the exchange that it carries.
func (c *client) drop() {
	if c.fd < 0 {
		return
	}
	if f := c.flight; f != nil {
		c.flight = nil
		f.breakOff(c.state == busy)
	}
	if c.h2 != nil {
		c.h2.close()
	}
	if c.secure != nil {
		c.secure.end()
	}
	if c.posted {
		_, _ = c.l.write(c.fd, c.out)
	}
	unix.Close(int(c.fd))
	c.forget()
}

// forget empties the connection's slot. The descriptor is closed, or another's.
func (c *client) forget() {
	l := c.l
	l.wheel.stop(&c.timer)
	l.leave(c.slot)
	c.fd, c.canRead, c.ahead = -1, false, ahead{}
	c.rest()
	c.unsend(l)
	l.clients--
	l.e.server.Connections.Add(-1)
}

// depart gives the connection with its exchange to the other engine.
func (c *client) depart() {
	l, f := c.l, c.flight
	if c.posted {
		n, e := l.write(c.fd, c.out)
		l.wrote(&c.socket, n, e)
	}
	h := engine.Handed{Read: c.in[:c.w], Unsent: bytes.Clone(c.out[c.sent:]), Old: time.Unix(0, c.old), Exchange: f.x, Head: c.r}
	if ahead := c.ahead.b; c.secure != nil {
		c.secure.staged = append(c.secure.staged[:len(c.secure.staged):len(c.secure.staged)], ahead...)
	} else {
		h.Read = append(h.Read[:c.w:c.w], ahead...)
	}
	_ = unix.EpollCtl(int(l.ep), unix.EPOLL_CTL_DEL, int(c.fd), nil)
	file := os.NewFile(uintptr(c.fd), "")
	nc, err := net.FileConn(file) // a descriptor of its own
	if exhausted(err) && l.makeRoom() {
		nc, err = net.FileConn(file)
	}
	file.Close()
	f.x, c.flight, c.in, c.r, c.w = nil, nil, nil, 0, 0
	f.breakOff(true)
	c.forget()
	if err != nil {
		l.e.opts.Log.Warn("handing a connection over", "error", err)
		l.e.server.Release(h.Exchange)
		return
	}
	if h.Conn = nc; c.secure != nil {
		c.secure.plain = nc
		h.Conn, h.AltSvc, c.secure.c = c.secure.conn, c.secure.altSvc, nil
	}
	l.e.rest.Take(h)
}
