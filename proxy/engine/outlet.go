package engine

import (
	"errors"
	"os"
	"sync"
	"time"

	"github.com/cellgate/cellgate/proxy/upstream"
)

// streamOutlet is a stream to an upstream that has left HTTP (RFC 8441, section 5): END_STREAM is the end of a direction,
// RST_STREAM the cut of a connection. What the upstream does not take waits in its window; what the client does not take stays
// in ours. The tunnel's clock may look at it after its stream is somebody else's.
type streamOutlet struct {
	mu  sync.Mutex
	s   *upstream.Stream // nil = left; guarded, and still while the tunnel's copies run
	cut bool             // guarded
}

// askAfter is how long a stream may be silent before its connection is asked whether the upstream is there.
const askAfter = time.Minute

func (o *streamOutlet) Buffered() []byte { return o.s.Buffered() }
func (o *streamOutlet) Use(n int)        { o.s.Use(n) }

// More waits until something comes, or the upstream ends its direction or the stream, or Close.
func (o *streamOutlet) More() error {
	for {
		now := time.Now()
		o.s.ArmRead(now, askAfter, now.Add(askAfter))
		if err := o.s.More(); !errors.Is(err, os.ErrDeadlineExceeded) || o.isCut() {
			return err
		}
	}
}

// Write returns when the windows have taken all.
func (o *streamOutlet) Write(b []byte) (int, error) {
	o.s.ArmWrite(time.Now().Add(aWhile))
	if err := o.s.WriteBody(b); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (o *streamOutlet) CloseWrite() error { return o.s.EndBody(nil) }

// Close ends whatever waits. Who has the stream cancels it by giving it back.
func (o *streamOutlet) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cut = true; o.s != nil {
		o.s.InterruptRead()
		o.s.InterruptWrite()
	}
	return nil
}

func (o *streamOutlet) isCut() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.cut
}

func (o *streamOutlet) leave() {
	o.mu.Lock()
	o.s = nil
	o.mu.Unlock()
}
