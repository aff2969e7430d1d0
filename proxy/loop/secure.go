//go:build linux

package loop

import (
	"crypto/tls"
	"errors"
	"io"
	"iter"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/handshake"
)

// secure is TLS on a client connection: crypto/tls unmodified over a socket that never blocks. It is the net.Conn that
// crypto/tls reads from and writes to.
//
// Reads: what isn't there yet is a temporary error, after which crypto/tls goes on where it stopped (a test holds it to
// that). The handshake can't do so: it runs as a coroutine of the loop, which steps aside whenever it needs more bytes.
// Writes never fail and are collected; whoever made crypto/tls write sends what came of it. So what is given to crypto/tls
// at once must be bounded: a head and what one read gave.
//
// crypto/tls is given one record at a time, so that it is known when nothing is left in it without asking.
type secure struct {
	c       *client
	conn    *tls.Conn
	altSvc  string
	shown   *auth.Shown
	canRead bool   // of the socket
	staged  []byte // what was read and not given to crypto/tls yet: of the loop's buffer while the client has its turn
	kept    []byte // the buffer of its own that staged lies in between turns; nil when nothing is staged
	record  record

	// Of the handshake; nil once it has ended.
	resume func() (struct{}, bool)
	stop   func()
	aside  func(struct{}) bool
	failed error

	plain net.Conn // once another engine serves the connection
}

// errAgain is temporary in the sense of net.Error, which crypto/tls asks for.
type errAgain struct{}

func (errAgain) Error() string   { return "loop: nothing to read yet" }
func (errAgain) Timeout() bool   { return true }
func (errAgain) Temporary() bool { return true }

// shakeHands begins TLS on a new connection.
func (c *client) shakeHands(from *listener) {
	s := &secure{c: c, altSvc: from.altSvc, canRead: true}
	s.conn = tls.Server(s, from.tls)
	s.resume, s.stop = iter.Pull(func(yield func(struct{}) bool) {
		s.aside = yield
		s.failed = s.conn.Handshake()
	})
	c.secure, c.state = s, shaking
	c.l.wheel.set(&c.timer, c.l.now.Add(c.l.e.opts.HeaderTime))
}

// mostShaking is how many handshakes may wait for their turn: about half a second's work. Those that come then are ended before
// they have cost anything; who waits for longer than that for a handshake tries anew, and has cost it in vain.
const mostShaking = 2048

// shakeSoon puts the client in line for its handshake to go on.
func (c *client) shakeSoon() {
	l := c.l
	switch {
	case c.queued:
	case len(l.shaking) >= mostShaking:
		l.e.server.Unshaken.Add(1)
		c.drop()
	default:
		c.queued = true
		l.shaking = append(l.shaking, ref{c.slot, l.slots[c.slot].gen})
	}
}

// shakeNext goes on with one handshake a turn, when all else is done: one costs as much as dozens of requests, and who is connected
// must not wait for a crowd that connects (F2).
func (l *loop) shakeNext() {
	for len(l.shaking) > 0 {
		r := l.shaking[0]
		if l.shaking = l.shaking[1:]; len(l.shaking) == 0 {
			l.shaking = nil
		}
		if s := &l.slots[r.slot]; s.gen == r.gen && s.client != nil {
			l.guarded(func() { l.goOn(r) })
			return
		}
	}
}

// shake goes on with the handshake.
func (s *secure) shake() {
	c := s.c
	if c.broken { // nobody is left to prove anything to
		c.drop()
		return
	}
	_, more := s.resume()
	s.flush()
	if more {
		return
	}
	s.resume, s.stop, s.aside = nil, nil, nil
	state := s.conn.ConnectionState()
	s.shown = handshake.Shown(state, s, c.l.e.server.Program())
	switch {
	case s.failed != nil || c.broken:
		c.drop()
	case state.NegotiatedProtocol == "h2":
		c.speakHTTP2()
	default:
		c.wait()
		c.readHead()
	}
}

// Read implements net.Conn.
func (s *secure) Read(p []byte) (int, error) {
	if s.plain != nil {
		if n := copy(p, s.staged); n > 0 {
			s.staged = s.staged[n:]
			return n, nil
		}
		return s.plain.Read(p)
	}
	for {
		if len(s.staged) > 0 {
			n := copy(p, s.staged[:s.record.upTo(s.staged)])
			s.record.given(s.staged[:n])
			s.staged = s.staged[n:]
			return n, nil
		}
		if s.canRead {
			l := s.c.l
			s.keep() // the buffer of its own has been given whole: what comes now lies in the loop's
			n, more, e := l.receive(&s.c.socket, l.raw)
			switch {
			case n > 0:
				s.canRead = s.c.ended || more
				s.staged = l.raw[:n]
				continue
			case e == 0:
				return 0, io.EOF
			case e != syscall.EAGAIN:
				return 0, e
			}
			s.canRead = false
		}
		if s.aside == nil {
			return 0, errAgain{}
		}
		s.flush()
		s.keep()
		if !s.aside(struct{}{}) {
			return 0, net.ErrClosed
		}
	}
}

// Write implements net.Conn.
func (s *secure) Write(p []byte) (int, error) {
	if s.plain != nil {
		return s.plain.Write(p)
	}
	s.c.l.sealed = append(s.c.l.sealed, p...)
	return len(p), nil
}

// flush sends what crypto/tls has written.
func (s *secure) flush() bool {
	l := s.c.l
	if len(l.sealed) == 0 {
		return true
	}
	ok := s.c.sendRaw(l.sealed, nil)
	l.sealed = l.sealed[:0]
	return ok
}

// unread is how much may wait for a client that is still listened to: an answer's share of it, and answers to updates of
// keys, which it can ask for as often as it likes.
const unread = 4 * bigSize

// read reads what there is into b, and sends what crypto/tls answers to it.
func (s *secure) read(b []byte) (n int, more bool) {
	n, more = s.decrypt(b)
	s.keep()
	if len(s.c.l.sealed) > 0 && (!s.flush() || len(s.c.out) > unread) {
		return 0, false
	}
	return n, more
}

func (s *secure) decrypt(b []byte) (n int, more bool) {
	c := s.c
	for n < len(b) {
		m, err := s.conn.Read(b[n:])
		n += m
		switch {
		case err == nil && n < len(b) && s.empty():
			c.canRead = false
			return n, true
		case err == nil:
		case errors.Is(err, errAgain{}):
			c.canRead = false
			return n, true
		default:
			c.mute = c.mute || n == 0 && errors.Is(err, io.EOF)
			return n, n > 0 // the error comes again
		}
	}
	return n, true
}

// empty says that nothing is left to be read, neither in crypto/tls nor in the socket. It holds after a read that left room.
func (s *secure) empty() bool { return len(s.staged) == 0 && !s.canRead && s.record.whole() }

// keep saves what is staged in the loop's buffer, which the next client uses.
func (s *secure) keep() {
	l := s.c.l
	switch {
	case len(s.staged) == 0 && s.kept != nil:
		l.buffers.put(s.kept)
		s.kept = nil
	case len(s.staged) > 0 && s.kept == nil:
		s.kept = append(l.buffers.out(len(s.staged)), s.staged...)
		s.staged = s.kept
	}
}

// record follows the records (RFC 8446, section 5.1) of what is given to crypto/tls.
type record struct {
	head [5]byte
	n    int // bytes of the head that have been given
	left int // bytes of the payload that have not
}

func (r *record) whole() bool { return r.n == 0 }

// upTo is how much of b belongs to the record that has begun, or begins with b.
func (r *record) upTo(b []byte) int {
	if r.n == len(r.head) {
		return min(len(b), r.left)
	}
	head := r.head
	if n := r.n + copy(head[r.n:], b); n < len(head) {
		return len(b)
	}
	return min(len(b), len(head)-r.n+int(head[3])<<8+int(head[4]))
}

// given notes bytes that upTo allowed.
func (r *record) given(b []byte) {
	if r.n < len(r.head) {
		n := copy(r.head[r.n:], b)
		r.n += n
		b = b[n:]
		if r.n < len(r.head) {
			return
		}
		r.left = int(r.head[3])<<8 + int(r.head[4])
	}
	if r.left -= len(b); r.left == 0 {
		*r = record{}
	}
}

// send encrypts and sends.
func (s *secure) send(a, b []byte) bool {
	for _, p := range [][]byte{a, b} {
		if len(p) == 0 {
			continue
		}
		if _, err := s.conn.Write(p); err != nil {
			s.c.broken = true
			s.c.l.sealed = s.c.l.sealed[:0]
			return false
		}
	}
	return s.flush()
}

// farewell says that what was sent is all (RFC 8446, section 6.1).
func (s *secure) farewell() {
	if s.aside == nil && !s.c.broken {
		_ = s.conn.CloseWrite()
		s.flush()
	}
}

// end lets go of all that TLS holds of the loop. A handshake under way fails.
func (s *secure) end() {
	if stop := s.stop; stop != nil {
		s.stop = nil
		stop()
		s.c.l.sealed = s.c.l.sealed[:0]
	}
	s.staged = nil
	s.keep()
}

// The rest of net.Conn is for the engine that takes the connection over, and for those who look at a handshake.

// Close implements net.Conn.
func (s *secure) Close() error {
	if s.plain != nil {
		return s.plain.Close()
	}
	return nil // the loop closes it
}

// LocalAddr implements net.Conn.
func (s *secure) LocalAddr() net.Addr {
	if s.plain != nil {
		return s.plain.LocalAddr()
	}
	sa, err := unix.Getsockname(int(s.c.fd))
	if err != nil {
		return &net.TCPAddr{}
	}
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return &net.TCPAddr{IP: a.Addr[:], Port: a.Port}
	case *unix.SockaddrInet6:
		return &net.TCPAddr{IP: a.Addr[:], Port: a.Port}
	}
	return &net.TCPAddr{}
}

// RemoteAddr implements net.Conn.
func (s *secure) RemoteAddr() net.Addr {
	if s.plain != nil {
		return s.plain.RemoteAddr()
	}
	return &net.TCPAddr{IP: s.c.peer.AsSlice()}
}

// SetDeadline implements net.Conn. A loop has its own timers.
func (s *secure) SetDeadline(t time.Time) error {
	if s.plain != nil {
		return s.plain.SetDeadline(t)
	}
	return nil
}

// SetReadDeadline implements net.Conn.
func (s *secure) SetReadDeadline(t time.Time) error {
	if s.plain != nil {
		return s.plain.SetReadDeadline(t)
	}
	return nil
}

// SetWriteDeadline implements net.Conn.
func (s *secure) SetWriteDeadline(t time.Time) error {
	if s.plain != nil {
		return s.plain.SetWriteDeadline(t)
	}
	return nil
}

// SyscallConn lets the other engine look at the socket.
func (s *secure) SyscallConn() (syscall.RawConn, error) {
	if sc, ok := s.plain.(syscall.Conn); ok {
		return sc.SyscallConn()
	}
	return nil, os.ErrInvalid
}
