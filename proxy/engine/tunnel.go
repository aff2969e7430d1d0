package engine

import (
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/websocket"
)

// tunneler is a client that can leave HTTP.
type tunneler interface {
	// ahead says whether the client has sent something behind its request without waiting for the answer.
	ahead() bool
	// carry sends the answer's head, which agrees to leave HTTP, and serves the tunnel to its end.
	carry(up outlet)
}

// outlet is the upstream's side of a tunnel: a connection, or a stream of one. It has no deadlines.
type outlet interface {
	io.WriteCloser
	// Buffered is what has come, More waits for more of it when there is nothing, Use says how much has gone on.
	Buffered() []byte
	Use(n int)
	More() error
	// CloseWrite says that nothing more comes; what the upstream sends can still be read.
	CloseWrite() error
}

// pipe is the client's side of a tunnel: a connection, or a stream of one.
type pipe interface {
	io.ReadWriteCloser
	// CloseWrite says that nothing more comes; what the client sends can still be read.
	CloseWrite() error
	SetDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// leavesHTTP says whether a tunnel may be opened for the client. One that sends ahead of the answer doesn't keep to the
// protocol, or hides a request behind the handshake (CASES G9).
func leavesHTTP(cl client) bool {
	t, ok := cl.(tunneler)
	return ok && !t.ahead()
}

// tunnel carries the upstream's agreement to the client, and both sides' bytes from there on. Both ways end with it.
func (f *forwarding) tunnel() bool {
	f.cl.(tunneler).carry(f.way.outlet())
	f.now = time.Now()
	f.release(false)
	return false
}

func (c *conn) ahead() bool { return c.r < c.w }

func (c *conn) carry(up outlet) {
	c.answer.broken = true // nothing of HTTP follows
	cl, ok := c.nc.(pipe)
	if !ok {
		return
	}
	*c.out = agreement((*c.out)[:0], c.x)
	err := c.flush()
	c.answer.finish(c)
	if err == nil {
		c.e.tunnel(c.x, cl, up)
	}
}

// agreement is the head of the answer to a client over HTTP/1.1.
func agreement(dst []byte, x *proxy.Exchange) []byte {
	dst = x.AppendFields(http1.AppendStatusLine(dst, x.Status))
	return append(x.WebSocket.AppendAgreement(dst), "\r\n"...)
}

// closeTime is how long a tunnel may go on once it is to end: for the frame under way, for the client's answer to the close
// frame, and for the upstream's to that.
const closeTime = 2 * time.Second

// lookAgain is how soon a tunnel hears of the denylist (D6).
const lookAgain = time.Second

// tunnelEnd is when a tunnel that is there now should end: at its age, or soon when the node is being left. Then ends are
// spread, because every client comes back with a handshake: over half of the time to the hard stop in a drain, else over
// a time that clients of a cell that is being evacuated won't notice.
func (e *Engine) tunnelEnd(now time.Time) time.Time {
	switch {
	case e.server.Draining():
		return now.Add(rand.N(e.opts.HardStop/2 + 1))
	case e.server.Leaving():
		return now.Add(rand.N(15*e.opts.LeaveOver + 1))
	}
	return now.Add(e.opts.TunnelAge*4/5 + rand.N(e.opts.TunnelAge*2/5+1))
}

// tunnel is one connection that has left HTTP: two copies, each reading nothing before the other side has taken what came
// before, and a timer that ends it. While it is open neither copy has a deadline.
//
//	open ──age, drain, silence, denial──▶ asked ──between two frames──▶ said ──both ends, or closeTime after asked──▶ cut
type tunnel struct {
	x      *proxy.Exchange
	cl     pipe
	up     outlet
	active atomic.Int64  // when a byte last moved, unix nanoseconds
	code   atomic.Uint32 // of the close frame that is to be said; 0 = open

	// Guarded by way, which is held while bytes go to the client.
	way    sync.Mutex
	frames websocket.Frames
	said   bool // the client was told to close; what the upstream sends goes nowhere

	// Guarded by clock.
	clock sync.Mutex
	timer *time.Timer // nil once the tunnel is over
	idle  time.Duration
	end   time.Time
	asked time.Time
}

// tunnel serves a client that has left HTTP, until both directions have ended.
func (e *Engine) tunnel(x *proxy.Exchange, cl pipe, up outlet) {
	t := &tunnel{x: x, cl: cl, up: up, idle: e.opts.TunnelIdle}
	x.Opened = time.Now()
	t.active.Store(x.Opened.UnixNano())
	_ = cl.SetDeadline(time.Time{})
	e.server.Tunnels.Add(1)
	defer e.server.Tunnels.Add(-1)
	e.mu.Lock()
	t.end = e.tunnelEnd(x.Opened)
	e.tunnels[t] = struct{}{}
	e.mu.Unlock()
	t.run()
	e.mu.Lock()
	delete(e.tunnels, t)
	e.mu.Unlock()
}

func (t *tunnel) run() {
	t.clock.Lock()
	t.timer = time.AfterFunc(0, t.watch)
	t.clock.Unlock()
	down := make(chan struct{})
	go func() { defer close(down); t.down() }()
	t.upward()
	<-down
	t.clock.Lock()
	t.timer.Stop()
	t.timer = nil
	t.clock.Unlock()
}

// leave makes the tunnel end at a time, at the latest.
func (t *tunnel) leave(at time.Time) {
	t.clock.Lock()
	defer t.clock.Unlock()
	if t.timer == nil || !at.Before(t.end) {
		return
	}
	if t.end = at; t.asked.IsZero() {
		t.timer.Reset(time.Until(at))
	}
}

// halved leaves a tenth of the idle time to the direction that is still open: whoever has ended its own is often gone.
func (t *tunnel) halved() {
	t.clock.Lock()
	defer t.clock.Unlock()
	if t.timer != nil && t.asked.IsZero() {
		t.idle /= 10
		t.timer.Reset(0)
	}
}

// watch ends what has to end, and comes again when something may have to.
func (t *tunnel) watch() {
	code, over := t.due(time.Now())
	switch {
	case over:
		t.cut()
	case code != 0:
		t.code.Store(code)
		_ = t.cl.SetWriteDeadline(time.Now().Add(closeTime))
		if t.way.TryLock() { // else whoever holds it says it
			t.sayClose()
			t.way.Unlock()
		}
	}
}

func (t *tunnel) due(now time.Time) (code uint32, over bool) {
	t.clock.Lock()
	defer t.clock.Unlock()
	if t.timer == nil {
		return 0, false
	}
	if !t.asked.IsZero() { // the clock may have been set anew while it rang
		rest := closeTime - now.Sub(t.asked)
		if rest > 0 {
			t.timer.Reset(rest)
		}
		return 0, rest <= 0
	}
	left, quiet := t.end.Sub(now), time.Unix(0, t.active.Load()).Add(t.idle).Sub(now)
	switch {
	case left <= 0:
		code = websocket.ServiceRestart
	case quiet <= 0:
		code = websocket.GoingAway
	case t.x.Revoked():
		code = websocket.PolicyViolation
	default:
		t.timer.Reset(min(left, quiet, lookAgain))
		return 0, false
	}
	t.asked = now
	t.timer.Reset(closeTime)
	return code, false
}

// sayClose puts a close frame in, if one is to be said and this is the place. The client's answer to it goes upstream, where
// it closes the other side. It is called with way held.
func (t *tunnel) sayClose() {
	code := t.code.Load()
	if code == 0 || t.said || !t.frames.Between() {
		return
	}
	t.said = true
	if t.frames.Closed() {
		return // the upstream has said it
	}
	frame := websocket.Close(uint16(code))
	if _, err := t.cl.Write(frame[:]); err != nil {
		t.cut()
	}
}

// down copies to the client.
func (t *tunnel) down() {
	for {
		if b := t.up.Buffered(); len(b) > 0 {
			if t.give(b) != nil {
				t.cut()
				return
			}
			t.up.Use(len(b))
			continue
		}
		if err := t.up.More(); err != nil {
			t.way.Lock()
			ended := t.said
			t.way.Unlock()
			if ended || !cleanEnd(err) || t.cl.CloseWrite() != nil {
				t.cut()
			}
			t.halved()
			return
		}
	}
}

// give writes what came from the upstream, up to the place where the close frame has to go.
func (t *tunnel) give(b []byte) (err error) {
	t.touch()
	t.way.Lock()
	t.sayClose()
	for rest := b; len(rest) > 0 && !t.said; {
		n := t.frames.Next(rest)
		rest = rest[n:]
		if t.code.Load() == 0 && len(rest) > 0 {
			continue
		}
		piece := b[:len(b)-len(rest)]
		b = rest
		if _, err = t.cl.Write(piece); err != nil {
			break
		}
		t.x.BytesOut += int64(len(piece))
		t.sayClose()
	}
	t.way.Unlock()
	if t.touch(); err == nil && t.code.Load() != 0 { // watch may have found way held
		t.way.Lock()
		t.sayClose()
		t.way.Unlock()
	}
	return err
}

// upward copies from the client.
func (t *tunnel) upward() {
	room := inBuffers.Get().(*[]byte)
	defer inBuffers.Put(room)
	for {
		n, err := t.cl.Read(*room)
		if n > 0 {
			t.touch()
			if _, werr := t.up.Write((*room)[:n]); werr != nil {
				t.cut()
				return
			}
			t.x.BytesIn += int64(n)
			t.touch()
		}
		if err != nil {
			if !cleanEnd(err) || t.up.CloseWrite() != nil {
				t.cut()
			}
			t.halved()
			return
		}
	}
}

func (t *tunnel) touch() { t.active.Store(time.Now().UnixNano()) }

// cut ends both sides now. Whoever reads or writes there learns of it.
func (t *tunnel) cut() {
	_, _ = t.cl.Close(), t.up.Close()
}
