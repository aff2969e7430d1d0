package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/proxy/http2"
)

// line is one connection to an endpoint that carries many exchanges at once, over HTTP/2. One goroutine opens it, reads and
// feeds the codec, another sends while there is something to send: what comes together goes out together. Exchanges wait in
// goroutines of their own.
//
//	opening ──settings have come──▶ open ──no user, or the connection is lost──▶ forgotten by its pool
type line struct {
	pool     *Pool
	endpoint int
	born     time.Time
	up       chan struct{} // closed when it is open, or not to be had
	err      error         // why not; readable once up is closed
	nc       net.Conn      // from then on

	most atomic.Int32 // streams that it takes at once; 0 = none for now, or any more

	// Guarded by the pool's lock.
	opening bool
	users   int // exchanges that have it, or wait for it
	rests   time.Time

	mu      sync.Mutex
	codec   http2.Client
	buffer  *[]byte // that codec writes into; nil while there is nothing to write
	sending bool    // the sender runs
	closing bool    // what is to be sent is the last
	broken  bool    // nothing more can be sent
	lost    error   // why nothing more comes
	served  bool    // it has answered an exchange
	waiting bool    // an exchange waits for the output to become shorter, or for the connection's window
	asked   bool    // it is asked whether it is there, and has said nothing since
	heard   time.Time
	spoke   time.Time // when it was last asked; an endpoint may take many pings without a word for a flood
	readBy  time.Time
}

func newLine(p *Pool, endpoint int, now time.Time) *line {
	return &line{pool: p, endpoint: endpoint, born: now, opening: true, up: make(chan struct{})}
}

// run opens the line and reads it to its end.
func (l *line) run() {
	p := l.pool
	ctx, cancel := context.WithTimeout(context.Background(), p.Timeouts.Connect)
	nc, err := p.dialLine(ctx, l.endpoint, l.born)
	until, _ := ctx.Deadline()
	cancel()
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	if err == nil {
		if l.nc, err = nc, l.greet(nc, *buf, until); err != nil {
			nc.Close()
		}
	}
	p.opened(l, err)
	if err == nil {
		l.end(l.read(*buf))
		p.mu.Lock()
		p.forget(l)
		p.mu.Unlock()
	}
}

// opened lets those in who wait for the line.
func (p *Pool) opened(l *line, err error) {
	p.mu.Lock()
	l.err, l.opening = err, false
	switch {
	case err != nil:
		p.forget(l)
	case l.users == 0:
		if l.rests = time.Now(); p.retired.Load() {
			p.drop(l)
		}
	}
	if err == nil {
		p.offers[l.endpoint] = int(l.most.Load())
	}
	p.mu.Unlock()
	close(l.up)
}

// ready waits until the line is open.
func (l *line) ready(deadline time.Time) error {
	select {
	case <-l.up:
		return l.err
	default:
	}
	t := time.NewTimer(time.Until(deadline))
	defer t.Stop()
	select {
	case <-l.up:
		return l.err
	case <-t.C:
		return os.ErrDeadlineExceeded
	}
}

// resting says whether nobody uses the line. The pool's lock is held.
func (l *line) resting() bool { return !l.opening && l.users == 0 }

// greet begins the connection and waits for the endpoint's settings, which show that it speaks HTTP/2: before that nothing
// is sent that another protocol could take for a request.
func (l *line) greet(nc net.Conn, buf []byte, until time.Time) error {
	_ = nc.SetDeadline(until)
	now := time.Now()
	l.heard = now
	l.codec.Start(now, http2.Times{Pong: l.pool.patience.pong})
	l.codec.Skip(l.pool.firstID)
	if _, err := nc.Write(l.codec.Out(nil)); err != nil {
		return err
	}
	for !l.codec.Settled() {
		n, err := nc.Read(buf)
		if err != nil {
			return err
		}
		for b := buf[:n]; len(b) > 0; {
			n, _ := l.codec.Feed(b, nil, time.Now())
			b = b[n:]
		}
		if _, failed := l.codec.Failed(); failed {
			return ErrProtocol
		}
	}
	if l.most.Store(int32(l.codec.Most())); l.codec.Most() == 0 {
		return ErrRefused
	}
	l.readBy = past
	return nc.SetDeadline(time.Time{})
}

// past is a deadline that makes whatever waits return.
var past = time.Unix(1, 0)

// read feeds the codec until the connection is over.
func (l *line) read(buf []byte) error {
	for b := buf[:0]; ; {
		if err := l.take(b); err != nil {
			return err
		}
		n, err := l.nc.Read(buf)
		if b = buf[:n]; n == 0 && !errors.Is(err, os.ErrDeadlineExceeded) {
			return io.ErrUnexpectedEOF
		}
	}
}

// take feeds what came; nothing means that time has passed.
func (l *line) take(b []byte) error {
	now := time.Now()
	l.lock()
	defer l.unlock()
	if len(b) == 0 {
		l.codec.Tick(now)
	} else {
		l.heard, l.asked = now, false
	}
	for len(b) > 0 {
		n, ev := l.codec.Feed(b, nil, now)
		b = b[n:]
		l.happened(ev)
	}
	if l.readBy.Before(now) {
		l.wakeReader(l.codec.Due())
	}
	switch code, failed := l.codec.Failed(); {
	case failed && code == http2.NoError:
		return os.ErrDeadlineExceeded // it answers no more
	case failed:
		return errInvalid
	case l.lost != nil:
		return l.lost
	case l.codec.Over():
		return ErrLeft
	}
	return nil
}

// happened does what an event asks for.
func (l *line) happened(ev http2.Event) {
	switch {
	case ev.Kind == http2.None:
	case ev.Stream == nil:
		l.wakeAll(ev.Kind == http2.Writable)
	case ev.Kind == http2.Writable:
		ev.Stream.Owner.(*Stream).mayWrite.Signal()
	case ev.Kind == http2.Ended:
		ev.Stream.Owner.(*Stream).signal()
	case ev.Kind == http2.Interim:
		s := ev.Stream.Owner.(*Stream)
		s.keep()
		s.mayRead.Signal()
	default:
		l.served, l.spoke = true, time.Time{}
		if s := ev.Stream.Owner.(*Stream); ev.Stream.Complete() { // its writer may stop
			s.signal()
		} else {
			s.mayRead.Signal()
		}
	}
}

// wakeAll lets exchanges look what has become of them, or only try again to write.
func (l *line) wakeAll(writers bool) {
	for s := range l.codec.Held {
		if s := s.Owner.(*Stream); !writers {
			s.signal()
		} else if !s.codec.Stalled() {
			s.mayWrite.Signal()
		}
	}
}

// lock must go before any use of the codec.
func (l *line) lock() {
	l.mu.Lock()
	if l.buffer == nil {
		l.buffer = lineBuffers.Get().(*[]byte)
		l.codec.Out(*l.buffer)
	}
}

// unlock sees to what has become due.
func (l *line) unlock() {
	defer l.mu.Unlock()
	most := l.codec.Most()
	if l.asked {
		most = 0
	}
	l.most.Store(int32(most))
	switch {
	case l.sending || l.broken:
	case l.codec.Pending() > 0:
		l.sending = true
		go l.send()
	case l.codec.Streams() == 0:
		l.giveBuffer()
	}
	if l.codec.Over() || l.lost != nil {
		l.wakeReader(past)
	} else if due := l.codec.Due(); due.Before(l.readBy) {
		l.wakeReader(due)
	}
}

// lineBuffers hold output; they keep the size that they have grown to.
var lineBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 16<<10); return &b }}

// maxKept is the largest output buffer that is kept.
const maxKept = http2.HighWater + 48<<10

func putOut(b *[]byte) {
	if cap(*b) <= maxKept {
		lineBuffers.Put(b)
	}
}

func (l *line) giveBuffer() {
	*l.buffer = l.codec.Out(nil)[:0]
	putOut(l.buffer)
	l.buffer = nil
}

func (l *line) wakeReader(at time.Time) {
	if !l.readBy.Equal(at) {
		l.readBy = at
		_ = l.nc.SetReadDeadline(at)
	}
}

// How long an endpoint may take to read what one write sends, and what the last one does.
const (
	sendPatience = 30 * time.Second
	lastPatience = time.Second
)

// send writes until there is nothing more to write.
func (l *line) send() {
	next := lineBuffers.Get().(*[]byte)
	for {
		runtime.Gosched() // whatever else can run first may have something to send as well
		l.mu.Lock()
		if l.codec.Pending() == 0 || l.broken {
			l.sending = false
			if l.codec.Streams() == 0 && l.buffer != nil {
				l.giveBuffer()
			}
			closing := l.closing || l.broken
			l.mu.Unlock()
			putOut(next)
			if closing {
				l.nc.Close()
			}
			return
		}
		*next = l.codec.Out(*next)
		if l.waiting {
			l.waiting = false
			l.wakeAll(true)
		}
		patience := sendPatience
		if l.closing {
			patience = lastPatience
		}
		l.mu.Unlock()
		_ = l.nc.SetWriteDeadline(time.Now().Add(patience))
		if _, err := l.nc.Write(*next); err != nil {
			l.lose(io.ErrUnexpectedEOF, true)
		}
	}
}

// lose ends every wait: nothing more comes. broken says that nothing can be sent either.
func (l *line) lose(why error, broken bool) {
	l.lock()
	defer l.unlock()
	if l.lost == nil {
		l.lost = why
	}
	l.broken = l.broken || broken
	l.wakeAll(false)
}

// end is the end of a line as its reader has seen it: exchanges learn of it, and the endpoint if it is there.
func (l *line) end(why error) {
	l.lose(why, errors.Is(why, io.ErrUnexpectedEOF))
	l.close()
}

// close says goodbye and closes the connection once that is sent.
func (l *line) close() {
	l.lock()
	l.codec.Leave()
	l.closing = true
	idle := l.broken || l.codec.Pending() == 0 && !l.sending
	l.unlock()
	if idle {
		l.nc.Close()
		return
	}
	_ = l.nc.SetWriteDeadline(time.Now().Add(lastPatience))
}

// ask asks the endpoint whether it is there: until it says something no more exchanges are trusted to it. Once is enough
// while it says nothing of its exchanges: more pings are a flood to some.
func (l *line) ask(now time.Time) {
	if l.asked || !l.spoke.IsZero() {
		return
	}
	l.asked, l.spoke = true, now
	l.codec.Ask(now)
}
