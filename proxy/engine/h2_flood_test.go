package engine_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	. "github.com/cellgate/cellgate/proxy/engine"
	codec "github.com/cellgate/cellgate/proxy/http2"
	"github.com/cellgate/cellgate/reason"
)

// frames is a client that writes and reads single frames.
type frames struct {
	*http2.Framer
	net.Conn
	t     testing.TB
	block bytes.Buffer
	enc   *hpack.Encoder
}

func (w *world) frames(settings ...http2.Setting) *frames {
	w.t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	f := &frames{Framer: http2.NewFramer(c, c), Conn: c, t: w.t}
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.AllowIllegalWrites = true
	f.enc = hpack.NewEncoder(&f.block)
	_, _ = io.WriteString(c, http2.ClientPreface)
	_ = f.WriteSettings(settings...)
	return f
}

// head sends a request's head; fields are added to those of a POST.
func (f *frames) head(id uint32, end bool, fields ...string) *frames {
	f.block.Reset()
	all := []string{":method", "POST", ":scheme", "http", ":authority", "a.example", ":path", "/"}
	for len(fields) > 0 && fields[0] == ":path" {
		all[7], fields = fields[1], fields[2:]
	}
	fields = append(all, fields...)
	for i := 0; i < len(fields); i += 2 {
		_ = f.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: f.block.Bytes(), EndHeaders: true, EndStream: end})
	return f
}

// until reads frames up to the one that is asked for.
func until[T http2.Frame](f *frames, want func(T) bool) T {
	f.t.Helper()
	for {
		fr, err := f.ReadFrame()
		if err != nil {
			f.t.Fatalf("no such frame: %v", err)
		}
		if v, ok := fr.(T); ok && want(v) {
			return v
		}
	}
}

func answerOf(f *frames, id uint32) *http2.MetaHeadersFrame {
	f.t.Helper()
	return until(f, func(h *http2.MetaHeadersFrame) bool { return h.StreamID == id })
}

// quiet waits until nothing is under way any more.
func (w *world) quiet() {
	w.t.Helper()
	for end := time.Now().Add(6 * time.Second); w.server.InFlight.Load() > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("%d exchanges are still under way", w.server.InFlight.Load())
		}
	}
}

// Every flood ends its own connection with ENHANCE_YOUR_CALM, is counted, and leaves nothing behind; others are served.
func TestHTTP2FloodsEndTheirOwnConnection(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{silent: true})
		for name, one := range map[string]func(f *frames, n uint32) error{
			"rapid resets (G43)": func(f *frames, n uint32) error {
				f.head(2*n+1, false)
				return f.WriteRSTStream(2*n+1, http2.ErrCodeCancel)
			},
			"continuations (G43)": func(f *frames, n uint32) error {
				if n == 0 {
					_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}})
				}
				return f.WriteContinuation(1, false, nil)
			},
			"pings":          func(f *frames, n uint32) error { return f.WritePing(false, [8]byte{}) },
			"settings":       func(f *frames, n uint32) error { return f.WriteSettings() },
			"window updates": func(f *frames, n uint32) error { return f.WriteWindowUpdate(0, 1) },
			"priorities":     func(f *frames, n uint32) error { return f.WritePriority(7, http2.PriorityParam{StreamDep: 3}) },
			"empty data": func(f *frames, n uint32) error {
				if n == 0 {
					f.head(1, false)
				}
				return f.WriteData(1, false, nil)
			},
		} {
			t.Run(name, func(t *testing.T) {
				before := w.server.Faults[codec.EnhanceYourCalm].Load()
				f := w.frames()
				f.t = t
				stopped := make(chan struct{})
				go func() {
					defer close(stopped)
					for n := range uint32(200_000) {
						if one(f, n) != nil {
							return
						}
					}
				}()
				away := until(f, func(g *http2.GoAwayFrame) bool { return true })
				if away.ErrCode != http2.ErrCodeEnhanceYourCalm {
					t.Fatal(away.ErrCode)
				}
				f.Close()
				<-stopped
				w.quiet()
				if n := w.server.Faults[codec.EnhanceYourCalm].Load(); n != before+1 {
					t.Fatalf("%d faults were counted", n-before)
				}
				if res, _, _ := w.dial().send(get("/")).answer("GET"); res.StatusCode != 200 {
					t.Fatal(res.StatusCode)
				}
			})
		}
	})
}

// Answers that a client doesn't take hold up nobody else's on the same connection.
func TestOneStalledHTTP2StreamStallsNoOther(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		big := bytes.Repeat([]byte("x"), 80_000)
		w := start(t, handler(t, func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(big) }), setup{silent: true, document: strings.Replace(plainDocument, "20s", "30s", 1)})
		f := w.frames()
		_ = f.WriteWindowUpdate(0, 1<<30)
		const n = 100
		for i := range uint32(n) {
			f.head(2*i+1, true)
			if i > 0 { // all but the first may send everything
				_ = f.WriteWindowUpdate(2*i+1, 1<<20)
			}
		}
		got, whole := map[uint32]int{}, 0
		for whole < n-1 {
			d := until(f, func(*http2.DataFrame) bool { return true })
			got[d.StreamID] += len(d.Data())
			if d.StreamEnded() {
				if whole++; got[d.StreamID] != len(big) {
					t.Fatalf("stream %d has %d bytes", d.StreamID, got[d.StreamID])
				}
			}
		}
		if got[1] > 65535 {
			t.Fatalf("the first got %d bytes", got[1])
		}
		_ = f.WriteWindowUpdate(1, 1<<20)
		for got[1] < len(big) {
			got[1] += len(until(f, func(d *http2.DataFrame) bool { return d.StreamID == 1 }).Data())
		}
	})
}

// A client that never opens its windows holds an exchange until its deadline at most.
func TestHTTP2StreamsWithoutAWindowEndWithTheDeadline(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(make([]byte, 200_000)) }),
			setup{document: strings.Replace(plainDocument, "20s", "1s", 1)})
		f := w.frames(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		for i := range uint32(20) {
			f.head(2*i+1, true)
		}
		for range 20 {
			until(f, func(r *http2.RSTStreamFrame) bool { return r.ErrCode == http2.ErrCodeInternal })
		}
		w.quiet()
		for r := range w.logged {
			if r.Truncated { // the others had no answer in time
				break
			}
		}
	})
}

func TestHTTP2BodiesThatDontComeAreAnswered408(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{document: strings.Replace(plainDocument, "20s", "200ms", 1)})
		for _, length := range []string{"5", "50000"} { // read ahead, and streamed
			f := w.frames()
			h := answerOf(f.head(1, false, "content-length", length), 1)
			if h.PseudoValue("status") != strconv.Itoa(reason.BodyTimeout.Status()) {
				t.Fatalf("%v", h.Fields)
			}
			if r := until(f, func(r *http2.RSTStreamFrame) bool { return true }); r.ErrCode != http2.ErrCodeNo {
				t.Fatal(r.ErrCode)
			}
		}
	})
}

// Whoever sends another protocol's preface understands no answer in HTTP/1 (RFC 9113, section 3.4).
func TestWhatIsNotHTTPGetsNoAnswer(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{})
		w.dial().send("INVALID CONNECTION PREFACE\r\n\r\n").closed()
		res, body, _ := w.dial().send("GET /x FTP/1.1\r\nHost: a.example\r\n\r\n").answer("GET")
		problem(t, res, body, reason.BadRequest)
		w.quiet()
	})
}

func TestHalfAnHTTP2HeadEndsTheConnection(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{engine: Options{HeaderTime: 100 * time.Millisecond}})
		f := w.frames()
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}})
		if away := until(f, func(*http2.GoAwayFrame) bool { return true }); away.ErrCode != http2.ErrCodeEnhanceYourCalm {
			t.Fatal(away.ErrCode)
		}
	})
}

func TestHTTP2IdleConnectionsEnd(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{engine: Options{Idle: 100 * time.Millisecond}})
		f := w.frames()
		until(f, func(g *http2.GoAwayFrame) bool { return g.LastStreamID == 0 && g.ErrCode == http2.ErrCodeNo })
		for {
			if _, err := f.ReadFrame(); err != nil {
				if err != io.EOF {
					t.Fatal(err)
				}
				break
			}
		}
	})
}

// The two steps of a graceful end (RFC 9113, section 6.8): nothing is refused before the client has seen the first.
func TestDrainSaysGoAwayTwice(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		inside, release := make(chan struct{}, 2), make(chan struct{})
		w := start(t, handler(t, func(rw http.ResponseWriter, r *http.Request) {
			inside <- struct{}{}
			<-release
			_, _ = io.WriteString(rw, "done")
		}), setup{engine: Options{HardStop: 6 * time.Second}})
		f := w.frames()
		f.head(1, true)
		<-inside
		w.stop()
		until(f, func(g *http2.GoAwayFrame) bool { return g.LastStreamID == 1<<31-1 && g.ErrCode == http2.ErrCodeNo })
		f.head(3, true) // on its way already
		<-inside
		ping := until(f, func(p *http2.PingFrame) bool { return !p.IsAck() })
		_ = f.WritePing(true, ping.Data)
		until(f, func(g *http2.GoAwayFrame) bool { return g.LastStreamID == 3 && g.ErrCode == http2.ErrCodeNo })
		close(release)
		whole := 0
		for {
			fr, err := f.ReadFrame()
			if err != nil {
				break
			}
			if d, ok := fr.(*http2.DataFrame); ok && d.StreamEnded() {
				whole++
			}
		}
		if whole != 2 {
			t.Fatalf("%d whole answers", whole)
		}
	})
}

// An answer that comes before the body has come reaches the client, and the upstream's connection is used no more (G23, G7).
func TestHTTP2EarlyAnswersAreDelivered(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		var conns atomic.Int32
		w := start(t, scripted(t, func(n int, c *raw) {
			conns.Store(int32(n))
			buf := make([]byte, 1<<16)
			for {
				got, err := c.Read(buf)
				if err != nil {
					return
				}
				if bytes.Contains(buf[:got], []byte(" HTTP/1.1\r\n")) {
					_, _ = io.WriteString(c, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig")
				}
			}
		}), setup{})
		for i := range 2 {
			f := w.frames()
			f.head(1, false, "content-length", "100000")
			if h := answerOf(f, 1); h.PseudoValue("status") != "413" {
				t.Fatal(h.Fields)
			}
			if r := until(f, func(*http2.RSTStreamFrame) bool { return true }); r.ErrCode != http2.ErrCodeNo {
				t.Fatal(r.ErrCode)
			}
			_ = f.WriteData(1, true, make([]byte, 1000)) // was on its way
			f.head(3, true, "content-length", "0")
			answerOf(f, 3)
			w.quiet()
			if n := conns.Load(); n < int32(i+2) {
				t.Fatalf("%d connections: one with half a request was used again", n)
			}
		}
	})
}

func TestHTTP2ExpectationIsAnsweredWhenTheBodyIsWanted(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{})
		for _, length := range []string{"5", "20000"} {
			f := w.frames()
			f.head(1, false, "content-length", length, "expect", "100-continue")
			if h := answerOf(f, 1); h.PseudoValue("status") != "100" || h.StreamEnded() {
				t.Fatal(h.Fields)
			}
			n, _ := strconv.Atoi(length)
			for ; n > 0; n -= 5000 {
				_ = f.WriteData(1, n <= 5000, make([]byte, min(n, 5000)))
			}
			if h := answerOf(f, 1); h.PseudoValue("status") != "200" {
				t.Fatal(h.Fields)
			}
		}
		// One that is refused is not invited.
		f := w.frames()
		f.head(1, false, "content-length", "99999999", "expect", "100-continue")
		if h := answerOf(f, 1); h.PseudoValue("status") != "413" {
			t.Fatal(h.Fields)
		}
	})
}

// Cancelling reaches the upstream, and the exchange is over at once.
func TestHTTP2CancelReachesTheUpstream(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		cut := make(chan struct{})
		inside := make(chan struct{})
		w := start(t, handler(t, func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/next" {
				return
			}
			close(inside)
			<-r.Context().Done()
			close(cut)
		}), setup{})
		f := w.frames()
		f.head(1, true)
		<-inside
		_ = f.WriteRSTStream(1, http2.ErrCodeCancel)
		<-cut
		if r := <-w.logged; r.Reason != reason.ClientGone {
			t.Fatalf("%+v", r)
		}
		f.head(3, true, ":path", "/next") // the connection goes on
		if h := answerOf(f, 3); h.PseudoValue("status") != "200" {
			t.Fatal(h.Fields)
		}
	})
}

// Whatever frames come in whatever order, the node answers or closes, and nothing is left.
func TestHostileFramesNeverHurtTheNode(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{silent: true, engine: Options{HeaderTime: 80 * time.Millisecond}})
		var wg sync.WaitGroup
		gate := make(chan struct{}, 16)
		for seed := range 80 {
			wg.Add(1)
			gate <- struct{}{}
			go func() {
				defer func() { <-gate; wg.Done() }()
				f := w.frames()
				go func() { _, _ = io.Copy(io.Discard, f.Conn) }()
				r := uint32(seed)*2654435761 + 1
				next := func(n uint32) uint32 { r = r*1664525 + 1013904223; return (r >> 8) % n }
				for range 60 {
					id := next(12)
					switch next(9) {
					case 0, 1:
						f.head(id, next(2) == 0, "x", fmt.Sprint(id))
					case 2:
						_ = f.WriteData(id, next(2) == 0, make([]byte, next(5000)))
					case 3:
						_ = f.WriteRSTStream(id, http2.ErrCode(next(14)))
					case 4:
						_ = f.WriteWindowUpdate(id, next(1<<16))
					case 5:
						_ = f.WriteSettings(http2.Setting{ID: http2.SettingID(next(7)), Val: next(1 << 18)})
					case 6:
						_ = f.WritePing(next(2) == 0, [8]byte{byte(id)})
					case 7:
						_ = f.WriteRawFrame(http2.FrameType(next(12)), http2.Flags(next(256)), id, make([]byte, next(40)))
					case 8:
						_ = f.WriteGoAway(id, 0, nil)
					}
				}
				f.Close()
			}()
		}
		wg.Wait()
		w.quiet()
		if res, _, _ := w.dial().send(get("/")).answer("GET"); res.StatusCode != 200 {
			t.Fatal(res.StatusCode)
		}
	})
}
