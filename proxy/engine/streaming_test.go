package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/cellgate/cellgate/reason"
)

// ask sends a request over either protocol and gives the answer as soon as its head is there, and a way to leave it.
type ask func(t *testing.T, w *world, method, path string) (*http.Response, io.Closer)

func protocols() map[string]ask {
	return map[string]ask{
		"HTTP/1.0": func(_ *testing.T, w *world, method, path string) (*http.Response, io.Closer) {
			c := w.dial()
			return c.send(method + " " + path + " HTTP/1.0\r\nHost: a.example\r\n\r\n").head(method), c
		},
		"HTTP/1.1": func(_ *testing.T, w *world, method, path string) (*http.Response, io.Closer) {
			c := w.dial()
			return c.send(method + " " + path + " HTTP/1.1\r\nHost: a.example\r\n\r\n").head(method), c
		},
		"HTTP/2": func(t *testing.T, w *world, method, path string) (*http.Response, io.Closer) {
			req, _ := http.NewRequest(method, "http://a.example"+path, nil)
			res, err := w.h2c(nil).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { res.Body.Close() })
			return res, res.Body
		},
	}
}

// head reads an answer's head; the body is read from the connection.
func (c *raw) head(method string) *http.Response {
	c.t.Helper()
	res, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		c.t.Fatalf("no answer: %v", err)
	}
	return res
}

// SSE, and every other body: what an upstream has sent, its client has, before the upstream sends more.
func TestEveryPieceIsPassedOnAtOnce(t *testing.T) {
	t.Parallel()
	framings := map[string]struct {
		head  string
		piece func(string) string
		end   string
	}{
		"in chunks":       {"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n", func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }, "0\r\n\r\n"},
		"until the close": {"Content-Type: text/event-stream\r\nConnection: close\r\n", func(s string) string { return s }, ""},
		"counted":         {"Content-Length: 27\r\n", func(s string) string { return s }, ""},
	}
	each(t, func(t *testing.T, start starter) {
		for name, f := range framings {
			for protocol, ask := range protocols() {
				t.Run(name+" to "+protocol, func(t *testing.T) {
					got := make(chan struct{}, 1)
					w := start(t, scripted(t, func(_ int, c *raw) {
						c.request()
						c.send("HTTP/1.1 200 OK\r\n" + f.head + "\r\n")
						for i := range 3 {
							select {
							case <-got:
							case <-time.After(patience):
								return
							}
							c.send(f.piece(fmt.Sprintf("data: %d\n\n", i)))
						}
						<-got
						c.send(f.end)
					}), setup{})
					res, _ := ask(t, w, "GET", "/events")
					defer res.Body.Close()
					b := make([]byte, len("data: 0\n\n"))
					for i := range 3 {
						got <- struct{}{}
						if _, err := io.ReadFull(res.Body, b); err != nil || string(b) != fmt.Sprintf("data: %d\n\n", i) {
							t.Fatalf("event %d: %q %v", i, b, err)
						}
					}
					got <- struct{}{}
					if rest, err := io.ReadAll(res.Body); err != nil || len(rest) > 0 {
						t.Fatalf("%q %v", rest, err)
					}
				})
			}
		}
	})
}

// A client that leaves a stream of events takes its upstream along, also while nothing happens there.
func TestAClientThatLeavesAnEventStreamEndsIt(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		for protocol, ask := range protocols() {
			t.Run(protocol, func(t *testing.T) {
				t.Parallel()
				ended := make(chan struct{})
				w := start(t, scripted(t, func(_ int, c *raw) {
					c.request()
					c.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 0\n\n\r\n")
					_, _ = c.r.ReadByte()
					close(ended)
				}), setup{document: strings.Replace(plainDocument, "timeout: 20s", "timeout: 1m", 1)})
				res, leave := ask(t, w, "GET", "/events")
				if _, err := io.ReadFull(res.Body, make([]byte, 9)); err != nil {
					t.Fatal(err)
				}
				leave.Close()
				select {
				case <-ended:
				case <-time.After(5 * time.Second):
					t.Fatal("the upstream goes on")
				}
				if r := <-w.logged; !r.Truncated || r.BytesOut != 9 {
					t.Fatalf("%+v", r)
				}
			})
		}
	})
}

// CASES G37: HEAD, 204 and 304 have no body, over either protocol; lengths are those of the upstream.
func TestAnswersWithoutBodyAreAlikeOverEveryProtocol(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, scripted(t, func(_ int, c *raw) {
			for {
				req, _, alive := c.request()
				if !alive {
					return
				}
				c.send(map[string]string{
					"/length": "HTTP/1.1 200 OK\r\nContent-Length: 1234\r\nETag: x\r\n\r\n",
					"/chunks": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nETag: x\r\n\r\n",
					"/none":   "HTTP/1.1 200 OK\r\nETag: x\r\n\r\n",
					"/204":    "HTTP/1.1 204 No Content\r\nETag: x\r\n\r\n",
					"/304":    "HTTP/1.1 304 Not Modified\r\nContent-Length: 77\r\nETag: x\r\n\r\n",
					"/empty":  "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: x\r\n\r\n",
				}[req.URL.Path])
			}
		}), setup{})
		for protocol, ask := range protocols() {
			for _, c := range []struct{ method, path, length string }{
				{"HEAD", "/length", "1234"}, {"HEAD", "/chunks", ""}, {"HEAD", "/none", ""}, {"HEAD", "/204", ""}, {"HEAD", "/304", "77"}, {"HEAD", "/empty", "0"},
				{"GET", "/204", ""}, {"GET", "/304", "77"}, {"GET", "/empty", "0"},
			} {
				res, _ := ask(t, w, c.method, c.path)
				b, err := io.ReadAll(res.Body)
				if protocol == "HTTP/2" && c.path == "/304" && errors.Is(err, io.ErrUnexpectedEOF) {
					err = nil // this client knows of HEAD only that its length is of no body that comes
				}
				if err != nil || len(b) > 0 || res.Header.Get("Content-Length") != c.length || res.Header.Get("Etag") != "x" {
					t.Errorf("%s %s %s: %d %v %q %v", protocol, c.method, c.path, res.StatusCode, res.Header, b, err)
				}
			}
		}
	})
}

// CASES G39: whoever waits for 100 Continue is answered, whatever its upstream does.
func TestNobodyHangsOverAnExpectation(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		for name, c := range map[string]struct {
			script func(*raw)
			status int
		}{
			"the upstream says 100 too": {func(u *raw) { u.send("HTTP/1.1 100 Continue\r\n\r\n"); u.request(); u.send(ok) }, 200},
			"it refuses without the body": {func(u *raw) {
				u.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
			}, 413},
			"it answers at the end": {func(u *raw) { u.request(); u.send(ok) }, 200},
			"it says nothing":       {func(u *raw) { u.request(); _, _ = u.r.ReadByte() }, 504},
		} {
			t.Run(name, func(t *testing.T) {
				w := start(t, scripted(t, func(_ int, u *raw) { _, _ = u.r.Peek(1); c.script(u) }), setup{document: strings.Replace(plainDocument, "timeout: 20s", "timeout: 1s", 1)})
				conn := w.dial().send("POST / HTTP/1.1\r\nHost: a.example\r\nExpect: 100-continue\r\nContent-Length: 100000\r\n\r\n")
				res := conn.head("POST")
				if res.StatusCode == 100 {
					_, _ = io.WriteString(conn, strings.Repeat("x", 100000))
					res = conn.head("POST")
				}
				if _, err := io.ReadAll(res.Body); err != nil || res.StatusCode != c.status {
					t.Fatalf("%d %v", res.StatusCode, err)
				}
			})
		}
	})
}

// CASES G7: a connection to an upstream whose request was not written whole carries no other, however its answer ended.
func TestAnEarlyAnswerLeavesItsConnectionToNobody(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		var conns, hidden atomic.Int32
		w := start(t, scripted(t, func(n int, u *raw) {
			conns.Store(int32(n))
			for {
				req, err := http.ReadRequest(u.r) // the body is left in the stream
				if err != nil {
					return
				}
				if req.URL.Path == "/hidden" {
					hidden.Add(1)
				}
				u.send(ok)
			}
		}), setup{})
		c := w.dial().send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 20000\r\n\r\n" + get("/hidden"))
		if res, body, err := c.answer("POST"); err != nil || body != "ok" || !res.Close {
			t.Fatalf("%v %q close=%v", err, body, res.Close)
		}
		before := conns.Load()
		if _, body, _ := w.dial().send(get("/next")).answer("GET"); body != "ok" || conns.Load() != before+1 {
			t.Fatalf("%q, %d connections", body, conns.Load())
		}
		for end := time.Now().Add(5 * time.Second); w.server.Snapshot().Upstreams[0].Open != 1; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%+v", w.server.Snapshot().Upstreams[0])
			}
		}
	})
}

// CASES G7: CONNECT is refused over HTTP/2 as well, with its body.
func TestConnectIsRefusedOverHTTP2(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, scripted(t, func(_ int, c *raw) {
			if _, _, alive := c.request(); alive {
				t.Error("the upstream was asked")
			}
		}), setup{})
		pr, pw := io.Pipe()
		defer pw.Close()
		req, _ := http.NewRequest("CONNECT", "http://a.example", pr)
		go func() { _, _ = io.WriteString(pw, get("/hidden")) }()
		res, err := w.h2c(nil).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		problem(t, res, string(b), reason.ConnectRefused)
	})
}

// CASES G17: what is refused as a header doesn't come in as a trailer of HTTP/2.
func TestHTTP2TrailersThatIdentifyAreDropped(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		seen := make(chan http.Header, 1)
		w := start(t, handler(t, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			seen <- r.Trailer
		}), setup{})
		pr, pw := io.Pipe()
		req, _ := http.NewRequest("POST", "http://a.example/", pr)
		req.Trailer = http.Header{"X-Sum": {"42"}, "X-Caller": {"root"}, "X-Forwarded-For": {"6.6.6.6"}, "X_caller": {"root"}, "Authorization": {"Bearer x"}}
		go func() { _, _ = io.WriteString(pw, "hello"); pw.Close() }()
		res, err := w.h2c(nil).Do(req)
		read(t, res, err)
		got := <-seen
		for name := range req.Trailer {
			if v := got.Get(name); v != map[bool]string{true: "42"}[name == "X-Sum"] {
				t.Errorf("the upstream got the trailer %s: %q", name, v)
			}
		}
	})
}

// A client whose upstream stays silent behind a head learns of the end of its time by a broken answer, not by a whole one.
func TestAStreamThatOutlivesItsRouteIsBrokenOff(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		for protocol, ask := range protocols() {
			w := start(t, scripted(t, func(_ int, c *raw) {
				c.request()
				c.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
				_, _ = c.r.ReadByte()
			}), setup{document: strings.Replace(plainDocument, "timeout: 20s", "timeout: 300ms", 1)})
			res, _ := ask(t, w, "GET", "/")
			b, err := io.ReadAll(res.Body)
			if string(b) != "abc" || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: %q %v", protocol, b, err)
			}
		}
	})
}

// A body whose length nobody said goes upstream once, in chunks, also when all of it has come before the first look at it.
func TestHTTP2BodiesWithoutALengthArriveOnceHoweverTheyCome(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%d %v %q %q", len(b), err, r.TransferEncoding, r.Trailer.Get("X-Sum"))
		}), setup{})
		for _, size := range []int{0, 5, 8 << 10, 8<<10 + 1, 15 << 10} {
			for _, trailers := range []bool{false, true} {
				for range 5 { // whether it is there at the first look is chance
					sum := map[bool]string{true: "42"}[trailers]
					want := fmt.Sprintf(`%d <nil> ["chunked"] %q`, size, sum)
					if size <= 8<<10 && !trailers {
						want = "" // may have got its length
					}
					got := w.oneWrite(size, trailers)
					if want != "" && got != want || !strings.HasPrefix(got, fmt.Sprintf("%d <nil>", size)) {
						t.Fatalf("%d bytes, trailers %v: the upstream got %s", size, trailers, got)
					}
				}
			}
		}
	})
}

// oneWrite sends a POST without a length in one write and gives the answer's body.
func (w *world) oneWrite(size int, trailers bool) string {
	c := w.dial()
	var out, block bytes.Buffer
	out.WriteString(http2.ClientPreface)
	f, enc := http2.NewFramer(&out, c), hpack.NewEncoder(&block)
	_ = f.WriteSettings()
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "a.example"}, {":path", "/"}} {
		_ = enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
	_ = f.WriteData(1, !trailers, bytes.Repeat([]byte("x"), size))
	if trailers {
		block.Reset()
		_ = enc.WriteField(hpack.HeaderField{Name: "x-sum", Value: "42"})
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true})
	}
	if _, err := c.Write(out.Bytes()); err != nil {
		w.t.Fatal(err)
	}
	var body []byte
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			w.t.Fatal(err)
		}
		switch d := frame.(type) {
		case *http2.DataFrame:
			if body = append(body, d.Data()...); d.StreamEnded() {
				return string(body)
			}
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			w.t.Fatal(frame)
		}
	}
}
