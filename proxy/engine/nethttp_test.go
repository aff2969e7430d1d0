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

	. "github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/reason"
)

func TestNetHTTPServesEveryProtocol(t *testing.T) {
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
	return &http.Client{Transport: tr, Timeout: 8 * time.Second}
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
	for end := time.Now().Add(8 * time.Second); ; time.Sleep(10 * time.Millisecond) {
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
		}
		c.send(ok)
	}), setup{engine: Options{HardStop: 300 * time.Millisecond, MaxConnections: 2, MaxAge: time.Millisecond}})
	a := w.dial()
	time.Sleep(10 * time.Millisecond)
	if res, _, _ := a.send(get("/")).answer("GET"); !res.Close {
		t.Error("an old connection is not asked to leave")
	}
	a.Close()
	first := w.dial().send(get("/block"))
	_ = w.dial()
	for end := time.Now().Add(8 * time.Second); w.server.Connections.Load() != 2 || w.server.InFlight.Load() != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the connections never come")
		}
	}
	w.dial().closed()
	began := time.Now()
	w.stop()
	_, _ = first.r.ReadByte()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("drained for %v", took)
	}
}
