package engine

import (
	"io"
	"sync"
	"time"

	"github.com/cellgate/cellgate/internal/waiter"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/http2"
	"github.com/cellgate/cellgate/proxy/relay"
)

// stream is the client's side of an exchange over HTTP/2. The codec's part of it, and what is marked so, is guarded by the
// connection's lock. It is pooled; between exchanges it belongs to its connection as the spare one.
type stream struct {
	http2.Stream
	q         *h2conn
	x         *proxy.Exchange
	start     time.Time
	got       int64 // body that Read has given
	old       bool  // the client is asked to leave with the answer
	continued bool  // the client need not wait for 100 Continue; guarded
	stopped   bool  // nobody wants the rest of the body; guarded

	mayRead, mayWrite waiter.Waiter
}

func (s *stream) signal() {
	s.mayRead.Signal()
	s.mayWrite.Signal()
}

var streams = sync.Pool{New: func() any {
	s := &stream{mayRead: waiter.New(), mayWrite: waiter.New()}
	s.Owner = s
	return s
}}

// newStream gives a spare stream with an exchange of its own.
func newStream(q *h2conn) *stream {
	s := streams.Get().(*stream)
	s.q, s.x = q, q.c.e.server.Acquire()
	s.Request, s.Scratch = &s.x.Request, s.x.Scratch
	return s
}

// free gives both back.
func (s *stream) free() {
	s.x.Scratch = s.x.Request.Scratch()
	s.q.c.e.server.Release(s.x)
	s.x, s.q, s.Request, s.Scratch = nil, nil, nil, nil
	streams.Put(s)
}

// serve runs the exchange. refused is why its head must be.
func (s *stream) serve(refused error) {
	q, server := s.q, s.q.c.e.server
	server.InFlight.Add(1)
	sound := false
	defer func() {
		server.InFlight.Add(-1)
		fault := recover()
		q.c.e.caught(fault)
		q.lock()
		if !sound {
			q.codec.Reset(&s.Stream, http2.InternalError)
		}
		q.codec.Finish(&s.Stream, time.Now())
		q.unlock(true)
		if sound {
			s.free()
		}
		q.work.Done()
	}()
	x, c := s.x, q.c
	s.start, s.got, s.continued, s.stopped = time.Now(), 0, false, false
	s.old = c.isOld(s.start)
	x.Start, x.Peer, x.PeerText, x.TLS, x.Protocol, x.Via = s.start, c.peer, c.text, c.secure, "HTTP/2.0", c.via
	x.AltSvc, x.Certificates = c.altSvc, c.shown
	if refused != nil {
		x.Refuse(headReason(refused))
		answer(x, s, true)
	} else {
		drive(x, s)
	}
	x.Finish(time.Now())
	sound = true
}

// over says whether the client is not there any more. The connection is locked.
func (s *stream) over() bool {
	_, failed := s.q.codec.Failed()
	return failed || s.q.ended || s.Gone()
}

func (s *stream) gone() bool {
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	return s.over()
}

// Read gives what has come of the body, or waits for more.
func (s *stream) Read(p []byte) (int, error) {
	for {
		n, err := s.take(p)
		if s.got += int64(n); n > 0 || err != nil {
			return n, err
		}
		if !s.mayRead.Wait(relay.BodyDeadline(s.start, s.got, s.x.Deadline)) {
			return 0, errBodyTimeout
		}
	}
}

// take gives what is there.
func (s *stream) take(p []byte) (n int, err error) {
	s.q.lock()
	defer s.q.unlock(true)
	switch {
	case s.over() || s.stopped:
		return 0, errClientGone
	case len(s.Buffered()) > 0:
		n = copy(p, s.Buffered())
		s.q.codec.Use(&s.Stream, n)
		return n, nil
	case s.Complete():
		return 0, io.EOF
	}
	s.sayContinue()
	return 0, nil
}

// sayContinue answers the expectation of a client that waits with its body. The connection is locked.
func (s *stream) sayContinue() {
	if s.x.Request.Expect && !s.continued && s.q.codec.BeginHead(&s.Stream, 100) {
		s.q.codec.EndHead(&s.Stream, -1, false)
	}
	s.continued = true
}

// whole waits for the end of a short body. It stays where it is until the stream's end.
func (s *stream) whole() ([]byte, bool, error) {
	for s.x.Request.Length <= relay.SmallBody {
		b, ok, wait, err := s.all()
		if !wait {
			return b, ok, err
		}
		if !s.mayRead.Wait(relay.BodyDeadline(s.start, int64(len(b)), s.x.Deadline)) {
			return nil, false, errBodyTimeout
		}
	}
	return nil, false, nil
}

// all looks whether the whole body is there, and whether it is worth waiting for. One without a length is not.
func (s *stream) all() (b []byte, ok, wait bool, err error) {
	s.q.lock()
	defer s.q.unlock(true)
	b = s.Buffered()
	switch {
	case s.over():
		return nil, false, false, errClientGone
	case s.x.Request.Chunked && !s.Complete(), s.Trailer != nil, len(b) > relay.SmallBody:
		return nil, false, false, nil // it is streamed
	case s.Complete(), s.x.Request.Length == 0:
		return b, true, false, nil
	}
	s.sayContinue()
	return b, false, true, nil
}

// discard: a stream's unread body hinders nobody.
func (s *stream) discard() bool { return true }

func (s *stream) trailers() *http1.Head {
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	return s.Trailer
}

func (s *stream) interrupt() {
	s.q.mu.Lock()
	s.stopped = true
	s.q.mu.Unlock()
	s.mayRead.Signal()
}

func (s *stream) hint(status int, fields *http1.Head) {
	s.q.lock()
	defer s.q.unlock(true)
	if s.q.codec.Pending() < http2.HighWater && s.q.codec.BeginHead(&s.Stream, status) {
		s.q.codec.PutBlock(func(dst []byte) []byte { return relay.AppendFields(dst, fields) })
		s.q.codec.EndHead(&s.Stream, -1, false)
	}
}

func (s *stream) head(length int64, none bool) {
	q := s.q
	q.lock()
	defer q.unlock(false)
	if q.codec.BeginHead(&s.Stream, s.x.Status) {
		q.codec.PutBlock(func(dst []byte) []byte { return relay.AppendBlock(dst, s.x, length) })
		if relay.Trails(s.x, none) {
			length = -1 // the body's last frame doesn't end the stream
		}
		q.codec.EndHead(&s.Stream, length, none)
	}
	if s.old || s.x.Draining() {
		q.codec.Leave(time.Now())
	}
}

// early is the amount of waiting output that is worth sending before the exchange has to wait.
const early = 16 << 10

// data takes what the windows allow; for the rest it waits.
func (s *stream) data(p []byte) error {
	for by := (time.Time{}); ; {
		n, err := s.write(p)
		if p = p[n:]; len(p) == 0 || err != nil {
			return err
		}
		if by.IsZero() {
			by = relay.TakeBy(time.Now(), s.q.c.e.opts.TakeTime, s.x.Deadline.Add(time.Second))
		}
		if !s.mayWrite.Wait(by) {
			return errClientGone
		}
	}
}

func (s *stream) write(p []byte) (n int, err error) {
	s.q.lock()
	now := true
	defer func() { s.q.unlock(now) }()
	if s.over() {
		return 0, errClientGone
	}
	n = s.q.codec.Write(&s.Stream, p)
	s.q.wanting = s.q.wanting || n < len(p) && !s.Stalled()
	now = n < len(p) || s.q.codec.Pending() >= early
	return n, nil
}

func (s *stream) flush() error {
	s.q.lock()
	s.q.unlock(true)
	return nil
}

func (s *stream) end(trailers *http1.Head) error {
	s.q.lock()
	defer s.q.unlock(true)
	if s.over() {
		return errClientGone
	}
	if !s.trailing(trailers) {
		s.q.codec.End(&s.Stream)
	}
	return nil
}

// trailing ends the answer with trailers, if there are any that pass.
func (s *stream) trailing(trailers *http1.Head) bool {
	block := relay.AppendFields(nil, trailers)
	if len(block) == 0 || !s.q.codec.BeginHead(&s.Stream, 0) {
		return false
	}
	s.q.codec.PutBlock(func(dst []byte) []byte { return append(dst, block...) })
	s.q.codec.EndHead(&s.Stream, -1, true)
	return true
}

func (s *stream) abort() {
	s.q.lock()
	s.q.codec.Reset(&s.Stream, http2.InternalError)
	s.q.unlock(true)
}

var _ client = (*stream)(nil)
