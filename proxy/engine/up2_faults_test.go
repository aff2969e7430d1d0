//lint:file-ignore SA1019 the tests speak HTTP/2 with prior knowledge over connections of their own.

package engine_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/cellgate/cellgate/reason"
)

// up2 is a connection of an upstream that speaks HTTP/2 as its script says.
type up2 struct {
	*http2.Framer
	nc net.Conn
	n  int // which connection it is, from 1
	mu sync.Mutex
}

// heads sends a head with these fields, after status 200 unless they begin with another.
func (u *up2) heads(id uint32, end bool, fields ...string) {
	if len(fields) == 0 || fields[0] != ":status" {
		fields = append([]string{":status", "200"}, fields...)
	}
	u.trail(id, end, fields...)
}

func (u *up2) trail(id uint32, end bool, fields ...string) {
	var b strings.Builder
	enc := hpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		_ = enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	_ = u.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte(b.String()), EndHeaders: true, EndStream: end})
}

// speaks2 starts an upstream with these settings. said is called with each frame that comes behind the preface.
func speaks2(t testing.TB, said func(u *up2, f http2.Frame), settings ...http2.Setting) string {
	l := listen(t)
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for n := 1; ; n++ {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			_ = nc.SetDeadline(time.Now().Add(patience))
			all.Go(func() {
				defer nc.Close()
				if _, err := io.ReadFull(nc, make([]byte, len(http2.ClientPreface))); err != nil {
					return
				}
				u := &up2{Framer: http2.NewFramer(nc, nc), nc: nc, n: n}
				u.AllowIllegalWrites = true
				_ = u.WriteSettings(settings...)
				for {
					f, err := u.ReadFrame()
					if err != nil {
						return
					}
					said(u, f)
				}
			})
		}
	})
	return l.Addr().String()
}

const retrying = `timeout: 20s, retry: {attempts: 2, conditions: [connect-failure, reset-before-headers, "503"]}`

func post(body string) string {
	return fmt.Sprintf("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// I7; RFC 9113, section 8.7; CASES G21: what the upstream may have executed is sent once, what it vouches that it has not
// looked at is sent again, and a read is in any case.
func TestAPostOverHTTP2IsNeverExecutedTwice(t *testing.T) {
	t.Parallel()
	reset := func(code http2.ErrCode) func(u *up2, id uint32) {
		return func(u *up2, id uint32) { _ = u.WriteRSTStream(id, code) }
	}
	for name, c := range map[string]struct {
		first func(u *up2, id uint32) // what becomes of the first request
		safe  bool
	}{
		"the connection breaks":      {func(u *up2, _ uint32) { u.nc.Close() }, false},
		"the stream is cancelled":    {reset(http2.ErrCodeCancel), false},
		"the stream fails":           {reset(http2.ErrCodeInternal), false},
		"no error, no answer":        {reset(http2.ErrCodeNo), false},
		"a goodbye that includes it": {func(u *up2, id uint32) { _ = u.WriteGoAway(id, http2.ErrCodeNo, nil); u.nc.Close() }, false},
		"refused behind an interim": {func(u *up2, id uint32) {
			u.trail(id, false, ":status", "103")
			reset(http2.ErrCodeRefusedStream)(u, id)
		}, false},
		"refused":                      {reset(http2.ErrCodeRefusedStream), true},
		"a goodbye that leaves it out": {func(u *up2, id uint32) { _ = u.WriteGoAway(id-2, http2.ErrCodeNo, nil) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, start starter) {
				var posts, gets, failed atomic.Int32
				w := start(t, speaks2(t, func(u *up2, f http2.Frame) {
					h, is := f.(*http2.HeadersFrame)
					if !is {
						return
					}
					switch h.HeaderBlockFragment()[2] { // of ":method", a name of the static table with the length of its value
					case 'P':
						posts.Add(1)
					case 'G':
						gets.Add(1)
					}
					if h.StreamID > 1 && failed.Add(1) == 1 {
						c.first(u, h.StreamID)
						return
					}
					u.heads(h.StreamID, true)
				}), setup{document: over2(strings.Replace(plainDocument, "timeout: 20s", retrying, 1))})
				cl := w.dial()
				cl.send(get("/")).answer("GET") // the connection is an old one from now on
				res, body, _ := cl.send(post("hi")).answer("POST")
				switch {
				case c.safe && (res.StatusCode != 200 || posts.Load() != 2):
					t.Fatalf("%d %q after %d requests", res.StatusCode, body, posts.Load())
				case !c.safe && posts.Load() != 1:
					t.Fatalf("it was sent %d times", posts.Load())
				case !c.safe:
					problem(t, res, body, reason.UpstreamReset)
				}
				<-w.logged
				if r := <-w.logged; c.safe && r.Attempts != 2 || !c.safe && r.Attempts != 1 {
					t.Fatalf("%d attempts are logged", r.Attempts)
				}
				failed.Store(0)
				cl = w.dial()
				for range 2 { // one of them has a number above 1
					if res, _, _ := cl.send(get("/")).answer("GET"); res.StatusCode != 200 {
						t.Fatalf("a read that may be repeated: %d", res.StatusCode)
					}
				}
			})
		})
	}
}

// A body that has been streamed is not at hand any more, even if the upstream did nothing with it.
func TestAStreamedBodyIsNotSentAgainInPart(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		var heads atomic.Int32
		w := start(t, speaks2(t, func(u *up2, f http2.Frame) {
			switch f := f.(type) {
			case *http2.HeadersFrame:
				heads.Add(1)
			case *http2.DataFrame:
				_ = u.WriteRSTStream(f.StreamID, http2.ErrCodeRefusedStream)
			}
		}), setup{document: over2(strings.Replace(plainDocument, "timeout: 20s", retrying, 1))})
		c := w.dial().send("POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n")
		res, body, _ := c.answer("POST")
		problem(t, res, body, reason.UpstreamReset)
		if heads.Load() != 1 {
			t.Fatalf("%d requests", heads.Load())
		}
	})
}

func TestWhatAnUpstreamMayNotSayOverHTTP2(t *testing.T) {
	t.Parallel()
	many := func(n int, do func(u *up2)) func(*up2, uint32) {
		return func(u *up2, _ uint32) {
			for range n {
				do(u)
			}
		}
	}
	for name, c := range map[string]struct {
		do     func(u *up2, id uint32)
		closes bool // the connection
	}{
		"no status":              {func(u *up2, id uint32) { u.trail(id, true, "x", "y") }, false},
		"a status of no class":   {func(u *up2, id uint32) { u.heads(id, true, ":status", "600") }, false},
		"a field of connections": {func(u *up2, id uint32) { u.heads(id, true, "connection", "close") }, false},
		"a length and no body":   {func(u *up2, id uint32) { u.heads(id, true, "content-length", "5") }, false},
		"two lengths":            {func(u *up2, id uint32) { u.heads(id, false, "content-length", "5", "content-length", "6") }, false},
		"body before the head":   {func(u *up2, id uint32) { _ = u.WriteData(id, true, []byte("x")) }, false},
		"a flood of fields":      {func(u *up2, id uint32) { u.heads(id, true, make([]string, 2*200)...) }, false},
		"interim answers, forever": {func(u *up2, id uint32) {
			for range 50 {
				u.heads(id, false, ":status", "103")
			}
		}, false},
		"a push": {func(u *up2, id uint32) {
			_ = u.WritePushPromise(http2.PushPromiseParam{StreamID: id, PromiseID: 2, EndHeaders: true})
		}, true},
		"an idle stream":            {func(u *up2, id uint32) { u.heads(id+2, true) }, true},
		"a stream of its own":       {func(u *up2, _ uint32) { u.heads(2, true) }, true},
		"a frame that is too large": {func(u *up2, id uint32) { _ = u.WriteData(id, false, make([]byte, 20000)) }, true},
		"a window that overflows":   {func(u *up2, _ uint32) { _ = u.WriteWindowUpdate(0, 1<<31-1) }, true},
		"a block that is no HPACK": {func(u *up2, id uint32) {
			_ = u.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff}, EndHeaders: true})
		}, true},
		"a block without an end": {func(u *up2, id uint32) {
			_ = u.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x88}})
			for range 100 {
				_ = u.WriteContinuation(id, false, make([]byte, 4000))
			}
		}, true},
		"pings, forever":    {many(20000, func(u *up2) { _ = u.WritePing(false, [8]byte{}) }), true},
		"settings, forever": {many(20000, func(u *up2) { _ = u.WriteSettings() }), true},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, start starter) {
				closed := make(chan struct{}, 10)
				w := start(t, speaks2(t, func(u *up2, f http2.Frame) {
					switch f := f.(type) {
					case *http2.HeadersFrame:
						if u.n > 1 || f.StreamID > 1 {
							u.heads(f.StreamID, true)
						} else {
							c.do(u, f.StreamID)
						}
					case *http2.GoAwayFrame:
						closed <- struct{}{}
					}
				}), setup{document: over2("")})
				res, body, _ := w.dial().send(post("")).answer("POST")
				problem(t, res, body, reason.UpstreamInvalid)
				if c.closes {
					select {
					case <-closed:
					case <-time.After(3 * time.Second):
						t.Error("the upstream isn't told that its connection ends")
					}
				}
				if res, _, _ := w.dial().send(get("/")).answer("GET"); res.StatusCode != 200 {
					t.Fatalf("the next exchange: %d", res.StatusCode)
				}
			})
		})
	}
}

// G27: an answer that is not whole never looks so.
func TestATruncatedAnswerOverHTTP2IsSeenAsSuch(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(u *up2, id uint32){
		"reset":                        func(u *up2, id uint32) { _ = u.WriteRSTStream(id, http2.ErrCodeInternal) },
		"reset without an error":       func(u *up2, id uint32) { _ = u.WriteRSTStream(id, http2.ErrCodeNo) },
		"the connection breaks":        func(u *up2, _ uint32) { u.nc.Close() },
		"less than was said":           func(u *up2, id uint32) { _ = u.WriteData(id, true, nil) },
		"more than was said":           func(u *up2, id uint32) { _ = u.WriteData(id, true, make([]byte, 100)) },
		"trailers with a status":       func(u *up2, id uint32) { u.trail(id, true, ":status", "200") },
		"trailers that are no end":     func(u *up2, id uint32) { u.trail(id, false, "x", "y") },
		"a goodbye that leaves it out": func(u *up2, id uint32) { _ = u.WriteGoAway(0, http2.ErrCodeNo, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, start starter) {
				w := start(t, speaks2(t, func(u *up2, f http2.Frame) {
					if f.Header().Type == http2.FrameHeaders {
						id := f.Header().StreamID
						u.heads(id, false, "content-length", "10")
						_ = u.WriteData(id, false, []byte("abc"))
						time.Sleep(30 * time.Millisecond)
						end(u, id)
					}
				}), setup{document: over2("")})
				if res, body, err := w.dial().send(get("/")).answer("GET"); err == nil || res.StatusCode != 200 || !strings.HasPrefix("abc", body) {
					t.Fatalf("%d %q %v", res.StatusCode, body, err)
				}
				if r := <-w.logged; !r.Truncated || r.Attempts != 1 {
					t.Fatalf("%+v", r)
				}
			})
		})
	}
}

// F4: whoever leaves, and whose time is up, is taken back upstream, and nobody else.
func TestTheUpstreamOverHTTP2LearnsThatNobodyWaits(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		cancelled := make(chan uint32, 10)
		w := start(t, speaks2(t, func(u *up2, f http2.Frame) {
			switch f := f.(type) {
			case *http2.HeadersFrame:
				if f.StreamID == 5 {
					u.heads(5, false)
				}
			case *http2.RSTStreamFrame:
				if f.ErrCode == http2.ErrCodeCancel {
					cancelled <- f.StreamID
				}
			}
		}), setup{document: over2(strings.Replace(plainDocument, "timeout: 20s", "timeout: 2s", 1))})
		is := func(id uint32) {
			t.Helper()
			select {
			case got := <-cancelled:
				if got != id {
					t.Fatalf("stream %d was cancelled, not %d", got, id)
				}
			case <-time.After(3 * time.Second):
				t.Fatalf("stream %d was not cancelled", id)
			}
		}
		res, body, _ := w.dial().send(get("/")).answer("GET") // the time is up
		problem(t, res, body, reason.UpstreamTimeout)
		is(1)
		c := w.dial().send(get("/"))
		time.Sleep(20 * time.Millisecond)
		c.Close()
		is(3)
		c = w.dial().send(get("/")) // in the middle of its answer
		if _, err := http.ReadResponse(c.r, nil); err != nil {
			t.Fatal(err)
		}
		c.Close()
		is(5)
	})
}

// G23: the answer is there before the body is, and the rest of the body isn't wanted.
func TestAnEarlyAnswerOverHTTP2IsDelivered(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]http2.ErrCode{"reset with no error": http2.ErrCodeNo, "not reset": 99} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, start starter) {
				over := make(chan http2.ErrCode, 1)
				w := start(t, speaks2(t, func(u *up2, f http2.Frame) {
					switch f := f.(type) {
					case *http2.HeadersFrame:
						u.heads(f.StreamID, false, ":status", "413", "content-length", "3")
						_ = u.WriteData(f.StreamID, true, []byte("big"))
						if code != 99 {
							_ = u.WriteRSTStream(f.StreamID, code)
						}
					case *http2.RSTStreamFrame:
						over <- f.ErrCode
					}
				}), setup{document: over2("")})
				c := w.dial()
				go func() {
					_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 9000000\r\n\r\n")
					for range 900 {
						if _, err := c.Write(make([]byte, 10000)); err != nil {
							return
						}
					}
				}()
				res, body, err := c.answer("POST")
				if err != nil || res.StatusCode != 413 || body != "big" || !res.Close {
					t.Fatalf("%v %d %q close=%v", err, res.StatusCode, body, res.Close)
				}
				if code == 99 {
					if got := <-over; got != http2.ErrCodeCancel {
						t.Fatalf("the upload was ended with %v", got)
					}
				}
			})
		})
	}
}

// F6: a client that doesn't read holds a window of its own, and no other exchange of the line.
func TestOneStalledClientStallsNoOtherOverHTTP2(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		var conns atomic.Int32
		var sent atomic.Int64
		up := handler2(t, &conns, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/large" {
				return
			}
			for range 1 << 14 {
				n, err := w.Write(make([]byte, 64<<10))
				if sent.Add(int64(n)); err != nil {
					return
				}
			}
		})
		w := start(t, up, setup{document: over2(strings.Replace(plainDocument, "timeout: 20s", "timeout: 30s", 1))})
		for range 20 { // more than fit into a window that they would share
			c := w.dial()
			_ = c.Conn.(*net.TCPConn).SetReadBuffer(16 << 10)
			c.send(get("/large"))
			if _, err := http.ReadResponse(c.r, nil); err != nil {
				t.Fatal(err)
			}
		}
		for range 20 {
			if res, _, _ := w.dial().send(get("/")).answer("GET"); res.StatusCode != 200 {
				t.Fatal(res.StatusCode)
			}
		}
		before := int64(-1)
		for end := time.Now().Add(patience); before != sent.Load(); time.Sleep(200 * time.Millisecond) {
			if before = sent.Load(); time.Now().After(end) {
				t.Fatalf("the upstream goes on writing, %d bytes so far", before)
			}
		}
		if conns.Load() != 1 {
			t.Fatalf("%d connections", conns.Load())
		}
	})
}

// Every exchange of many on one line gets its own answer, whole.
func TestExchangesOfALineAreNotMixedUp(t *testing.T) {
	t.Parallel()
	var conns atomic.Int32
	up := handler2(t, &conns, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Path", r.URL.Path)
		_, _ = io.Copy(w, r.Body)
	})
	fronts(t, up, setup{document: over2("")}, func(t *testing.T, w *world, c *http.Client, scheme string) {
		conns.Store(0)
		c.Timeout = time.Minute
		var all sync.WaitGroup
		for i := range 30 {
			all.Go(func() {
				for j := range 5 {
					id := fmt.Sprintf("/%d-%d-", i, j)
					body := strings.Repeat(id, 1+i*j*60)
					req, _ := http.NewRequestWithContext(context.Background(), "POST", scheme+"://a.example"+id, strings.NewReader(body))
					if i%2 == 1 {
						req.ContentLength = -1
					}
					res, err := c.Do(req)
					if err != nil {
						t.Error(err)
						return
					}
					b, err := io.ReadAll(res.Body)
					res.Body.Close()
					if err != nil || string(b) != body || res.Header.Get("X-Path") != id || res.StatusCode != 200 {
						t.Errorf("%s: %d %q, %d bytes of %d, %v", id, res.StatusCode, res.Header.Get("X-Path"), len(b), len(body), err)
					}
				}
			})
		}
		all.Wait()
		if n := conns.Load(); n > 2 {
			t.Errorf("%d connections", n)
		}
	})
}

// G39, F4: nobody hangs over an expectation, and pieces pass as they come, both ways.
func TestPiecesPassAsTheyComeOverHTTP2(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		up := handler2(t, nil, func(w http.ResponseWriter, r *http.Request) {
			rc := http.NewResponseController(w)
			w.WriteHeader(200)
			_ = rc.Flush()
			b := make([]byte, 100)
			for {
				n, err := r.Body.Read(b)
				_, _ = w.Write(b[:n])
				_ = rc.Flush()
				if err != nil {
					return
				}
			}
		})
		w := start(t, up, setup{document: over2("")})
		c := w.dial().send("POST / HTTP/1.1\r\nHost: a.example\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
		if res, err := http.ReadResponse(c.r, nil); err != nil || res.StatusCode != 100 {
			t.Fatal(res, err)
		}
		var body io.Reader
		for i := range 5 {
			c.send("3\r\nab" + fmt.Sprint(i) + "\r\n")
			if body == nil {
				res, err := http.ReadResponse(c.r, &http.Request{Method: "POST"})
				if err != nil || res.StatusCode != 200 {
					t.Fatal(err)
				}
				body = res.Body
			}
			b := make([]byte, 3)
			if _, err := io.ReadFull(body, b); err != nil || string(b) != "ab"+fmt.Sprint(i) {
				t.Fatalf("%q %v", b, err)
			}
		}
		c.send("0\r\n\r\n")
		if b, err := io.ReadAll(body); err != nil || len(b) > 0 {
			t.Fatalf("%q %v", b, err)
		}
	})
}

func TestUpgradesDoNotReachUpstreamsOverHTTP2(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler2(t, nil, func(http.ResponseWriter, *http.Request) { t.Error("it came through") }), setup{document: over2("")})
		res, body, _ := w.dial().send("GET / HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n").answer("GET")
		problem(t, res, body, reason.UpgradeRefused)
	})
}
