package engine

import (
	"io"
	"sync"
	"time"

	"github.com/cellgate/cellgate/internal/waiter"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/relay"
)

// Errand is the client's side of an exchange that is carried out here while another engine has the client's connection and
// goes on serving that. It holds little: what goes either way waits in its place until the other side has room.
//
//	r := e.Carry(x, call)       // call says that there is news, and must not block
//	n := r.Give(s.Buffered())   // of the request's body, when it has come and at every news
//	a := r.Take()               // at every news, once all that was taken before has been sent
//	r.Leave()                   // if the client has gone
type Errand struct {
	e     *Engine
	x     *proxy.Exchange
	call  func()
	start time.Time
	most  time.Duration // that the client may leave waiting what it is given
	got   int64         // body that Read has given

	mu      sync.Mutex
	in      []byte // unread body is in[r:]
	r       int
	ends    bool // nothing comes behind it
	wanted  bool // the exchange waits for more
	trailer *http1.Head
	left    bool      // the client
	ended   bool      // the answer is complete
	stopped bool      // nobody wants the rest of the body
	cut     bool      // it was a tunnel, which was ended
	by      time.Time // of a tunnel's write

	answer Answer // what Take will give
	called bool

	mayRead, mayWrite waiter.Waiter
}

// Hint is an interim answer: a status and fields.
type Hint struct {
	Status int
	Block  []byte
}

// maxHints is how many wait to be taken. More are passed over.
const maxHints = 4

// Answer is what an errand has for its client.
type Answer struct {
	// Hints come ahead of all else.
	Hints []Hint
	// Status, if it isn't 0, begins the answer, with the fields in Block. Length is the body's, -1 = not known; None says that
	// none follows.
	Status int
	Block  []byte
	Length int64
	None   bool
	// Body belongs to whoever took it.
	Body []byte
	// Tunnel: the answer leaves HTTP. What is given and taken from now on are the tunnel's bytes.
	Tunnel bool
	// Last: nothing comes behind Body, but what the client sends is still wanted.
	Last bool
	// End completes the answer, with Trailers if there are any. Aborted: the client must see that it is not whole.
	End      bool
	Trailers []byte
	Aborted  bool
}

// errandSize is what waits of a body in each direction.
const errandSize = 16 << 10

// Carry carries out an exchange that has been judged and counted as one in flight, and finishes it.
func (e *Engine) Carry(x *proxy.Exchange, call func()) *Errand {
	r := &Errand{e: e, x: x, call: call, start: time.Now(), most: e.opts.TakeTime, mayRead: waiter.New(), mayWrite: waiter.New()}
	e.wg.Add(1)
	go func() {
		defer e.wg.Done()
		defer func() {
			e.caught(recover())
			e.server.InFlight.Add(-1)
			r.abort() // unless it has ended
		}()
		forward(x, r)
		x.Finish(time.Now())
		e.server.Release(x)
	}()
	return r
}

// Give hands over the next of the request's body and says how much was taken.
func (r *Errand) Give(b []byte) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.r == len(r.in) {
		r.in, r.r = r.in[:0], 0
	}
	n := min(len(b), errandSize-len(r.in))
	r.in = append(r.in, b[:n]...)
	r.mayRead.Signal()
	return n
}

// GiveEnd says that all of the body was given; its trailers may be nil, and are copied.
func (r *Errand) GiveEnd(trailer *http1.Head) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if trailer != nil && !r.ends {
		r.trailer = new(http1.Head)
		r.trailer.Empty(nil)
		for i := range trailer.Fields() {
			f := &trailer.Fields()[i]
			_, _ = r.trailer.Put(trailer.Name(f), trailer.Value(f)) // it was good before
		}
		r.trailer.DropKnown()
	}
	r.ends = true
	r.mayRead.Signal()
}

// Waits says whether the request's body is what the exchange waits for.
func (r *Errand) Waits() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wanted && !r.ends
}

// Take gives what is new of the answer.
func (r *Errand) Take() Answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.answer
	r.answer, r.called = Answer{}, false
	r.mayWrite.Signal()
	return a
}

// Over says whether the answer is complete, taken or not, or was aborted before it was.
func (r *Errand) Over() (ended, aborted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended, r.answer.Aborted
}

// Leave says that nobody waits for the answer any more.
func (r *Errand) Leave() {
	r.mu.Lock()
	r.left = true
	r.mu.Unlock()
	r.mayRead.Signal()
	r.mayWrite.Signal()
}

// tell is called with the lock.
func (r *Errand) tell() {
	if !r.called && !r.left {
		r.called = true
		r.call()
	}
}

// Read gives what has come of the body, or waits for more.
func (r *Errand) Read(p []byte) (int, error) {
	for {
		n, err := r.read(p)
		if r.got += int64(n); n > 0 || err != nil {
			return n, err
		}
		if !r.mayRead.Wait(relay.BodyDeadline(r.start, r.got, r.x.Deadline)) {
			return 0, errBodyTimeout
		}
	}
}

func (r *Errand) read(p []byte) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wanted = false
	switch {
	case r.left || r.stopped:
		return 0, errClientGone
	case r.r < len(r.in):
		n = copy(p, r.in[r.r:])
		r.r += n
		return n, nil
	case r.ends:
		return 0, io.EOF
	}
	r.wanted = true
	r.tell()
	return 0, nil
}

// whole waits for the end of a short body.
func (r *Errand) whole() ([]byte, bool, error) {
	for r.x.Request.Length <= relay.SmallBody {
		b, ok, wait, err := r.all()
		if !wait {
			return b, ok, err
		}
		if !r.mayRead.Wait(relay.BodyDeadline(r.start, int64(len(b)), r.x.Deadline)) {
			return nil, false, errBodyTimeout
		}
	}
	return nil, false, nil
}

func (r *Errand) all() (b []byte, ok, wait bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b = r.in[r.r:]
	switch {
	case r.left:
		return nil, false, false, errClientGone
	case r.x.Request.Chunked && !r.ends, r.trailer != nil, len(b) > relay.SmallBody:
		return nil, false, false, nil // it is streamed
	case r.ends, r.x.Request.Length == 0:
		return b, true, false, nil
	}
	r.wanted = true
	r.tell()
	return b, false, true, nil
}

// discard: a stream's unread body hinders nobody.
func (r *Errand) discard() bool { return true }

func (r *Errand) trailers() *http1.Head {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trailer
}

func (r *Errand) interrupt() {
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	r.mayRead.Signal()
}

func (r *Errand) gone() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left
}

func (r *Errand) hint(status int, fields *http1.Head) {
	block := relay.AppendFields(nil, fields)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.answer.Hints) < maxHints {
		r.answer.Hints = append(r.answer.Hints, Hint{status, block})
		r.tell()
	}
}

func (r *Errand) head(length int64, none bool) {
	block := relay.AppendBlock(nil, r.x, length)
	if relay.Trails(r.x, none) {
		length = -1
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer.Status, r.answer.Block, r.answer.Length, r.answer.None = r.x.Status, block, length, none
}

func (r *Errand) data(p []byte) error {
	for by := (time.Time{}); ; {
		n, err := r.write(p)
		if p = p[n:]; len(p) == 0 || err != nil {
			return err
		}
		if by.IsZero() {
			by = relay.TakeBy(time.Now(), r.most, r.x.Deadline.Add(time.Second))
		}
		if !r.mayWrite.Wait(by) {
			return errClientGone
		}
	}
}

func (r *Errand) write(p []byte) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left {
		return 0, errClientGone
	}
	n = min(len(p), errandSize-len(r.answer.Body))
	if r.answer.Body = append(r.answer.Body, p[:n]...); n < len(p) {
		r.tell()
	}
	return n, nil
}

func (r *Errand) flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tell()
	return nil
}

func (r *Errand) end(trailers *http1.Head) error {
	block := relay.AppendFields(nil, trailers)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left {
		return errClientGone
	}
	r.ended, r.answer.End, r.answer.Trailers = true, true, block
	r.tell()
	return nil
}

func (r *Errand) abort() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended {
		r.answer.Aborted = true
		r.tell()
	}
}

var _ client = (*Errand)(nil)
