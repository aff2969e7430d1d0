package engine

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/http2"
	"github.com/cellgate/cellgate/proxy/relay"
)

// stdStream is the client's side of an exchange of net/http.
type stdStream struct {
	e       *Engine
	x       *proxy.Exchange
	w       http.ResponseWriter
	r       *http.Request
	ctl     *http.ResponseController
	start   time.Time
	old     bool // the client is asked to leave
	got     int64
	most    time.Duration // that the client may leave waiting what it is given
	meter   *meteredConn
	aborted bool
	trail   http1.Head

	uncounted bool // the length of the answer's body is not known ahead
	some      bool // something follows the head
}

// request writes the head that net/http has read as HTTP/1 and reads it again: so every rule of heads holds here too.
func (s *stdStream) request() error {
	r := s.r
	if !s.framed() {
		return http1.ErrFraming
	}
	b := append(append(s.x.Scratch[:0], r.Method...), ' ')
	b = append(append(b, r.RequestURI...), s.version()...)
	if r.Host != "" {
		b = http1.AppendLine(b, "Host", r.Host)
	}
	for name, values := range r.Header {
		if name == "Content-Length" || name == "Host" && len(values) == 1 && values[0] == r.Host { // which HTTP/2 leaves there
			continue
		}
		for _, v := range values {
			b = http1.AppendLine(b, name, v)
		}
	}
	for name := range r.Trailer { // net/http has taken the announcement away
		b = http1.AppendLine(b, "Trailer", name)
	}
	switch {
	case r.ContentLength < 0:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	case r.ContentLength > 0 || r.Header["Content-Length"] != nil:
		b = http1.AppendLine(b, "Content-Length", strconv.FormatInt(r.ContentLength, 10))
	}
	b = append(b, "\r\n"...)
	s.x.Scratch = b
	s.meter.earn(len(b))
	n, err := s.x.Request.Parse(b)
	if err == nil && n != len(b) {
		err = http1.ErrSyntax
	}
	return err
}

func (s *stdStream) version() string {
	if s.r.ProtoMajor == 1 && s.r.ProtoMinor == 0 {
		return " HTTP/1.0\r\n"
	}
	return " HTTP/1.1\r\n"
}

// framed says whether Content-Length, if there is one, is the only one and means what net/http made of it, which looks at
// the first, and over HTTP/2 at none when the stream ends with its head.
func (s *stdStream) framed() bool {
	said := s.r.Header["Content-Length"]
	if len(said) == 0 {
		return true
	}
	n, err := strconv.ParseUint(said[0], 10, 62)
	return len(said) == 1 && err == nil && int64(n) == s.r.ContentLength
}

func (s *stdStream) Read(p []byte) (int, error) {
	_ = s.ctl.SetReadDeadline(relay.BodyDeadline(s.start, s.got, s.x.Deadline))
	n, err := s.r.Body.Read(p)
	if errors.Is(err, io.EOF) { // from now on net/http takes the end of a read for the client's leave
		_ = s.ctl.SetReadDeadline(time.Time{})
	}
	s.got += int64(n)
	s.meter.earn(n + n/16)
	switch {
	case err == nil || n > 0:
		return n, nil
	case errors.Is(err, io.EOF):
		return 0, io.EOF
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, errBodyTimeout
	case errors.Is(err, io.ErrUnexpectedEOF) || s.r.Context().Err() != nil:
		return 0, errClientGone
	}
	return 0, errBodyFraming
}

func (s *stdStream) whole() ([]byte, bool, error) {
	n := s.r.ContentLength
	if n == 0 {
		return nil, true, nil
	}
	if n < 0 || n > relay.SmallBody {
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

// discard: net/http sees to what is unread.
func (s *stdStream) discard() bool { return s.r.ContentLength == 0 || s.r.ProtoMajor == 2 }

func (s *stdStream) trailers() *http1.Head {
	s.trail.Empty(nil)
	for name, values := range s.r.Trailer {
		for _, v := range values {
			if _, err := s.trail.Put([]byte(strings.ToLower(name)), []byte(v)); err != nil {
				return nil
			}
		}
	}
	s.trail.DropKnown()
	return &s.trail
}

// interrupt makes a client over HTTP/1 that sends on read no error, which would keep net/http from reading what it sends: a close
// while that comes takes the answer with it. One that sends nothing is waited for a moment.
func (s *stdStream) interrupt() {
	if s.r.ProtoMajor == 1 {
		_ = s.ctl.SetReadDeadline(time.Now().Add(nudge))
		return
	}
	_ = s.ctl.SetReadDeadline(past)
	_ = s.r.Body.Close()
}

const nudge = 50 * time.Millisecond

func (s *stdStream) gone() bool { return s.r.Context().Err() != nil }

// hint leaves the fields of the answer as they were: there are none yet.
func (s *stdStream) hint(status int, fields *http1.Head) {
	if s.r.ProtoMajor == 1 {
		return
	}
	h := s.w.Header()
	for i := range fields.Fields() {
		if f := &fields.Fields()[i]; !f.Drop {
			h.Add(string(fields.Name(f)), string(fields.Value(f)))
		}
	}
	s.w.WriteHeader(status)
	clear(h)
}

func (s *stdStream) head(length int64, none bool) {
	h := s.w.Header()
	h["Content-Type"], h["Date"] = nil, nil // what the upstream doesn't say isn't said
	s.x.EachField(func(name, value string) { h.Add(strings.Clone(name), strings.Clone(value)) })
	if length >= 0 && s.x.Status != 204 && (s.r.ProtoMajor > 1 || !relay.InChunks(s.x, none)) {
		h["Content-Length"] = []string{strconv.FormatInt(length, 10)}
	}
	if s.old || s.x.Draining() || s.x.Closing && s.r.ProtoMajor == 1 { // a request that wasn't read whole hinders no other stream
		h["Connection"] = []string{"close"} // over HTTP/2 it becomes GOAWAY
	}
	_ = s.ctl.SetWriteDeadline(s.x.Deadline.Add(time.Second))
	s.w.WriteHeader(s.x.Status)
	s.uncounted = length < 0 && !none
}

func (s *stdStream) data(p []byte) error {
	s.some = s.some || len(p) > 0
	if s.x.Deadline.Sub(s.start) > s.most {
		_ = s.ctl.SetWriteDeadline(relay.TakeBy(time.Now(), s.most, s.x.Deadline.Add(time.Second)))
	}
	_, err := s.w.Write(p)
	s.meter.earn(len(p) / 64) // the client says that it has taken it
	return err
}

func (s *stdStream) flush() error { return s.ctl.Flush() }

// end leaves a head to which nothing was added with net/http: over HTTP/2 it is to be the end as well, which is what callers of
// gRPC take for an answer of trailers only.
func (s *stdStream) end(trailers *http1.Head) error {
	s.some = s.some || trailers != nil && len(trailers.Fields()) > 0
	if s.uncounted && s.some {
		_ = s.ctl.Flush() // or net/http would count a short body
	}
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

func (s *stdStream) abort() { s.aborted = true }

// settle closes the account of the exchange: what nobody has read of the body of a request that was answered was no flood.
func (s *stdStream) settle() {
	unread := s.r.ContentLength - s.got
	switch {
	case s.gone():
		s.meter.spend(stdGivenUp)
	case s.r.ContentLength < 0:
		s.meter.earn(http2.StreamWindow)
	case unread > 0:
		s.meter.earn(int(min(unread, http2.StreamWindow)))
	}
}
