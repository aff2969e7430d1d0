package upstream

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/cellgate/cellgate/internal/waiter"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/http2"
)

// Stream is an exchange's part of a connection that carries many. Between Open and Release it belongs to one exchange; one
// goroutine may write its body while another reads the answer.
type Stream struct {
	Endpoint int
	Reused   bool // its connection has answered an exchange before, which may be why it fails

	line  *line
	codec http2.Stream      // guarded by the line
	opens bool              // codec is known to the connection; guarded
	leave bool              // it was asked to leave HTTP: either direction may end first
	sent  time.Time         // when the request began to be sent
	head  http1.Response    // of the final answer, once there is one
	hints []*http1.Response // interim answers that ReadHead has not given; guarded
	hint  *http1.Response   // that it has given last; nil once it gave the final one

	buf  *[]byte // holds body that was taken from the connection
	r, w int     // unread bytes are buf[r:w]

	readBy, writeBy   time.Time
	noRead, noWrite   bool // interrupted; guarded
	mayRead, mayWrite waiter.Waiter
}

// errInvalid: what the endpoint sent is no HTTP. It is one of the codec's errors to whoever judges it.
var errInvalid = http1.ErrSyntax

var streams = sync.Pool{New: func() any {
	s := &Stream{mayRead: waiter.New(), mayWrite: waiter.New()}
	s.codec.Owner, s.codec.Response = s, &s.head
	return s
}}

func (s *Stream) begin(l *line) {
	l.mu.Lock()
	s.Reused = l.served
	l.mu.Unlock()
	s.line, s.Endpoint, s.opens, s.leave, s.noRead, s.noWrite, s.r, s.w = l, l.endpoint, false, false, false, false, 0, 0
	s.readBy, s.writeBy, s.hints, s.hint = time.Time{}, time.Time{}, nil, nil
	s.mayRead.Clear()
	s.mayWrite.Clear()
}

// Send sends the head of a request: block is its fields, bare says that the method is HEAD. length is that of the body which
// WriteBody gives, after which nothing follows; -1 leaves the end to EndBody. An error means that nothing was sent.
func (s *Stream) Send(block []byte, bare bool, length int64) error {
	l := s.line
	l.lock()
	defer l.unlock()
	if l.lost != nil || !l.codec.Open(&s.codec, bare) {
		return ErrLeft
	}
	s.begins(block, length)
	return nil
}

// Connect sends the head of an extended CONNECT (RFC 8441), which asks the endpoint to leave HTTP on the stream. Either
// direction ends by itself then: Write ends with EndBody, and More gives io.EOF. An error means that nothing was sent.
func (s *Stream) Connect(block []byte) error {
	l := s.line
	l.lock()
	defer l.unlock()
	switch {
	case l.lost == nil && !l.codec.Ending() && !l.codec.Connects():
		return ErrNoConnect
	case l.lost != nil || !l.codec.Connect(&s.codec):
		return ErrLeft
	}
	s.leave = true
	s.begins(block, -1)
	return nil
}

// begins puts the head of a request on the stream that was opened for it. The line is locked.
func (s *Stream) begins(block []byte, length int64) {
	s.opens, s.sent = true, time.Now()
	s.line.codec.PutBlock(func(dst []byte) []byte { return append(dst, block...) })
	s.line.codec.EndHead(&s.codec, length, false)
}

// ReadHead waits for the head of the answer, or of an interim one, until the time of ArmRead. After a timeout, or an interim answer,
// it may be called again.
func (s *Stream) ReadHead() error { return s.await((*Stream).answered) }

// Answer is what ReadHead has found.
func (s *Stream) Answer() *http1.Response {
	if s.hint != nil {
		return s.hint
	}
	return &s.head
}

// maxHints is how many interim answers wait for ReadHead. What comes beyond them is passed over.
const maxHints = 4

// keep keeps an interim answer, which the connection's next one would overwrite. The line is locked.
func (s *Stream) keep() {
	if len(s.hints) < maxHints {
		s.hints = append(s.hints, s.head.Clone())
	}
}

func (s *Stream) answered() (came bool, err error) {
	switch {
	case len(s.hints) > 0:
		s.hint, s.hints = s.hints[0], s.hints[1:]
		return true, nil
	case s.codec.Answered():
		s.hint = nil
		return true, nil
	case s.codec.Gone() || s.line.lost != nil:
		return false, s.fault()
	}
	return false, nil
}

// await waits until it is done, or fails, or interrupted, or the time is up.
func (s *Stream) await(done func(*Stream) (bool, error)) error {
	for {
		s.line.lock()
		ok, err := done(s)
		stopped := s.noRead
		s.line.unlock()
		switch {
		case ok || err != nil:
			return err
		case stopped:
			return os.ErrDeadlineExceeded
		}
		if !s.mayRead.Wait(s.readBy) {
			s.doubt()
			return os.ErrDeadlineExceeded
		}
	}
}

// fault says why nothing more comes. The line is locked.
func (s *Stream) fault() error {
	l := s.line
	_, left := l.codec.Farewell()
	switch {
	case s.codec.Malformed():
		return errInvalid
	case s.codec.Refused() && left:
		return ErrLeft
	case s.codec.Refused():
		return ErrRefused
	case s.codec.Gone():
		s.Reused = false // the endpoint is there: it has given up this stream alone
		return io.ErrUnexpectedEOF
	case errors.Is(l.lost, os.ErrDeadlineExceeded):
		return io.ErrUnexpectedEOF // a line that answers no more is no exchange whose time is up
	}
	return l.lost
}

// doubt asks a line whether it is there that has been silent for long.
func (s *Stream) doubt() {
	l, now := s.line, time.Now()
	since := s.sent
	l.lock()
	if l.heard.After(since) {
		since = l.heard
	}
	if now.Sub(since) >= l.pool.patience.ask {
		l.ask(now)
	}
	l.unlock()
}

// Started says whether anything of an answer has come.
func (s *Stream) Started() bool {
	s.line.mu.Lock()
	defer s.line.mu.Unlock()
	return s.codec.Begun()
}

// Buffered is what was taken of the answer's body and not used.
func (s *Stream) Buffered() []byte {
	if s.buf == nil {
		return nil
	}
	return (*s.buf)[s.r:s.w]
}

// Use marks n buffered bytes as used.
func (s *Stream) Use(n int) { s.r += n }

// More waits for body when none is buffered, until the time of ArmRead. io.EOF is the end of a whole answer.
func (s *Stream) More() error {
	if s.r < s.w {
		return nil
	}
	if s.buf == nil {
		s.buf = buffers.Get().(*[]byte)
	}
	s.r, s.w = 0, 0
	return s.await((*Stream).take)
}

func (s *Stream) take() (came bool, err error) {
	switch b := s.codec.Buffered(); {
	case len(b) > 0:
		s.w = copy(*s.buf, b)
		s.line.codec.Use(&s.codec, s.w)
		return true, nil
	case s.codec.Complete():
		return false, io.EOF
	case s.codec.Gone() || s.line.lost != nil:
		return false, s.fault()
	}
	return false, nil
}

// Ended says whether nothing of the answer is to come, or to be taken.
func (s *Stream) Ended() bool {
	s.line.mu.Lock()
	defer s.line.mu.Unlock()
	return s.codec.Complete() && len(s.codec.Buffered()) == 0
}

// Trailers are those of the answer, after io.EOF; nil when there are none.
func (s *Stream) Trailers() *http1.Head {
	s.line.mu.Lock()
	defer s.line.mu.Unlock()
	return s.codec.Trailer
}

// WriteBody sends body as the windows allow, until the time of ArmWrite.
func (s *Stream) WriteBody(p []byte) error {
	for {
		n, err := s.write(p)
		if p = p[n:]; len(p) == 0 || err != nil {
			return err
		}
		if !s.mayWrite.Wait(s.writeBy) {
			s.doubt()
			return os.ErrDeadlineExceeded
		}
	}
}

func (s *Stream) write(p []byte) (n int, err error) {
	l := s.line
	l.lock()
	defer l.unlock()
	switch {
	case s.noWrite:
		return 0, os.ErrDeadlineExceeded
	case s.codec.Gone() || s.codec.Complete() && !s.leave || l.lost != nil:
		return 0, io.ErrClosedPipe
	}
	n = l.codec.Write(&s.codec, p)
	l.waiting = l.waiting || n < len(p) && !s.codec.Stalled()
	return n, nil
}

// EndBody completes the request, with trailers if there are any.
func (s *Stream) EndBody(trailers []byte) error {
	l := s.line
	l.lock()
	defer l.unlock()
	if s.codec.Gone() || l.lost != nil {
		return io.ErrClosedPipe
	}
	if len(trailers) > 0 && l.codec.BeginHead(&s.codec, 0) {
		l.codec.PutBlock(func(dst []byte) []byte { return append(dst, trailers...) })
		l.codec.EndHead(&s.codec, -1, true)
		return nil
	}
	l.codec.End(&s.codec)
	return nil
}

// ArmRead makes waits for the answer end at now + after, at most at limit.
func (s *Stream) ArmRead(now time.Time, after time.Duration, limit time.Time) {
	if s.readBy = now.Add(after); s.readBy.After(limit) {
		s.readBy = limit
	}
}

// ArmWrite makes waits for room end at by.
func (s *Stream) ArmWrite(by time.Time) { s.writeBy = by }

// InterruptRead makes waits for the answer return.
func (s *Stream) InterruptRead() {
	s.line.mu.Lock()
	s.noRead = true
	s.line.mu.Unlock()
	s.mayRead.Signal()
}

// InterruptWrite makes waits for room return.
func (s *Stream) InterruptWrite() {
	s.line.mu.Lock()
	s.noWrite = true
	s.line.mu.Unlock()
	s.mayWrite.Signal()
}

// Finish ends the exchange's use of the stream: what is not complete is cancelled, which the endpoint learns.
func (p *Pool) Finish(s *Stream, now time.Time) {
	l := s.line
	if s.opens {
		l.lock()
		l.codec.Finish(&s.codec, now)
		l.unlock()
	}
	if s.buf != nil {
		buffers.Put(s.buf)
		s.buf = nil
	}
	s.line = nil
	streams.Put(s)
	p.leave(l, now)
	p.freeSlot()
}

func (s *Stream) signal() {
	s.mayRead.Signal()
	s.mayWrite.Signal()
}
