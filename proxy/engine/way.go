package engine

import (
	"errors"
	"os"
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/relay"
	"github.com/cellgate/cellgate/proxy/upstream"
)

// way is an attempt's way to its endpoint: a connection of its own, over HTTP/1, or a stream of one that carries many, over
// HTTP/2. Waits end at the time that was armed, with os.ErrDeadlineExceeded.
type way interface {
	ArmRead(now time.Time, after time.Duration, limit time.Time)
	ArmWrite(by time.Time)

	// send sends the head, with the body when that is whole; length is the body's, -1 = not known. left says whether a
	// byte may have left.
	send(f *forwarding, length int64, deadline time.Time) (left bool, err error)
	// piece sends the n bytes of body that stand in room behind space for what frames them.
	piece(room []byte, n int) error
	// last completes the body.
	last(room []byte, trailers *http1.Head) error
	// stopWriting makes piece and last fail, now and from then on.
	stopWriting()

	// ReadHead waits for the head of the answer, or of an interim one, which is answer's then.
	ReadHead() error
	answer() *http1.Response
	// Started says whether anything of an answer has come.
	Started() bool
	// stopReading makes waits for the answer end.
	stopReading()
	// reused says whether a failure may be the age of the connection's.
	reused() bool
	// opens says whether the answer takes the way out of HTTP, as the client has asked; outlet is what it is from then on,
	// until release.
	opens(x *proxy.Exchange) bool
	outlet() outlet
	// surplus says whether more than the answer has come, so that none can be trusted.
	surplus(x *proxy.Exchange) bool

	// Buffered is what has come of the body, More waits for more of it, framing says how both are to be read: kind is what
	// the head says.
	Buffered() []byte
	Use(n int)
	More() error
	framing(kind http1.Body, none bool) http1.Body
	// trailers are those of the answer, once it is read.
	trailers(kind http1.Body) *http1.Head

	// release gives the way back; reusable says that both messages were whole.
	release(p *upstream.Pool, reusable bool, now time.Time)
}

// connWay is a way over HTTP/1.
type connWay struct {
	*upstream.Conn
	chunked bool // the request's body
}

func (w *connWay) send(f *forwarding, length int64, deadline time.Time) (bool, error) {
	w.chunked = length < 0
	f.out = f.x.AppendRequest(f.out[:0], length, f.took)
	if !f.full {
		n, err := w.Write(f.out)
		return n > 0, err
	}
	f.out = append(f.out, f.body...)
	w.ArmRead(f.took, f.look(f.took), f.headBy(f.took, deadline))
	n, err := w.Send(f.out)
	return n > 0, err
}

func (w *connWay) piece(room []byte, n int) error {
	_, err := w.Write(frame(room, n, w.chunked))
	return err
}

func (w *connWay) last(room []byte, trailers *http1.Head) error {
	if !w.chunked {
		return nil
	}
	_, err := w.Write(http1.AppendLastChunk(room[:0], trailers))
	return err
}

func (w *connWay) stopWriting()            { _ = w.SetWriteDeadline(past) }
func (w *connWay) stopReading()            { _ = w.SetReadDeadline(past) }
func (w *connWay) answer() *http1.Response { return &w.Response }
func (w *connWay) reused() bool            { return w.Reused }

func (w *connWay) surplus(x *proxy.Exchange) bool {
	return relay.Surplus(x, &w.Response, w.Reused, len(w.Buffered()))
}

func (w *connWay) opens(x *proxy.Exchange) bool { return x.Tunnel && x.WebSocket.Accepted(&w.Response) }

func (w *connWay) outlet() outlet {
	_ = w.SetDeadline(time.Time{})
	return w.Conn
}

func (w *connWay) framing(kind http1.Body, _ bool) http1.Body { return kind }

func (w *connWay) trailers(kind http1.Body) *http1.Head {
	if kind != http1.InChunks {
		return nil
	}
	return &w.Chunks.Trailer
}

func (w *connWay) release(p *upstream.Pool, reusable bool, now time.Time) {
	p.Release(w.Conn, reusable && !w.Response.Close, now)
	w.Conn = nil
}

// streamWay is a way over HTTP/2.
type streamWay struct {
	*upstream.Stream
	out *streamOutlet // once it has left HTTP
}

func (w *streamWay) send(f *forwarding, length int64, _ time.Time) (bool, error) {
	f.out = relay.AppendRequest(f.out[:0], f.x, length, f.took)
	if f.x.Tunnel {
		err := w.Connect(f.out)
		return err == nil, err
	}
	announced := length
	if !f.full {
		announced = -1 // trailers may follow
	}
	if err := w.Send(f.out, f.x.Head(), announced); err != nil || len(f.body) == 0 || !f.full {
		return err == nil, err
	}
	if err := w.WriteBody(f.body); errors.Is(err, os.ErrDeadlineExceeded) {
		return true, err
	}
	return true, nil // whoever reads the answer learns of anything else: there may be one already
}

func (w *streamWay) piece(room []byte, n int) error {
	return w.WriteBody(room[http1.MaxChunkHead : http1.MaxChunkHead+n])
}

func (w *streamWay) last(_ []byte, trailers *http1.Head) error {
	return w.EndBody(relay.AppendFields(nil, trailers))
}

func (w *streamWay) stopWriting()                 { w.InterruptWrite() }
func (w *streamWay) stopReading()                 { w.InterruptRead() }
func (w *streamWay) answer() *http1.Response      { return w.Answer() }
func (w *streamWay) reused() bool                 { return w.Reused }
func (w *streamWay) surplus(*proxy.Exchange) bool { return false }

func (w *streamWay) opens(x *proxy.Exchange) bool { return x.Tunnel && x.WebSocket.Opened(w.Answer()) }

func (w *streamWay) outlet() outlet {
	w.out = &streamOutlet{s: w.Stream}
	return w.out
}

// framing: the stream knows its end, which is also that of the trailers; an answer that can have no body is whole with its
// head, as is one that has ended with it. That must not look as if a body might follow: callers of gRPC would miss trailers.
func (w *streamWay) framing(_ http1.Body, none bool) http1.Body {
	if none || w.Ended() {
		return http1.NoBody
	}
	return http1.UntilClose
}

func (w *streamWay) trailers(http1.Body) *http1.Head { return w.Trailers() }

func (w *streamWay) release(p *upstream.Pool, _ bool, now time.Time) {
	if w.out != nil {
		w.out.leave()
	}
	p.Finish(w.Stream, now)
	w.Stream, w.out = nil, nil
}
