package engine

import (
	"bufio"
	"net"
	"os"
	"time"

	"github.com/cellgate/cellgate/proxy/http2"
)

// The clients of HTTP/2 that leave HTTP (RFC 8441): a stream here, a stream of another engine's, and net/http's connection.
// END_STREAM is what the end of a TCP connection is, in both directions, and RST_STREAM with CANCEL its reset (section 5).

// ahead: what comes early is the stream's own, and can hide no request. It waits until the upstream has agreed.
func (s *stream) ahead() bool { return false }

func (s *stream) carry(up outlet) {
	s.head(-1, false)
	_ = s.flush()
	p := &streamPipe{q: s.q, s: s}
	s.q.c.e.tunnel(s.x, p, up)
	p.leave()
}

// streamPipe is a stream that has left HTTP. The tunnel's clock may look at it after its stream is somebody else's.
type streamPipe struct {
	q  *h2conn
	s  *stream   // nil = left; guarded by q's lock, and still while Read or Write runs
	by time.Time // of Write; zero = none; guarded
}

// Read gives the client room for more once it is called again: what it gave before has gone on then.
func (p *streamPipe) Read(b []byte) (int, error) {
	for {
		if n, err := p.s.take(b); n > 0 || err != nil {
			return n, err
		}
		p.s.mayRead.Wait(time.Now().Add(aWhile))
	}
}

// aWhile is how long whoever has no deadline waits without looking.
const aWhile = time.Hour

// Write returns when the windows have taken all.
func (p *streamPipe) Write(b []byte) (n int, err error) {
	for {
		m, err := p.s.write(b[n:])
		if n += m; err != nil {
			return n, err
		}
		if n == len(b) {
			return n, p.s.flush()
		}
		if !p.s.mayWrite.Wait(p.until()) && p.late() {
			return n, os.ErrDeadlineExceeded
		}
	}
}

func (p *streamPipe) until() time.Time {
	p.q.mu.Lock()
	defer p.q.mu.Unlock()
	return orAWhile(p.by)
}

func (p *streamPipe) late() bool {
	p.q.mu.Lock()
	defer p.q.mu.Unlock()
	return isLate(p.by)
}

func orAWhile(by time.Time) time.Time {
	if by.IsZero() {
		return time.Now().Add(aWhile)
	}
	return by
}

func isLate(by time.Time) bool { return !by.IsZero() && !time.Now().Before(by) }

// CloseWrite ends the direction to the client.
func (p *streamPipe) CloseWrite() error {
	p.q.lock()
	defer p.q.unlock(true)
	if p.s.over() {
		return errClientGone
	}
	p.q.codec.End(&p.s.Stream)
	return nil
}

// Close cuts what is open of the stream.
func (p *streamPipe) Close() error {
	p.q.lock()
	defer p.q.unlock(true)
	if p.s == nil {
		return nil
	}
	if !p.s.Ended() {
		p.q.codec.Reset(&p.s.Stream, http2.Cancel)
	}
	p.s.stopped = true
	p.s.signal()
	return nil
}

// SetDeadline takes deadlines away; a tunnel gives none but to its writes.
func (p *streamPipe) SetDeadline(t time.Time) error { return p.SetWriteDeadline(t) }

// SetWriteDeadline counts for a Write that waits, too.
func (p *streamPipe) SetWriteDeadline(t time.Time) error {
	p.q.mu.Lock()
	defer p.q.mu.Unlock()
	if p.by = t; p.s != nil {
		p.s.mayWrite.Signal()
	}
	return nil
}

func (p *streamPipe) leave() {
	p.q.mu.Lock()
	p.s = nil
	p.q.mu.Unlock()
}

func (r *Errand) ahead() bool { return false }

// carry serves a stream of another engine's as a tunnel.
func (r *Errand) carry(up outlet) {
	r.head(-1, false)
	r.mu.Lock()
	r.answer.Tunnel = true
	r.tell()
	r.mu.Unlock()
	r.e.tunnel(r.x, errandPipe{r}, up)
	r.mu.Lock()
	r.ended = !r.cut
	r.answer.End = r.ended
	r.tell()
	r.mu.Unlock()
}

// errandPipe is an errand that has left HTTP.
type errandPipe struct{ r *Errand }

// Read gives what has come, and asks for more once that has gone on.
func (p errandPipe) Read(b []byte) (int, error) {
	for {
		if n, err := p.r.read(b); n > 0 || err != nil {
			return n, err
		}
		p.r.mayRead.Wait(time.Now().Add(aWhile))
	}
}

// Write returns when the other engine has room for all.
func (p errandPipe) Write(b []byte) (n int, err error) {
	for {
		m, by, err := p.give(b[n:])
		if n += m; err != nil || n == len(b) {
			return n, err
		}
		if !p.r.mayWrite.Wait(orAWhile(by)) && isLate(by) {
			return n, os.ErrDeadlineExceeded
		}
	}
}

func (p errandPipe) give(b []byte) (n int, by time.Time, err error) {
	r := p.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left || r.cut {
		return 0, by, errClientGone
	}
	n = min(len(b), errandSize-len(r.answer.Body))
	r.answer.Body = append(r.answer.Body, b[:n]...)
	r.tell()
	return n, r.by, nil
}

func (p errandPipe) CloseWrite() error {
	r := p.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left || r.cut {
		return errClientGone
	}
	r.answer.Last = true
	r.tell()
	return nil
}

func (p errandPipe) Close() error {
	r := p.r
	r.mu.Lock()
	if !r.ended {
		r.cut, r.stopped, r.answer.Aborted = true, true, true
		r.tell()
	}
	r.mu.Unlock()
	r.mayRead.Signal()
	r.mayWrite.Signal()
	return nil
}

func (p errandPipe) SetDeadline(t time.Time) error { return p.SetWriteDeadline(t) }

func (p errandPipe) SetWriteDeadline(t time.Time) error {
	p.r.mu.Lock()
	p.r.by = t
	p.r.mu.Unlock()
	p.r.mayWrite.Signal()
	return nil
}

// ahead: net/http doesn't show what lies behind a head. After any answer but the upstream's agreement the connection is
// closed, so that nothing there is a request. HTTP/2 of net/http has no tunnels.
func (s *stdStream) ahead() bool { return s.r.ProtoMajor != 1 }

func (s *stdStream) carry(up outlet) {
	s.meter.free.Store(true)
	nc, rw, err := s.ctl.Hijack()
	if err != nil {
		s.aborted = true
		return
	}
	s.e.wg.Add(1) // the server, which waits for its own connections, keeps the engine from ending meanwhile
	defer s.e.wg.Done()
	s.e.server.Connections.Add(1)
	defer s.e.server.Connections.Add(-1)
	defer nc.Close()
	half, ok := nc.(interface{ CloseWrite() error })
	if !ok {
		return
	}
	_ = nc.SetWriteDeadline(s.x.Deadline)
	if _, err := nc.Write(agreement(nil, s.x)); err == nil {
		s.e.tunnel(s.x, hijacked{nc, half, rw.Reader}, up)
	}
}

// hijacked is a connection of net/http, of which some has been read.
type hijacked struct {
	net.Conn
	half interface{ CloseWrite() error }
	r    *bufio.Reader
}

func (h hijacked) Read(b []byte) (int, error) { return h.r.Read(b) }
func (h hijacked) CloseWrite() error          { return h.half.CloseWrite() }
