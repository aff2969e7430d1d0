//lint:file-ignore SA1019 the tests speak HTTP/2 with prior knowledge over connections of their own.

package engine_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
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
	return &http.Client{Transport: tr, Timeout: patience}
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{engine: Options{LeaveOver: 20 * time.Millisecond}})
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
			time.Sleep(25 * time.Millisecond)
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
	t.Parallel()
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

// Where the upstream takes TLS, an HTTP/2 stream is carried out all the same, beside others on its connection.
func TestHTTP2ReachesUpstreamsOverTLS(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		cert, _ := selfSigned(t)
		came, gone := make(chan struct{}), make(chan struct{})
		up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/wait" {
				close(came)
				<-r.Context().Done()
				close(gone)
				return
			}
			_ = http.NewResponseController(w).EnableFullDuplex()
			w.Header().Set("Trailer", "X-Back")
			_, _ = io.Copy(w, r.Body)
			w.Header().Set("X-Back", r.Trailer.Get("X-Sum"))
		}))
		up.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
		up.StartTLS()
		defer up.Close()
		ca := fmt.Sprintf("%q", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}))
		w := start(t, up.Listener.Addr().String(), setup{document: strings.Replace(plainDocument, `["UP"]`, fmt.Sprintf(`["UP"], tls: {ca: %s, server_name: a.example}`, ca), 1)})
		c := w.h2c(nil)
		big := bytes.Repeat([]byte("0123456789"), 100_000)
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				body := big[:len(big)/(1+i*i*i)]
				req, _ := http.NewRequest("POST", "http://a.example/", bytes.NewReader(body))
				if i%2 == 0 {
					req.ContentLength = -1
					req.Trailer = http.Header{"X-Sum": {"42"}}
				}
				res, err := c.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				if got, err := io.ReadAll(res.Body); err != nil || !bytes.Equal(got, body) || i%2 == 0 && res.Trailer.Get("X-Back") != "42" {
					t.Errorf("%d of %d bytes, %v, %v", len(got), len(body), res.Trailer, err)
				}
			})
		}
		all.Wait()
		f := w.frames()
		f.head(1, false, "content-length", "5", "expect", "100-continue")
		if h := answerOf(f, 1); h.PseudoValue("status") != "100" {
			t.Fatal(h.Fields)
		}
		_ = f.WriteData(1, true, []byte("hello"))
		if h := answerOf(f, 1); h.PseudoValue("status") != "200" {
			t.Fatal(h.Fields)
		}
		f.head(5, true, ":path", "/wait")
		<-came
		_ = f.WriteRSTStream(5, http2.ErrCodeCancel)
		<-gone
		f.head(7, true, ":path", "/wait2")
		if h := answerOf(f, 7); h.PseudoValue("status") != "200" {
			t.Fatal(h.Fields)
		}
		w.quiet()
	})
}

// An own answer waits for the client's window as any other does.
func TestHTTP2OwnAnswersKeepToTheWindow(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{silent: true})
		f := w.frames(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		for i, fields := range [][]string{{":path", "/%2f"}, {"content-length", "99999999"}} {
			id := uint32(2*i + 1)
			h := answerOf(f.head(id, i == 0, fields...), id)
			length, _ := strconv.Atoi(h.Fields[len(h.Fields)-1].Value)
			if f.WriteWindowUpdate(id, 10) != nil || length < 100 {
				t.Fatal(h.Fields)
			}
			got := 0
			for ended := false; !ended; {
				d := until(f, func(*http2.DataFrame) bool { return true })
				if got += len(d.Data()); got == 10 {
					_ = f.WriteWindowUpdate(id, 1000)
				}
				ended = d.StreamEnded()
			}
			if got != length {
				t.Fatalf("%d bytes of %d", got, length)
			}
		}
		w.quiet()
	})
}

// Streams that share a window which is too small for all get on side by side. Goroutines do so by chance.
func TestHTTP2StreamsShareTheWindow(t *testing.T) {
	kind := engines()["loop"]
	if kind == nil {
		return // there is none on this system
	}
	w := start(t, kind, handler(t, func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) }),
		setup{silent: true, document: strings.Replace(plainDocument, "20s", "30s", 1)})
	f := w.frames(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	const streams = 8
	for i := range uint32(streams) {
		f.head(2*i+1, true)
	}
	for range streams { // what has not begun can get no share
		until(f, func(*http2.MetaHeadersFrame) bool { return true })
	}
	_ = f.WriteWindowUpdate(0, 1<<16-1)
	got, all := map[uint32]int{}, 0
	for all < streams<<18 { // a quarter of everything
		d := until(f, func(*http2.DataFrame) bool { return true })
		n := len(d.Data())
		got[d.StreamID] += n
		all += n
		_ = f.WriteWindowUpdate(0, uint32(n))
	}
	for i := range uint32(streams) {
		if n := got[2*i+1]; n < 1<<16 {
			t.Errorf("stream %d got %d bytes of %d", 2*i+1, n, all)
		}
	}
}

// quickly is an upstream that answers every request at once, without allocating.
func quickly(t testing.TB) string {
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello")
	return scripted(t, func(_ int, c *raw) {
		b := make([]byte, 4096)
		for {
			if n, err := c.Conn.Read(b); n == 0 || err != nil {
				return
			}
			if _, err := c.Write(answer); err != nil {
				return
			}
		}
	})
}

// Counts every allocation of the process: client, gateway and upstream together make none per request on the
// loops. Goroutines and their waits have a few of their own.
func TestHTTP2RequestAllocatesNothing(t *testing.T) {
	kind := engines()["loop"]
	if kind == nil {
		return // there is none on this system
	}
	cert, roots := selfSigned(t)
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %v", secure), func(t *testing.T) {
			s := setup{silent: true}
			if secure {
				s.tls = &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}
			}
			w := start(t, kind, quickly(t), s)
			if secure {
				w.trust = &tls.Config{RootCAs: roots, ServerName: "a.example", NextProtos: []string{"h2"}}
			}
			c, b := w.dial(), make([]byte, 1<<16)
			c.send(http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00")
			block := "\x82\x86\x84\x01\x09a.example"
			req := append([]byte{0, 0, byte(len(block)), 1, 5, 0, 0, 0, 0}, block...)
			id := uint32(1)
			once := func() {
				binary.BigEndian.PutUint32(req[5:], id)
				if _, err := c.Write(req); err != nil {
					t.Fatal(err)
				}
				for got, ended := 0, false; !ended; {
					n, err := c.Conn.Read(b[got:])
					if got += n; n == 0 || err != nil {
						t.Fatal(err)
					}
					for got >= 9 && got >= 9+int(b[1])<<8+int(b[2]) {
						size := 9 + int(b[1])<<8 + int(b[2])
						ended = ended || binary.BigEndian.Uint32(b[5:]) == id && b[4]&1 != 0
						got = copy(b, b[size:got])
					}
				}
				id += 2
			}
			for range 50 {
				once()
			}
			allowed := float64(allocsAllowed)
			if secure {
				allowed += 2 // crypto/tls makes one for each read, here and in the client
			}
			if n := allocsPerRun(2000, once); n > allowed {
				t.Fatalf("%v allocations per request", n)
			}
		})
	}
}
