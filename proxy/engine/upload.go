package engine

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/reason"
)

// upload streams a request body beside the answer, in a goroutine of its own. The zero value is an upload that was never
// started. The exchange waits for the goroutine's end in stop, so nothing of it outlives the exchange.
type upload struct {
	running bool
	done    chan struct{}
	why     atomic.Uint32 // the reason when the client's body failed
	whole   atomic.Bool   // every byte was written
	ended   atomic.Bool
	waits   atomic.Bool // for the client, not for the upstream
}

var pieces = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

func (u *upload) start(x *proxy.Exchange, from client, to way) {
	u.running, u.done = true, make(chan struct{})
	u.why.Store(0)
	u.whole.Store(false)
	u.ended.Store(false)
	go func() {
		defer close(u.done)
		defer u.ended.Store(true)
		u.copy(x, from, to)
	}()
}

// copy reads a piece, writes it, and only then reads the next. A failure of the upstream's side is left to whoever reads
// its answer: there may be one already.
func (u *upload) copy(x *proxy.Exchange, from client, to way) {
	buf := pieces.Get().(*[]byte)
	defer pieces.Put(buf)
	room := *buf
	for {
		u.waits.Store(true)
		n, err := from.Read(room[http1.MaxChunkHead : len(room)-2])
		u.waits.Store(false)
		if n > 0 {
			if x.BytesIn += int64(n); x.BytesIn > proxy.MaxBody {
				err = errBodyLarge
			} else if to.piece(room, n) != nil {
				return
			}
		}
		if errors.Is(err, io.EOF) {
			u.whole.Store(to.last(room, x.TrimRequest(from.trailers())) == nil)
			return
		}
		if err != nil {
			u.why.Store(uint32(bodyReason(err)))
			to.stopReading() // whoever waits for the answer learns of it now
			return
		}
	}
}

// frame gives the n bytes that stand behind the room for a chunk's head, as they go upstream.
func frame(room []byte, n int, chunked bool) []byte {
	end := http1.MaxChunkHead + n
	if !chunked {
		return room[http1.MaxChunkHead:end]
	}
	var head [http1.MaxChunkHead]byte
	h := http1.AppendChunkHead(head[:0], n)
	at := http1.MaxChunkHead - len(h)
	copy(room[at:], h)
	return append(room[at:end], '\r', '\n')
}

func (u *upload) failed() reason.Reason { return reason.Reason(u.why.Load()) }

// starved says whether the client is what the upload waits for.
func (u *upload) starved() bool { return !u.finished() && u.waits.Load() }

func (u *upload) finished() bool { return !u.running || u.ended.Load() }

// soon says whether the whole body was written, giving an upload that is just ending the time to say so.
func (u *upload) soon() bool {
	if !u.finished() {
		t := time.NewTimer(5 * time.Millisecond)
		defer t.Stop()
		select {
		case <-u.done:
		case <-t.C:
		}
	}
	return u.complete()
}

func (u *upload) complete() bool { return u.finished() && u.whole.Load() }

// stop ends the goroutine, if there is one, by making both of its sides fail, and waits for it.
func (u *upload) stop(from client, to way) {
	if !u.running {
		return
	}
	if !u.ended.Load() {
		from.interrupt()
		to.stopWriting()
	}
	<-u.done
	u.running = false
	u.why.Store(0)
}
