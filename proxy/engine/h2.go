//lint:file-ignore SA1019 net/http has no successor of ServeConn, which takes over a connection whose first bytes were read.

package engine

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/reason"
)

// h2Front serves HTTP/2 connections through golang.org/x/net/http2. Connections belong to a generation; GOAWAY is sent
// to a whole generation by shutting its server down.
type h2Front struct {
	e   *Engine
	mu  sync.Mutex
	now *generation
}

type generation struct {
	base *http.Server
	h2   *http2.Server
}

func (h *h2Front) init(e *Engine) {
	h.e = e
	h.now = h.generation()
}

func (h *h2Front) generation() *generation {
	g := &generation{
		base: &http.Server{Handler: http.HandlerFunc(h.handle), MaxHeaderBytes: http1.MaxHead, ErrorLog: log.New(io.Discard, "", 0)},
		h2: &http2.Server{MaxConcurrentStreams: 100, IdleTimeout: h.e.opts.Idle, ReadIdleTimeout: 30 * time.Second, PingTimeout: 10 * time.Second,
			WriteByteTimeout: 30 * time.Second, MaxReadFrameSize: 16 << 10},
	}
	if err := http2.ConfigureServer(g.base, g.h2); err != nil {
		panic(err) // only for a TLS configuration without the required ciphers; there is none
	}
	return g
}

// goAway tells every connection of the current generation to open no more streams here.
func (h *h2Front) goAway() {
	h.mu.Lock()
	old := h.now
	h.now = h.generation()
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = old.base.Shutdown(ctx) // it owns no listener: this only runs the hooks
}

// serve takes a connection over; prefix is what has been read of it.
func (h *h2Front) serve(c *conn, prefix []byte) {
	c.busy.Store(true)
	_ = c.nc.SetReadDeadline(time.Time{})
	h.mu.Lock()
	g := h.now
	h.mu.Unlock()
	var nc net.Conn = c.nc
	if len(prefix) > 0 {
		nc = &prefixed{c.nc, prefix}
	}
	ctx := context.WithValue(context.Background(), connKey{}, c)
	g.h2.ServeConn(nc, &http2.ServeConnOpts{Context: ctx, BaseConfig: g.base, Handler: g.base.Handler})
}

type connKey struct{}

type prefixed struct {
	net.Conn
	rest []byte
}

func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.rest) > 0 {
		n := copy(b, p.rest)
		p.rest = p.rest[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

// handle runs one stream's exchange.
func (h *h2Front) handle(w http.ResponseWriter, r *http.Request) {
	c, s := r.Context().Value(connKey{}).(*conn), h.e.server
	s.InFlight.Add(1)
	defer func() {
		s.InFlight.Add(-1)
		if fault := recover(); fault != nil {
			if fault != http.ErrAbortHandler {
				h.e.caught(fault)
			}
			panic(http.ErrAbortHandler)
		}
	}()
	x := s.Acquire()
	st := &stream{x: x, w: w, r: r, ctl: http.NewResponseController(w), start: time.Now(), old: c.isOld(time.Now())}
	x.Start, x.Peer, x.PeerText, x.TLS, x.Protocol = st.start, c.peer, c.text, c.secure, "HTTP/2.0"
	x.Via = c.via
	if why := st.request(); why != reason.None {
		x.Refuse(why)
		answer(x, st, true)
	} else {
		drive(x, st)
	}
	x.Finish(time.Now())
	x.Scratch = x.Request.Scratch()
	s.Release(x)
	if st.aborted {
		panic(http.ErrAbortHandler) // RST_STREAM: the client must not take the answer for whole
	}
}

// stream is the client's side of an exchange over HTTP/2.
type stream struct {
	x       *proxy.Exchange
	w       http.ResponseWriter
	r       *http.Request
	ctl     *http.ResponseController
	start   time.Time
	got     int64
	old     bool
	aborted bool
	trail   http1.Head
}

// request makes the exchange's request head from the stream's.
func (s *stream) request() reason.Reason {
	target, length := s.r.RequestURI, s.r.ContentLength
	if s.r.Method == http.MethodConnect {
		target, length = "/", 0
	}
	req := &s.x.Request
	if err := req.Begin(s.x.Scratch, s.r.Method, s.r.Host, target, length); err != nil {
		return headReason(err)
	}
	if !s.framed() {
		return reason.BadFraming
	}
	if len(s.r.Header["Expect"]) > 0 { // the library has taken out what it knows
		return reason.BadRequest
	}
	for name, values := range s.r.Header {
		for _, v := range values {
			if err := req.Add(name, v); err != nil {
				return headReason(err)
			}
		}
	}
	return reason.None
}

// framed says whether Content-Length, if there is one, is the only one and means what the stream says (RFC 9113,
// section 8.1.1); the library looks at the first, and at none when the stream ends with its head.
func (s *stream) framed() bool {
	said := s.r.Header["Content-Length"]
	if len(said) == 0 {
		return true
	}
	n, err := strconv.ParseUint(said[0], 10, 62)
	return len(said) == 1 && err == nil && int64(n) == s.r.ContentLength
}

func (s *stream) Read(p []byte) (int, error) {
	_ = s.ctl.SetReadDeadline(bodyDeadline(s.start, s.got, s.x.Deadline))
	n, err := s.r.Body.Read(p)
	s.got += int64(n)
	switch {
	case err == nil || n > 0:
		return n, nil
	case errors.Is(err, io.EOF):
		return 0, io.EOF
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, errBodyTimeout
	}
	return 0, errClientGone
}

func (s *stream) whole() ([]byte, bool, error) {
	n := s.r.ContentLength
	if n == 0 {
		return nil, true, nil
	}
	if n < 0 || n > smallBody {
		return nil, false, nil
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(s, b); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errBodyFraming
		}
		return nil, false, err
	}
	return b, true, nil
}

// discard: a stream's unread body hinders nobody.
func (s *stream) discard() bool { return true }

func (s *stream) trailers() *http1.Head {
	if len(s.r.Trailer) == 0 {
		return nil
	}
	s.trail.Empty(nil)
	for name, values := range s.r.Trailer {
		for _, v := range values {
			if s.trail.Add(name, v) != nil {
				return nil
			}
		}
	}
	s.trail.DropKnown()
	return &s.trail
}

func (s *stream) interrupt() {
	_ = s.ctl.SetReadDeadline(time.Unix(1, 0))
	_ = s.r.Body.Close()
}

func (s *stream) gone() bool { return s.r.Context().Err() != nil }

func (s *stream) head(length int64, none bool) {
	h := s.w.Header()
	h["Content-Type"] = nil // or it would be guessed
	s.x.EachField(h.Add)
	if length >= 0 && s.x.Status != 204 {
		h["Content-Length"] = []string{strconv.FormatInt(length, 10)}
	}
	if s.old || s.x.Draining() {
		h["Connection"] = []string{"close"} // the library makes a GOAWAY of it
	}
	_ = s.ctl.SetWriteDeadline(s.x.Deadline.Add(time.Second))
	s.w.WriteHeader(s.x.Status)
}

func (s *stream) data(p []byte) error {
	_, err := s.w.Write(p)
	return err
}

func (s *stream) flush() error { return s.ctl.Flush() }

func (s *stream) end(trailers *http1.Head) error {
	if trailers == nil {
		return nil
	}
	for i := range trailers.Fields() {
		if f := &trailers.Fields()[i]; !f.Drop {
			s.w.Header().Add(http.TrailerPrefix+string(trailers.Name(f)), string(trailers.Value(f)))
		}
	}
	return nil
}

func (s *stream) abort() { s.aborted = true }
