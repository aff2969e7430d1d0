//lint:file-ignore SA1019 the tests speak HTTP/2 with prior knowledge over connections of their own.

package engine_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	. "github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/reason"
)

// h2c is a client of HTTP/2 with prior knowledge; dials counts its connections.
func (w *world) h2c(dials *atomic.Int32) *http.Client {
	tr := &http2.Transport{AllowHTTP: true, DialTLSContext: func(ctx context.Context, network, _ string, _ *tls.Config) (net.Conn, error) {
		if dials != nil {
			dials.Add(1)
		}
		return (&net.Dialer{}).DialContext(ctx, network, w.addr)
	}}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 8 * time.Second}
}

func read(t testing.TB, res *http.Response, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestHTTP2GoesThroughTheSamePipeline(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{})
		c := w.h2c(nil)
		req, _ := http.NewRequest("POST", "http://a.example/x?y", strings.NewReader("hello"))
		req.Header.Set("X-Forwarded-For", "1.1.1.1")
		req.Header.Set("X_Caller", "root")
		res, err := c.Do(req)
		if body := read(t, res, err); body != "hello" || res.ProtoMajor != 2 || res.Header.Get("X-Seen") != "POST a.example /x?y" ||
			res.Header.Get("Seen-X-Forwarded-For") != "127.0.0.1" || res.Header.Get("X-Request-Id") != res.Header.Get("Seen-X-Request-Id") {
			t.Fatalf("%q %v", body, res.Header)
		}
		res, err = c.Get("http://b.example/")
		problem(t, res, read(t, res, err), reason.NoRoute)
		if r := <-w.logged; r.Protocol != "HTTP/2.0" || r.BytesIn != 5 {
			t.Fatalf("%+v", r)
		}
	})
}

func TestHTTP2StreamsBothWaysWithTrailers(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex()
			b := make([]byte, 100)
			for {
				n, err := r.Body.Read(b)
				_, _ = w.Write(bytes.ToUpper(b[:n]))
				w.(http.Flusher).Flush()
				if err != nil {
					break
				}
			}
			w.Header().Set(http.TrailerPrefix+"X-Back", r.Trailer.Get("X-Sum"))
		}), setup{})
		pr, pw := io.Pipe()
		req, _ := http.NewRequest("POST", "http://a.example/", pr)
		req.Trailer = http.Header{"X-Sum": nil}
		go func() { _, _ = pw.Write([]byte("a")) }()
		res, err := w.h2c(nil).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		one := make([]byte, 1)
		for _, s := range []string{"a", "b", "c"} { // each answer comes before the next piece is sent
			if s != "a" {
				_, _ = pw.Write([]byte(s))
			}
			if _, err := io.ReadFull(res.Body, one); err != nil || string(one) != strings.ToUpper(s) {
				t.Fatalf("%q %v", one, err)
			}
		}
		req.Trailer.Set("X-Sum", "42")
		pw.Close()
		if _, err := io.ReadAll(res.Body); err != nil || res.Trailer.Get("X-Back") != "42" {
			t.Fatalf("%v %v", err, res.Trailer)
		}
	})
}

func TestHTTP2StreamIsResetWhenTheUpstreamDies(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		w := start(t, scripted(t, func(_ int, c *raw) {
			c.request()
			c.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
		}), setup{})
		res, err := w.h2c(nil).Get("http://a.example/")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if b, err := io.ReadAll(res.Body); err == nil {
			t.Fatalf("%q was taken for whole", b)
		}
	})
}

func TestReconnectMovesHTTP2ClientsWithoutAFailure(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{engine: Options{LeaveOver: time.Millisecond}})
		var dials atomic.Int32
		c := w.h2c(&dials)
		for i := range 30 {
			if i == 10 {
				w.server.Reconnect(true)
			}
			if i == 20 {
				w.server.Reconnect(false)
			}
			res, err := c.Get("http://a.example/")
			read(t, res, err)
			time.Sleep(5 * time.Millisecond)
		}
		if n := dials.Load(); n < 5 {
			t.Fatalf("only %d connections although clients were asked to leave", n)
		}
		before := dials.Load()
		for range 5 {
			res, err := c.Get("http://a.example/")
			read(t, res, err)
		}
		if n := dials.Load(); n > before+1 {
			t.Fatalf("%d new connections although clients may stay", n-before)
		}
	})
}

// What HTTP/1 is refused for, HTTP/2 is refused for.
func TestHTTP2LengthsAndExpectationsAreAsStrictAsHTTP1s(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{})
		for name, c := range map[string]struct {
			fields []string
			body   string
			why    reason.Reason
		}{
			"two lengths":               {[]string{"content-length", "3", "content-length", "4"}, "abc", reason.BadFraming},
			"two equal lengths":         {[]string{"content-length", "3", "content-length", "3"}, "abc", reason.BadFraming},
			"a length without a body":   {[]string{"content-length", "3"}, "", reason.BadFraming},
			"an unknown expectation":    {[]string{"expect", "tea"}, "abc", reason.BadRequest},
			"the right length":          {[]string{"content-length", "3"}, "abc", reason.None},
			"length 0 without a body":   {[]string{"content-length", "0"}, "", reason.None},
			"the expectation of a body": {[]string{"content-length", "3", "expect", "100-continue"}, "abc", reason.None},
		} {
			t.Run(name, func(t *testing.T) {
				status, why := rawStream(t, w.addr, c.fields, c.body)
				if want := cmp.Or(c.why.Status(), 200); status != want || why != c.why.String() {
					t.Fatalf("%d %q, want %d %q", status, why, want, c.why)
				}
			})
		}
	})
}

// rawStream sends one POST frame by frame and gives the status and the reason of its answer.
func rawStream(t *testing.T, addr string, fields []string, body string) (status int, why string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = io.WriteString(c, http2.ClientPreface)
	f := http2.NewFramer(c, c)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_ = f.WriteSettings()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	fields = append([]string{":method", "POST", ":scheme", "http", ":authority", "a.example", ":path", "/"}, fields...)
	for i := 0; i < len(fields); i += 2 {
		_ = enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: body == ""})
	if body != "" {
		_ = f.WriteData(1, true, []byte(body))
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if h, ok := frame.(*http2.MetaHeadersFrame); ok {
			status, _ = strconv.Atoi(h.PseudoValue("status"))
			for _, field := range h.Fields {
				if field.Name == "x-cellgate-reason" {
					why = field.Value
				}
			}
			if status >= 200 {
				return status, why
			}
		}
	}
}
