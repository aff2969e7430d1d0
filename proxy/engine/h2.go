package engine

import (
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/cellgate/cellgate/proxy/http2"
	"github.com/cellgate/cellgate/proxy/relay"
)

// h2Front keeps the HTTP/2 connections of an engine.
type h2Front struct {
	e     *Engine
	mu    sync.Mutex
	conns map[*h2conn]struct{}
}

func (h *h2Front) init(e *Engine) { h.e, h.conns = e, map[*h2conn]struct{}{} }

// goAway asks the clients of all connections to open no more streams on them.
func (h *h2Front) goAway() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for q := range h.conns {
		q.leave()
	}
}

// serve takes a connection over to its end; prefix is what has been read of it.
func (h *h2Front) serve(c *conn, prefix []byte) {
	c.waits.Store(0)
	q := &h2conn{c: c, readBy: c.readBy}
	h.mu.Lock()
	h.conns[q] = struct{}{}
	h.mu.Unlock()
	gone := true
	defer func() {
		q.end(gone)
		q.work.Wait()
		h.mu.Lock()
		delete(h.conns, q)
		h.mu.Unlock()
		if !gone {
			c.linger()
		}
	}()
	gone = q.read(prefix)
}

// h2conn is one client connection that speaks HTTP/2. One goroutine reads and feeds the codec, one per stream runs its
// exchange, and one sends while there is something to send: what comes together goes out together.
type h2conn struct {
	c    *conn
	work sync.WaitGroup // exchanges and the sender

	spare *stream // for the next request; the reader's

	mu      sync.Mutex
	codec   http2.Server
	buffer  *[]byte   // that codec writes into; nil while there is nothing to write
	sending bool      // the sender runs
	ended   bool      // exchanges have nobody to answer any more
	broken  bool      // nothing more can be sent
	wanting bool      // an exchange waits for the output to become shorter, or for the connection's window
	readBy  time.Time // the read deadline that is set
}

// h2Buffers hold output; they keep the size that they have grown to.
var h2Buffers = sync.Pool{New: func() any { b := make([]byte, 0, 16<<10); return &b }}

// maxKept is the largest output buffer that is kept: HighWater, one frame, and a head.
const maxKept = http2.HighWater + 48<<10

func putOut(b *[]byte) {
	if cap(*b) <= maxKept {
		h2Buffers.Put(b)
	}
}

// lock must go before any use of the codec.
func (q *h2conn) lock() {
	q.mu.Lock()
	if q.buffer == nil {
		q.buffer = h2Buffers.Get().(*[]byte)
		q.codec.Out(*q.buffer)
	}
}

// unlock sees to what has become due: sending, if now says so, and the reader's deadline.
func (q *h2conn) unlock(now bool) {
	defer q.mu.Unlock()
	switch {
	case q.sending:
	case q.codec.Pending() == 0:
		if q.codec.Streams() == 0 {
			q.giveBuffer()
		}
	case now && !q.broken:
		q.sending = true
		q.work.Add(1)
		go q.send()
	}
	if q.codec.Over() || q.broken {
		q.wakeReader(past)
	} else if due := q.due(); due.Before(q.readBy) {
		q.wakeReader(due)
	}
}

// past is a deadline that makes whatever waits return.
var past = time.Unix(1, 0)

// due is when the reader has something to do although nothing comes: what the codec waits for, or the connection's age.
func (q *h2conn) due() time.Time {
	due := q.codec.Due()
	if old := time.Unix(0, q.c.old.Load()); !q.codec.Leaving() && old.Before(due) {
		return old
	}
	return due
}

func (q *h2conn) giveBuffer() {
	*q.buffer = q.codec.Out(nil)[:0]
	putOut(q.buffer)
	q.buffer = nil
}

func (q *h2conn) wakeReader(at time.Time) {
	if !q.readBy.Equal(at) {
		q.readBy = at
		_ = q.c.nc.SetReadDeadline(at)
	}
}

// sendPatience is how long a client may take to read what one write sends.
const sendPatience = 30 * time.Second

// send writes until there is nothing more to write.
func (q *h2conn) send() {
	defer q.work.Done()
	next := h2Buffers.Get().(*[]byte)
	for {
		runtime.Gosched() // whatever else can run first may have something to send as well
		q.mu.Lock()
		if q.codec.Pending() == 0 || q.broken {
			if q.sending = false; q.codec.Streams() == 0 {
				q.giveBuffer()
			}
			q.mu.Unlock()
			putOut(next)
			return
		}
		*next = q.codec.Out(*next)
		if q.wanting {
			q.wakeWriters()
		}
		q.mu.Unlock()
		q.c.armWrite(time.Now().Add(sendPatience))
		if _, err := q.c.nc.Write(*next); err != nil {
			q.end(true)
		}
	}
}

// wakeWriters lets exchanges try again that don't wait for their own stream's window.
func (q *h2conn) wakeWriters() {
	q.wanting = false
	for s := range q.codec.Held {
		if !s.Stalled() {
			s.Owner.(*stream).mayWrite.Signal()
		}
	}
}

// end ends every wait: nothing more comes, and when the client is gone nothing can be sent either.
func (q *h2conn) end(gone bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended, q.broken = true, q.broken || gone
	for s := range q.codec.Held {
		s.Owner.(*stream).signal()
	}
	q.wakeReader(past)
}

func (q *h2conn) leave() {
	q.lock()
	if !q.ended { // or nobody would wait for what is sent
		q.codec.Leave(time.Now())
	}
	q.unlock(!q.ended)
}

// read feeds the codec until the connection is over. gone says that nobody is there to hear of it.
func (q *h2conn) read(b []byte) (gone bool) {
	c := q.c
	c.last = time.Now()
	q.start()
	defer q.forget()
	for {
		if over, broken := q.take(b); over || broken {
			return broken
		}
		n, err := c.nc.Read(*c.buf)
		b = (*c.buf)[:n]
		c.last = time.Now()
		if n == 0 && errors.Is(err, io.EOF) {
			return q.hungUp()
		}
		if n == 0 && !errors.Is(err, os.ErrDeadlineExceeded) {
			return true
		}
	}
}

// hungUp goes on for a client that has ended its sending, until all is answered that it has asked for whole, or it is gone.
func (q *h2conn) hungUp() (gone bool) {
	q.lock()
	q.codec.HungUp(q.c.last)
	for s := range q.codec.Held {
		if s.Gone() {
			s.Owner.(*stream).signal()
		}
	}
	q.unlock(true)
	over := make(chan struct{})
	go func() { defer close(over); q.work.Wait() }()
	tick := time.NewTicker(relay.LookAfter)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return false
		case <-tick.C:
			if q.c.peek.Dead() {
				return true
			}
		}
	}
}

func (q *h2conn) start() {
	q.lock()
	defer q.unlock(false)
	q.codec.Start(q.c.last, http2.Times{Idle: q.c.e.opts.Idle, Head: q.c.e.opts.HeaderTime})
}

// take feeds what came; nothing means that time has passed.
func (q *h2conn) take(b []byte) (over, broken bool) {
	q.lock()
	defer q.unlock(true)
	c := q.c
	if q.spare == nil {
		q.spare = newStream(q)
	}
	if len(b) == 0 {
		if q.codec.Tick(c.last); c.isOld(c.last) {
			q.codec.Leave(c.last)
		}
	}
	full := len(b) == len(*c.buf)
	for len(b) > 0 {
		n, ev := q.codec.Feed(b, &q.spare.Stream, c.last)
		b = b[n:]
		q.happened(ev)
	}
	if q.resize(full); q.codec.Streams() == 0 {
		q.forget()
	}
	if q.readBy.Before(c.last) {
		q.readBy = q.due()
		_ = c.nc.SetReadDeadline(q.readBy)
	}
	if code, failed := q.codec.Failed(); failed {
		c.e.server.Faults[code].Add(1)
	}
	return q.codec.Over(), q.broken
}

// resize gives bodies a larger buffer to come in, and a quiet connection a small one.
func (q *h2conn) resize(full bool) {
	c, to := q.c, &bodyBuffers
	switch {
	case full && len(*c.buf) < bodySize:
	case len(*c.buf) == bodySize && q.codec.Streams() == 0:
		to = &inBuffers
	default:
		return
	}
	putBack(c.buf)
	c.buf = to.Get().(*[]byte)
}

// happened does what an event asks for.
func (q *h2conn) happened(ev http2.Event) {
	switch ev.Kind {
	case http2.Opened:
		q.work.Add(1)
		go q.spare.serve(ev.Err)
		q.spare = newStream(q)
	case http2.Readable:
		ev.Stream.Owner.(*stream).mayRead.Signal()
	case http2.Ended:
		ev.Stream.Owner.(*stream).signal()
	case http2.Writable:
		if ev.Stream != nil {
			ev.Stream.Owner.(*stream).mayWrite.Signal()
		} else {
			q.wakeWriters()
		}
	}
}

// forget gives the spare stream up; a connection at rest needs none.
func (q *h2conn) forget() {
	if q.spare != nil {
		q.spare.free()
		q.spare = nil
	}
}
