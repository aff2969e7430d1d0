package engine

import (
	"errors"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/http3"
	"github.com/cellgate/cellgate/proxy/relay"
	"github.com/cellgate/cellgate/reason"
)

// h3Stream is the client's side of an exchange over HTTP/3.
type h3Stream struct {
	x   *proxy.Exchange
	c   *h3Conn
	str *quic.Stream

	// Of the request. Read may be called from the upload's goroutine; the exchange's own touches none of it until that ends.
	start   time.Time
	ahead   [h3Ahead]byte // ahead[at:to] is read and not yet used
	at, to  int
	last    bool // nothing follows on the stream what is ahead
	bytes   [http3.MaxFrameHead]byte
	begun   int    // bytes of a frame's head that are in bytes
	left    uint64 // of the DATA frame that is being read
	got     int64
	ended   bool // the request is whole
	fin     bool // and all that came on the stream is used
	trailed bool
	trail   http1.Head

	// Of the answer.
	out     []byte
	section http3.Section
	aborted bool

	mu       sync.Mutex
	answered bool // no interim head may follow any more
}

// h3Ahead is how much is read at once of what comes in small pieces, about a datagram: frames of a byte each would cost a write to
// the upstream each.
const h3Ahead = 2 << 10

// h3Out is the size from which an answer goes out.
const h3Out = 16 << 10

var h3Pool = sync.Pool{New: func() any { return new(h3Stream) }}

// exchange runs the exchange of one request stream.
func (c *h3Conn) exchange(str *quic.Stream) {
	server := c.e.server
	server.InFlight.Add(1)
	s := h3Pool.Get().(*h3Stream)
	s.reset(server.Acquire(), c, str)
	defer func() {
		fault := recover()
		c.e.caught(fault)
		s.close(fault != nil)
		server.InFlight.Add(-1)
		c.leave()
		if fault == nil { // or who knows what state they are in
			server.Release(s.x)
			s.x, s.c, s.str = nil, nil, nil
			h3Pool.Put(s)
		}
	}()
	s.run()
}

func (s *h3Stream) run() {
	x := s.x
	x.Start, x.Peer, x.TLS, x.Protocol = s.start, s.c.peer(), true, "HTTP/3.0"
	x.PeerText, x.Certificates = x.Peer.String(), s.c.shown
	switch err := s.request(); {
	case errors.Is(err, errQuiet):
		s.aborted = true
		s.c.charge(h3Empty)
		return
	case err != nil:
		x.Refuse(headReason(err))
		answer(x, s, true)
	default:
		drive(x, s)
	}
	if s.gone() || x.Reason == reason.ClientGone { // CVE-2023-44487's kin: asked and given up, again and again
		s.c.charge(h3Empty)
	} else if !s.aborted {
		s.c.allowed.earn(h3PerAnswer)
	}
	x.Finish(time.Now())
	x.Scratch = x.Request.Scratch()
}

func (s *h3Stream) reset(x *proxy.Exchange, c *h3Conn, str *quic.Stream) {
	s.x, s.c, s.str = x, c, str
	s.start, s.at, s.to, s.begun, s.left, s.got = time.Now(), 0, 0, 0, 0, 0
	s.last, s.ended, s.fin, s.trailed, s.aborted, s.answered = false, false, false, false, false, false
	s.out = s.out[:0]
}

// close ends both directions: whole, or so that the client sees that they are not. The stream counts until now.
func (s *h3Stream) close(fault bool) {
	if s.aborted || fault {
		s.str.CancelRead(quic.StreamErrorCode(http3.InternalError))
		s.str.CancelWrite(quic.StreamErrorCode(http3.InternalError))
	} else {
		s.str.CancelRead(quic.StreamErrorCode(http3.NoError)) // of what is unread, if anything is (RFC 9114, section 4.1)
		_ = s.str.Close()
	}
	s.str.ReleaseStreamCredit()
}

// request reads the head. A stream that breaks off before it is whole is errQuiet.
func (s *h3Stream) request() error {
	_ = s.str.SetReadDeadline(s.start.Add(s.c.e.opts.HeaderTime))
	typ, length, err := s.frame()
	switch {
	case err == nil && typ != http3.FrameHeaders:
		s.c.fail(http3.FrameUnexpected)
		return errQuiet
	case err != nil:
		return headError(err)
	case length > http3.MaxBlock:
		return http1.ErrTooLarge
	}
	block, err := s.block(int(length))
	if err != nil {
		return headError(err)
	}
	if err := http3.ParseRequest(&s.x.Request, s.x.Scratch, block); err != nil {
		return s.fault(err)
	}
	if err := s.bodiless(); err != nil {
		return err
	}
	return s.x.Request.Built(!s.ended)
}

// fault ends the connection if an error of a field section says so.
func (s *h3Stream) fault(err error) error {
	var code http3.Code
	if errors.As(err, &code) {
		s.c.fail(code)
		return errQuiet
	}
	return err
}

func headError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errHeaderTime
	}
	return errQuiet
}

// bodiless finds out whether a body follows. No frame says that a request ends with its head: the end of the stream does,
// which may come a little later. A request of a method that mostly has none, and without a length, waits for it.
func (s *h3Stream) bodiless() error {
	r := &s.x.Request
	if s.fin || r.Length >= 0 || !mostlyBodiless(string(r.Method())) {
		s.ended = s.fin
		return nil
	}
	err := s.piece()
	if errors.Is(err, errBodyTimeout) {
		return errHeaderTime
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return errQuiet
	}
	return nil
}

func mostlyBodiless(method string) bool {
	switch method {
	case "GET", "HEAD", "OPTIONS", "DELETE", "TRACE", "CONNECT":
		return true
	}
	return false
}

// frame reads the head of the next frame that has a place on a request stream and means something; io.EOF ends them.
func (s *h3Stream) frame() (typ, length uint64, err error) {
	for {
		if typ, length, err = s.frameHead(); err != nil {
			return 0, 0, err
		}
		if typ == http3.FrameData || typ == http3.FrameHeaders {
			return typ, length, nil
		}
		if !http3.OnRequests(typ) {
			s.c.fail(http3.FrameUnexpected)
			return 0, 0, errQuiet
		}
		if !s.c.charge(h3Head) {
			return 0, 0, errQuiet
		}
		if err := s.skip(length); err != nil {
			return 0, 0, err
		}
	}
}

// frameHead reads on until a frame's head is whole. After a timeout it may be called again.
func (s *h3Stream) frameHead() (typ, length uint64, err error) {
	for {
		if typ, length, n := http3.FrameHead(s.bytes[:s.begun]); n > 0 {
			s.begun = 0
			return typ, length, nil
		}
		if s.fin {
			return 0, 0, s.cutShort()
		}
		want := 2
		if s.begun > 0 {
			if want = http3.VarintLen(s.bytes[0]) + 1; s.begun >= want {
				want += http3.VarintLen(s.bytes[want-1]) - 1
			}
		}
		if err := s.read(s.bytes[s.begun:want], &s.begun); err != nil {
			return 0, 0, err
		}
	}
}

// cutShort is the end of the stream, which must not lie within a frame (RFC 9114, section 7.1).
func (s *h3Stream) cutShort() error {
	if s.begun == 0 && s.left == 0 {
		return io.EOF
	}
	s.c.fail(http3.FrameError)
	return errQuiet
}

// read reads some bytes and adds how many to n. The end that comes with bytes is kept for later.
func (s *h3Stream) read(p []byte, n *int) error {
	var err error
	switch {
	case s.at < s.to || s.last:
	case len(p) >= h3Ahead:
		var m int
		m, err = s.str.Read(p)
		*n += m
		p = nil
	default:
		s.at = 0
		s.to, err = s.str.Read(s.ahead[:])
	}
	m := copy(p, s.ahead[s.at:s.to])
	s.at += m
	*n += m
	if errors.Is(err, io.EOF) {
		s.last, err = true, nil
	}
	s.fin = s.last && s.at == s.to
	return err
}

// block reads n bytes of a field section. Memory grows with what comes, not with what was announced.
func (s *h3Stream) block(n int) ([]byte, error) {
	b := make([]byte, min(n, 4<<10))
	for have := 0; ; {
		if have == n {
			return b, nil
		}
		if have == len(b) {
			b = append(b, make([]byte, min(n-have, have))...)
		}
		if s.fin {
			s.c.fail(http3.FrameError)
			return nil, errQuiet
		}
		if err := s.read(b[have:], &have); err != nil {
			return nil, err
		}
	}
}

// skip passes over a frame of a type that nobody knows.
func (s *h3Stream) skip(n uint64) error {
	var hole [512]byte
	for n > 0 {
		if s.fin {
			s.c.fail(http3.FrameError)
			return errQuiet
		}
		m := 0
		err := s.read(hole[:min(n, uint64(len(hole)))], &m)
		if n -= uint64(m); err != nil {
			return err
		}
		if !s.c.charge(m) {
			return errQuiet
		}
	}
	return nil
}

// piece goes on to the next DATA frame with content; io.EOF is the end of the request, with its trailers if there are.
// Other errors are bodyErrors.
func (s *h3Stream) piece() error {
	for s.left == 0 {
		typ, length, err := s.frame()
		switch {
		case errors.Is(err, io.EOF):
			s.ended = true
			if s.x.Request.Length > s.got {
				return errBodyFraming
			}
			return io.EOF
		case err != nil:
			return bodyFault(err)
		case s.trailed:
			s.c.fail(http3.FrameUnexpected)
			return errClientGone
		case typ == http3.FrameData:
			if s.left = length; length == 0 && !s.c.charge(h3Head) {
				return errClientGone
			}
		default:
			if err := s.readTrailers(length); err != nil {
				return err
			}
		}
	}
	if l := s.x.Request.Length; l >= 0 && (s.left > uint64(l) || s.got > l-int64(s.left)) {
		return errBodyFraming
	}
	return nil
}

func (s *h3Stream) readTrailers(length uint64) error {
	if length > http3.MaxBlock {
		return errBodyFraming
	}
	block, err := s.block(int(length))
	if err != nil {
		return bodyFault(err)
	}
	if err := http3.ParseTrailers(&s.trail, s.trail.Scratch(), block); err != nil {
		if errors.Is(s.fault(err), errQuiet) {
			return errClientGone
		}
		return errBodyFraming
	}
	s.trailed = true
	return nil
}

func bodyFault(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errBodyTimeout
	}
	return errClientGone
}

// Read reads request body.
func (s *h3Stream) Read(p []byte) (int, error) {
	if s.ended {
		return 0, io.EOF
	}
	s.sayContinue()
	_ = s.str.SetReadDeadline(relay.BodyDeadline(s.start, s.got, s.x.Deadline))
	n := 0
	for {
		if err := s.piece(); err != nil {
			return n, err
		}
		was := n
		err := s.read(p[n:n+int(min(uint64(len(p)-n), s.left))], &n)
		s.left -= uint64(n - was)
		if s.got += int64(n - was); err != nil {
			return n, bodyFault(err)
		}
		if s.fin && s.left > 0 {
			s.c.fail(http3.FrameError)
			return n, errClientGone
		}
		if n == len(p) || !s.moreAhead() {
			return n, nil
		}
	}
}

// moreAhead says that the next piece is there already.
func (s *h3Stream) moreAhead() bool {
	if s.left > 0 {
		return s.at < s.to
	}
	typ, length, n := http3.FrameHead(s.ahead[s.at:s.to])
	return typ == http3.FrameData && 0 < length && 0 < n && n < s.to-s.at
}

// whole reads a short body of known length, and what comes behind it: only then the request is known to be in order.
func (s *h3Stream) whole() ([]byte, bool, error) {
	if s.ended {
		return nil, true, nil
	}
	n := s.x.Request.Length
	if n < 0 || n > relay.SmallBody {
		return nil, false, nil
	}
	b := make([]byte, n+1) // there is nothing for the last byte
	for have := 0; ; {
		m, err := s.Read(b[have:])
		have += m
		switch {
		case errors.Is(err, io.EOF):
			return b[:n], true, nil
		case err != nil:
			return nil, false, err
		}
	}
}

// discard: a stream's unread body hinders nobody.
func (s *h3Stream) discard() bool { return true }

func (s *h3Stream) trailers() *http1.Head {
	if !s.trailed {
		return nil
	}
	return &s.trail
}

func (s *h3Stream) interrupt() { s.str.CancelRead(quic.StreamErrorCode(http3.NoError)) }

func (s *h3Stream) gone() bool { return s.str.Context().Err() != nil }

// sayContinue answers the expectation of a client that waits for it, once, unless the answer is on its way.
func (s *h3Stream) sayContinue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answered || !s.x.Request.Expect {
		return
	}
	s.answered = true // as far as interim heads go
	var interim http3.Section
	interim.Begin(100)
	_ = s.str.SetWriteDeadline(s.x.Deadline)
	_, _ = s.str.Write(interim.AppendFrame(nil)) // a client that can't be told is found to be gone by the next read
}

func (s *h3Stream) hint(status int, fields *http1.Head) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(status, fields)
	_ = s.str.SetWriteDeadline(relay.TakeBy(time.Now(), s.c.e.opts.TakeTime, s.x.Deadline))
	if _, err := s.str.Write(s.section.AppendFrame(nil)); err != nil { // nothing can follow half a frame
		s.str.CancelWrite(quic.StreamErrorCode(http3.InternalError))
	}
}

func (s *h3Stream) head(length int64, _ bool) {
	s.mu.Lock()
	s.answered = true
	s.mu.Unlock()
	h := &s.section
	h.Begin(s.x.Status)
	s.x.EachField(h.Put)
	if length >= 0 && s.x.Status != 204 {
		h.Put("Content-Length", strconv.FormatInt(length, 10))
	}
	s.out = h.AppendFrame(s.out)
	_ = s.str.SetWriteDeadline(s.x.Deadline.Add(time.Second))
}

// data appends body, a frame for each piece.
func (s *h3Stream) data(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	s.out = http3.AppendFrameHead(s.out, http3.FrameData, uint64(len(p)))
	if len(s.out)+len(p) <= h3Out {
		s.out = append(s.out, p...)
		return nil
	}
	if err := s.flush(); err != nil {
		return err
	}
	s.armWrite()
	_, err := s.str.Write(p)
	return err
}

// armWrite makes a write fail that the client doesn't take. Where the exchange ends sooner, head has said when.
func (s *h3Stream) armWrite() {
	if most := s.c.e.opts.TakeTime; s.x.Deadline.Sub(s.start) > most {
		_ = s.str.SetWriteDeadline(relay.TakeBy(time.Now(), most, s.x.Deadline.Add(time.Second)))
	}
}

// flush writes what waits. It takes as long as the client's windows make it, so nothing piles up behind a slow reader.
func (s *h3Stream) flush() error {
	if len(s.out) == 0 {
		return nil
	}
	s.armWrite()
	_, err := s.str.Write(s.out)
	s.out = s.out[:0]
	return err
}

func (s *h3Stream) end(trailers *http1.Head) error {
	if trailers != nil && s.put(0, trailers) {
		s.out = s.section.AppendFrame(s.out)
	}
	return s.flush()
}

// put makes a section of a status, or 0, and the fields that pass. some says that there are any.
func (s *h3Stream) put(status int, fields *http1.Head) (some bool) {
	s.section.Begin(status)
	for i := range fields.Fields() {
		if f := &fields.Fields()[i]; !f.Drop {
			s.section.Put(string(fields.Name(f)), string(fields.Value(f)))
			some = true
		}
	}
	return some
}

func (s *h3Stream) abort() { s.aborted = true }
