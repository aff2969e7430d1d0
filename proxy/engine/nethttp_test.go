package engine_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	. "github.com/cellgate/cellgate/proxy/engine"
	codec "github.com/cellgate/cellgate/proxy/http2"
	"github.com/cellgate/cellgate/reason"
)

func TestNetHTTPServesEveryProtocol(t *testing.T) {
	t.Parallel()
	w := start(t, standard, handler(t, echo), setup{h3: true})
	for proto, c := range map[string]*http.Client{"HTTP/1.1": w.tlsClient("http/1.1"), "HTTP/2.0": w.tlsClient("h2"), "HTTP/3.0": w.h3Client(nil)} {
		req, _ := http.NewRequest("POST", "https://a.example/x?y", strings.NewReader("hello"))
		res, err := c.Do(req)
		if body := read(t, res, err); body != "hello" || res.Proto != proto || res.Header.Get("X-Seen") != "POST a.example /x?y" ||
			(res.Header.Get("Alt-Svc") != "") != (proto != "HTTP/3.0") {
			t.Errorf("%s: %q %s %v", proto, body, res.Proto, res.Header)
		}
		if r := <-w.logged; r.Protocol != proto || !r.TLS || r.BytesIn != 5 {
			t.Errorf("%s: %+v", proto, r)
		}
		res, err = c.Get("https://b.example/")
		problem(t, res, read(t, res, err), reason.NoRoute)
		<-w.logged
		c.CloseIdleConnections()
	}
	plain := start(t, standard, handler(t, echo), setup{})
	res, err := plain.h2c(nil).Get("http://a.example/")
	if read(t, res, err); res.ProtoMajor != 2 {
		t.Errorf("with prior knowledge: %s", res.Proto)
	}
}

// tlsClient is a client of one protocol over TLS.
func (w *world) tlsClient(proto string) *http.Client {
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: w.roots, ServerName: "a.example", NextProtos: []string{proto}}, ForceAttemptHTTP2: proto == "h2",
		DialContext: func(ctx context.Context, n, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, n, w.addr)
		}}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

func TestNetHTTPAnswersEarlyAndShowsTruncation(t *testing.T) {
	w := start(t, standard, scripted(t, func(_ int, c *raw) {
		req, err := http.ReadRequest(c.r)
		switch {
		case err != nil:
		case req.URL.Path == "/early":
			c.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
		default:
			c.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
		}
	}), setup{})
	c := w.dial().send("POST /early HTTP/1.1\r\nHost: a.example\r\nContent-Length: 9000000\r\n\r\nabc")
	if res, body, err := c.answer("POST"); res.StatusCode != 403 || body != "no" || err != nil {
		t.Errorf("%d %q %v", res.StatusCode, body, err)
	}
	if res, body, err := w.dial().send(get("/dies")).answer("GET"); err == nil {
		t.Errorf("%d %q was taken for whole", res.StatusCode, body)
	}
}

func TestNetHTTPDrains(t *testing.T) {
	t.Parallel()
	inside, release := make(chan struct{}), make(chan struct{})
	w := start(t, standard, handler(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(inside)
			<-release
		}
		_, _ = io.WriteString(rw, "done")
	}), setup{engine: Options{HardStop: 8 * time.Second}})
	busy := w.dial().send(get("/slow"))
	<-inside
	w.stop()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			break
		}
		c.Close()
		if time.Now().After(end) {
			t.Fatal("the port stays open")
		}
	}
	close(release)
	if res, body, err := busy.answer("GET"); err != nil || body != "done" || !res.Close {
		t.Fatalf("%v %q close=%v", err, body, res.Close)
	}
}

func TestNetHTTPEndsADrainHardAndConnectionsByAgeAndNumber(t *testing.T) {
	block := make(chan struct{})
	t.Cleanup(func() { close(block) })
	w := start(t, standard, scripted(t, func(_ int, c *raw) {
		if req, _, ok := c.request(); ok && req.URL.Path == "/block" {
			<-block
			return
		}
		c.send(ok)
	}), setup{engine: Options{HardStop: 300 * time.Millisecond, MaxConnections: 2, MaxAge: time.Millisecond}})
	a := w.dial()
	time.Sleep(10 * time.Millisecond)
	if res, _, _ := a.send(get("/")).answer("GET"); !res.Close {
		t.Error("an old connection is not asked to leave")
	}
	a.Close()
	for end := time.Now().Add(patience); w.server.Connections.Load() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the connection never goes")
		}
	}
	first := w.dial().send(get("/block"))
	_ = w.dial()
	for end := time.Now().Add(patience); w.server.Connections.Load() != 2 || w.server.InFlight.Load() != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the connections never come")
		}
	}
	w.dial().closed()
	began := time.Now()
	w.stop()
	_, _ = first.r.ReadByte()
	if took := time.Since(began); took > soon {
		t.Errorf("drained for %v", took)
	}
}

// G31: whether a length stood beside the chunks isn't known here, so what comes behind them is no request.
func TestNetHTTPClosesBehindChunks(t *testing.T) {
	w := start(t, standard, handler(t, echo), setup{})
	c := w.dial().send("POST /x HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + get("/smuggled"))
	if res, _, err := c.answer("POST"); err != nil || !res.Close {
		t.Fatal(res, err)
	}
	c.closed()
}

// net/http keeps no account of frames that carry nothing: what a connection may send beside its exchanges is bounded here.
func TestNetHTTPEndsFloods(t *testing.T) {
	t.Parallel()
	w := start(t, standard, handler(t, echo), setup{silent: true})
	for name, one := range map[string]func(f *frames, n uint32) error{
		"rapid resets (G43)": func(f *frames, n uint32) error {
			f.head(2*n+1, false)
			return f.WriteRSTStream(2*n+1, http2.ErrCodeCancel)
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
		"what nobody knows": func(f *frames, n uint32) error { return f.WriteRawFrame(0x77, 0, 0, make([]byte, 1000)) },
	} {
		t.Run(name, func(t *testing.T) {
			before := w.server.Faults[codec.EnhanceYourCalm].Load()
			f := w.frames()
			f.t = t
			_ = f.SetDeadline(time.Now().Add(time.Minute))
			ended := make(chan struct{})
			go func() { defer close(ended); _, _ = io.Copy(io.Discard, f.Conn) }() // it takes what it is sent
			n := uint32(0)
			for ; n < 1_000_000 && one(f, n) == nil; n++ {
				select {
				case <-ended:
					n = 2_000_000
				default:
				}
			}
			if n == 1_000_000 {
				t.Fatal("the connection goes on")
			}
			f.Close()
			<-ended
			w.quiet()
			if n := w.server.Faults[codec.EnhanceYourCalm].Load() - before; n != 1 && (n > 0 || name != "rapid resets (G43)") { // which net/http may end itself
				t.Errorf("%d floods were counted", n)
			}
			if res, _, _ := w.dial().send(get("/")).answer("GET"); res.StatusCode != 200 {
				t.Fatal(res.StatusCode)
			}
		})
	}
}

// Whoever only uses a connection of net/http much is no flood: bodies both ways, read or not, and WebSockets.
func TestNetHTTPTakesMuchForNoFlood(t *testing.T) {
	t.Parallel()
	w := start(t, standard, handler(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/unread" {
			w.WriteHeader(403)
			return
		}
		_, _ = io.Copy(w, r.Body)
	}), setup{silent: true, document: patientDocument})
	for proto, c := range map[string]*http.Client{"HTTP/2": w.h2c(nil), "HTTP/1.1": {Transport: &http.Transport{DialContext: func(ctx context.Context, n, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, n, w.addr)
	}}}} {
		c.Timeout = time.Minute
		for path, size := range map[string]int{"/": 8 << 20, "/unread": 60 << 10} {
			for range 40 >> (size >> 22) {
				res, err := c.Post("http://a.example"+path, "text/plain", strings.NewReader(strings.Repeat("x", size)))
				if body := read(t, res, err); path == "/" && len(body) != size {
					t.Fatalf("%s %s: %d bytes", proto, path, len(body))
				}
			}
		}
		c.CloseIdleConnections()
	}
}
