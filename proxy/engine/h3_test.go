package engine_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/qpack"
	"github.com/quic-go/quic-go"
	qhttp3 "github.com/quic-go/quic-go/http3"

	. "github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/http3"
	"github.com/cellgate/cellgate/reason"
)

// h3Client is a client of quic-go's HTTP/3; dials counts its connections.
func (w *world) h3Client(dials *atomic.Int32) *http.Client {
	pc, err := net.ListenPacket("udp", "127.46.0.2:0")
	if err != nil {
		w.t.Fatal(err)
	}
	via := &quic.Transport{Conn: pc}
	tr := &qhttp3.Transport{TLSClientConfig: &tls.Config{RootCAs: w.roots, ServerName: "a.example"},
		Dial: func(ctx context.Context, _ string, cfg *tls.Config, qc *quic.Config) (*quic.Conn, error) {
			if dials != nil {
				dials.Add(1)
			}
			return via.Dial(ctx, w.udp, cfg, qc)
		}}
	w.t.Cleanup(func() { tr.Close(); via.Close(); pc.Close() })
	return &http.Client{Transport: tr, Timeout: patience}
}

func TestHTTP3GoesThroughTheSamePipeline(t *testing.T) {
	w := start(t, goroutines, handler(t, echo), setup{h3: true})
	c := w.h3Client(nil)
	req, _ := http.NewRequest("POST", "https://a.example/x?y", strings.NewReader("hello"))
	req.Header.Set("X-Forwarded-For", "1.1.1.1")
	req.Header.Set("X_Caller", "root")
	res, err := c.Do(req)
	if body := read(t, res, err); body != "hello" || res.ProtoMajor != 3 || res.Header.Get("X-Seen") != "POST a.example /x?y" ||
		res.Header.Get("Seen-X-Forwarded-For") != "127.46.0.2" || res.Header.Get("Seen-X-Forwarded-Proto") != "https" ||
		res.Header.Get("Seen-X-Caller") != "" || res.Header.Get("X-Request-Id") != res.Header.Get("Seen-X-Request-Id") || res.Header.Get("Alt-Svc") != "" {
		t.Fatalf("%q %v", body, res.Header)
	}
	res, err = c.Get("https://b.example/")
	problem(t, res, read(t, res, err), reason.NoRoute)
	if r := <-w.logged; r.Protocol != "HTTP/3.0" || r.BytesIn != 5 || !r.TLS {
		t.Fatalf("%+v", r)
	}
}

func TestHTTP3StreamsBothWaysWithTrailers(t *testing.T) {
	w := start(t, goroutines, handler(t, func(w http.ResponseWriter, r *http.Request) {
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
	}), setup{h3: true})
	pr, pw := io.Pipe()
	req, _ := http.NewRequest("POST", "https://a.example/", pr)
	req.Trailer = http.Header{"X-Sum": nil}
	go func() { _, _ = pw.Write([]byte("a")) }()
	res, err := w.h3Client(nil).Do(req)
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
}

func TestHTTP3AnswersWithoutBodyAndTruncatedOnes(t *testing.T) {
	w := start(t, goroutines, scripted(t, func(_ int, c *raw) {
		req, _, ok := c.request()
		if !ok {
			return
		}
		switch req.URL.Path {
		case "/204":
			c.send("HTTP/1.1 204 No Content\r\n\r\n")
		case "/304":
			c.send("HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\nEtag: \"x\"\r\n\r\n")
		case "/head":
			c.send("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n")
		case "/dies":
			c.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
		case "/trailers":
			c.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nAlt-Svc: h3=\":1\"\r\n\r\n0\r\nGrpc-Status: 0\r\n\r\n")
		}
	}), setup{h3: true})
	c := w.h3Client(nil)
	for path, want := range map[string]struct {
		status int
		length int64
	}{"/204": {204, 0}, "/304": {304, 7}, "/head": {200, 7}} {
		method := "GET"
		if path == "/head" {
			method = "HEAD"
		}
		req, _ := http.NewRequest(method, "https://a.example"+path, nil)
		res, err := c.Do(req)
		if body := read(t, res, err); body != "" || res.StatusCode != want.status || want.length > 0 && res.ContentLength != want.length {
			t.Errorf("%s: %d %q %d", path, res.StatusCode, body, res.ContentLength)
		}
	}
	res, err := c.Get("https://a.example/trailers")
	if body := read(t, res, err); body != "" || res.Trailer.Get("Grpc-Status") != "0" || res.Header.Get("Alt-Svc") != "" {
		t.Errorf("%q %v %v", body, res.Trailer, res.Header)
	}
	if res, err = c.Get("https://a.example/dies"); err == nil { // the reset may overtake the head
		defer res.Body.Close()
		if b, err := io.ReadAll(res.Body); err == nil {
			t.Fatalf("%q was taken for whole", b)
		}
	}
}

func TestHTTP3IsAnnouncedOverTLS(t *testing.T) {
	w := start(t, goroutines, handler(t, echo), setup{h3: true})
	for _, proto := range []string{"h2", "http/1.1"} {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: w.roots, ServerName: "a.example", NextProtos: []string{proto}},
			ForceAttemptHTTP2: proto == "h2", DialContext: func(ctx context.Context, n, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, n, w.addr)
			}}
		for _, url := range []string{"https://a.example/", "https://b.example/"} {
			res, err := (&http.Client{Transport: tr}).Get(url)
			read(t, res, err)
			if got := res.Header.Values("Alt-Svc"); len(got) != 1 || got[0] != `h3=":8443"; ma=3600` {
				t.Errorf("%s %s: %q", proto, url, got)
			}
		}
		tr.CloseIdleConnections()
	}
}

// h3Raw is a connection on which a test says what it wants.
type h3Raw struct {
	t    testing.TB
	qc   *quic.Conn
	ctrl *quic.SendStream
}

const control = "\x00\x04\x00" // a control stream with empty settings

func (w *world) h3Dial(first string) *h3Raw {
	w.t.Helper()
	pc, err := net.ListenPacket("udp", "127.46.0.3:0")
	if err != nil {
		w.t.Fatal(err)
	}
	via := &quic.Transport{Conn: pc}
	w.t.Cleanup(func() { via.Close(); pc.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	qc, err := via.Dial(ctx, w.udp, &tls.Config{RootCAs: w.roots, ServerName: "a.example", NextProtos: []string{"h3"}},
		&quic.Config{InitialStreamReceiveWindow: 16 << 10, MaxStreamReceiveWindow: 16 << 10, InitialConnectionReceiveWindow: 64 << 10, MaxConnectionReceiveWindow: 64 << 10})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = qc.CloseWithError(quic.ApplicationErrorCode(http3.NoError), "") })
	r := &h3Raw{t: w.t, qc: qc}
	r.ctrl = r.uni(first)
	return r
}

// uni opens a stream to the server that begins so.
func (r *h3Raw) uni(first string) *quic.SendStream {
	r.t.Helper()
	s, err := r.qc.OpenUniStreamSync(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := io.WriteString(s, first); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// request sends bytes on a request stream, and its end if fin.
func (r *h3Raw) request(b string, fin bool) *quic.Stream {
	r.t.Helper()
	s, err := r.qc.OpenStreamSync(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	_ = s.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(s, b) // the server may want no more of it
	if fin {
		s.Close()
	}
	return s
}

// fieldSection is a HEADERS frame of names and values.
func fieldSection(fields ...string) string {
	var block bytes.Buffer
	enc := qpack.NewEncoder(&block)
	for i := 0; i < len(fields); i += 2 {
		_ = enc.WriteField(qpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return frame3(http3.FrameHeaders, block.String())
}

func frame3(typ uint64, payload string) string {
	return string(http3.AppendFrameHead(nil, typ, uint64(len(payload)))) + payload
}

func pseudo(method string, more ...string) []string {
	return append([]string{":method", method, ":scheme", "https", ":authority", "a.example", ":path", "/"}, more...)
}

// answer3 reads the final answer of a stream: its status, the reason if it is the gateway's, and its body.
func answer3(s io.Reader) (status int, why, body string, err error) {
	b, err := io.ReadAll(s)
	for len(b) > 0 {
		typ, length, n := http3.FrameHead(b)
		if n == 0 || uint64(len(b)-n) < length {
			return status, why, body, io.ErrUnexpectedEOF
		}
		payload := b[n : n+int(length)]
		b = b[n+int(length):]
		if typ == http3.FrameData {
			body += string(payload)
		}
		if typ != http3.FrameHeaders {
			continue
		}
		next := qpack.NewDecoder().Decode(payload)
		for f, err := next(); err == nil; f, err = next() {
			switch f.Name {
			case ":status":
				status, _ = strconv.Atoi(f.Value)
			case "x-cellgate-reason":
				why = f.Value
			}
		}
	}
	return status, why, body, err
}

// What HTTP/1 is refused for, HTTP/3 is refused for, with the same reason.
func TestHTTP3HeadsAreAsStrictAsHTTP1s(t *testing.T) {
	w := start(t, goroutines, handler(t, echo), setup{h3: true})
	r := w.h3Dial(control)
	long := strings.Repeat("x", 9000)
	var many []string
	for i := range 101 {
		many = append(many, fmt.Sprint("x-", i), "1")
	}
	for name, c := range map[string]struct {
		fields []string
		body   string
		why    reason.Reason
	}{
		"good":                              {pseudo("GET"), "", reason.None},
		"a body":                            {pseudo("POST"), "abc", reason.None},
		"the right length":                  {pseudo("POST", "content-length", "3"), "abc", reason.None},
		"length 0 without a body":           {pseudo("POST", "content-length", "0"), "", reason.None},
		"te trailers":                       {pseudo("GET", "te", "trailers"), "", reason.None},
		"cookies in pieces":                 {pseudo("GET", "cookie", "a=1", "cookie", "b=2"), "", reason.None},
		"host of the same name":             {pseudo("GET", "host", "a.example"), "", reason.None},
		"host alone":                        {[]string{":method", "GET", ":scheme", "https", ":path", "/", "host", "a.example"}, "", reason.None},
		"an expectation":                    {pseudo("POST", "content-length", "3", "expect", "100-continue"), "abc", reason.None},
		"two lengths":                       {pseudo("POST", "content-length", "3", "content-length", "4"), "abc", reason.BadFraming},
		"two equal lengths":                 {pseudo("POST", "content-length", "3", "content-length", "3"), "abc", reason.BadFraming},
		"an empty length":                   {pseudo("POST", "content-length", ""), "abc", reason.BadFraming},
		"a length with a sign":              {pseudo("POST", "content-length", "+3"), "abc", reason.BadFraming},
		"a list of lengths":                 {pseudo("POST", "content-length", "3, 3"), "abc", reason.BadFraming},
		"a length without a body":           {pseudo("POST", "content-length", "3"), "", reason.BadFraming},
		"a body that is too short":          {pseudo("POST", "content-length", "4"), "abc", reason.BadFraming},
		"a body that is too long":           {pseudo("POST", "content-length", "2"), "abc", reason.BadFraming},
		"a long body that is too short":     {pseudo("POST", "content-length", "20000"), strings.Repeat("x", 19000), reason.BadFraming},
		"a body where the length is 0":      {pseudo("POST", "content-length", "0"), "abc", reason.BadFraming},
		"an unknown expectation":            {pseudo("POST", "expect", "tea"), "abc", reason.BadRequest},
		"connection":                        {pseudo("GET", "connection", "close"), "", reason.BadRequest},
		"transfer-encoding":                 {pseudo("POST", "transfer-encoding", "chunked"), "abc", reason.BadRequest},
		"upgrade":                           {pseudo("GET", "upgrade", "websocket"), "", reason.BadRequest},
		"keep-alive":                        {pseudo("GET", "keep-alive", "1"), "", reason.BadRequest},
		"proxy-connection":                  {pseudo("GET", "proxy-connection", "close"), "", reason.BadRequest},
		"te of another kind":                {pseudo("GET", "te", "gzip"), "", reason.BadRequest},
		"upper case":                        {pseudo("GET", "X-Upper", "1"), "", reason.BadRequest},
		"a name with a blank":               {pseudo("GET", "x y", "1"), "", reason.BadRequest},
		"an empty name":                     {pseudo("GET", "", "1"), "", reason.BadRequest},
		"a line break in a value":           {pseudo("GET", "x", "a\r\nhost: b.example"), "", reason.BadRequest},
		"a NUL in a value":                  {pseudo("GET", "x", "a\x00b"), "", reason.BadRequest},
		"a blank ahead of a value":          {pseudo("GET", "x", " a"), "", reason.BadRequest},
		"no method":                         {[]string{":scheme", "https", ":authority", "a.example", ":path", "/"}, "", reason.BadRequest},
		"no scheme":                         {[]string{":method", "GET", ":authority", "a.example", ":path", "/"}, "", reason.BadRequest},
		"no path":                           {[]string{":method", "GET", ":scheme", "https", ":authority", "a.example"}, "", reason.BadRequest},
		"no authority":                      {[]string{":method", "GET", ":scheme", "https", ":path", "/"}, "", reason.BadRequest},
		"an empty path":                     {[]string{":method", "GET", ":scheme", "https", ":authority", "a.example", ":path", ""}, "", reason.BadRequest},
		"a path that is none":               {[]string{":method", "GET", ":scheme", "https", ":authority", "a.example", ":path", "x"}, "", reason.BadRequest},
		"a path with a blank":               {[]string{":method", "GET", ":scheme", "https", ":authority", "a.example", ":path", "/ HTTP/1.1"}, "", reason.BadRequest},
		"a scheme of another kind":          {[]string{":method", "GET", ":scheme", "ftp", ":authority", "a.example", ":path", "/"}, "", reason.BadRequest},
		"a user in the authority":           {[]string{":method", "GET", ":scheme", "https", ":authority", "u@a.example", ":path", "/"}, "", reason.BadRequest},
		"two paths":                         {pseudo("GET", ":path", "/2"), "", reason.BadRequest},
		"a pseudo field behind others":      {[]string{":method", "GET", ":scheme", "https", ":authority", "a.example", "x", "1", ":path", "/"}, "", reason.BadRequest},
		"a status":                          {pseudo("GET", ":status", "200"), "", reason.BadRequest},
		"a protocol":                        {pseudo("GET", ":protocol", "websocket"), "", reason.BadRequest},
		"an unknown pseudo field":           {pseudo("GET", ":x", "1"), "", reason.BadRequest},
		"host of another name":              {pseudo("GET", "host", "b.example"), "", reason.BadRequest},
		"two hosts":                         {pseudo("GET", "host", "a.example", "host", "a.example"), "", reason.BadRequest},
		"a method with a blank":             {pseudo("GET /x"), "", reason.BadRequest},
		"a long path":                       {[]string{":method", "GET", ":scheme", "https", ":authority", "a.example", ":path", "/" + long}, "", reason.URLTooLong},
		"too many fields":                   {pseudo("GET", many...), "", reason.TooManyHeaders},
		"fields that are too long together": {pseudo("GET", "a", strings.Repeat("~", 33<<10), "b", strings.Repeat("~", 33<<10)), "", reason.HeaderTooLarge},
		"CONNECT":                           {[]string{":method", "CONNECT", ":authority", "a.example:443"}, "", reason.ConnectRefused},
		"CONNECT with a path":               {pseudo("CONNECT"), "", reason.BadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			b := fieldSection(c.fields...)
			if c.body != "" {
				b += frame3(http3.FrameData, c.body)
			}
			status, why, _, err := answer3(r.request(b, true))
			want := c.why.Status()
			if c.why == reason.None {
				want = 200
			}
			if status != want || why != strings.TrimPrefix(c.why.String(), reason.None.String()) || err != nil {
				t.Fatalf("%d %q %v, want %d %q", status, why, err, want, c.why)
			}
		})
	}
}

// What breaks the rules of frames and streams ends the connection, with the code that says why.
func TestHTTP3ConnectionsEndOnFaults(t *testing.T) {
	w := start(t, goroutines, handler(t, echo), setup{h3: true, silent: true})
	good := fieldSection(pseudo("POST")...)
	req := func(b string) func(*h3Raw) { return func(r *h3Raw) { r.request(b, true) } }
	uni := func(b string) func(*h3Raw) { return func(r *h3Raw) { r.uni(b) } }
	for name, c := range map[string]struct {
		first string
		do    func(*h3Raw)
		code  http3.Code
	}{
		"data ahead of the head":       {control, req(frame3(http3.FrameData, "x")), http3.FrameUnexpected},
		"settings on a request":        {control, req(good + frame3(4, "")), http3.FrameUnexpected},
		"a frame of HTTP/2":            {control, req(good + frame3(6, "")), http3.FrameUnexpected},
		"a promise by a client":        {control, req(good + frame3(5, "x")), http3.FrameUnexpected},
		"data behind trailers":         {control, req(good + fieldSection("x", "1") + frame3(http3.FrameData, "x")), http3.FrameUnexpected},
		"a frame that breaks off":      {control, req(good + "\x00\x05abc"), http3.FrameError},
		"a frame head that breaks off": {control, req(good + "\x00"), http3.FrameError},
		"a head that breaks off":       {control, req("\x01\x20abc"), http3.FrameError},
		"a table that is not there":    {control, req(frame3(http3.FrameHeaders, "\x02\x00\x80")), http3.DecompressionFailed},
		"an index that is not there":   {control, req(frame3(http3.FrameHeaders, "\x00\x00\xff\x7f")), http3.DecompressionFailed},
		"an empty section":             {control, req(frame3(http3.FrameHeaders, "")), http3.DecompressionFailed},
		"no settings":                  {"\x00" + frame3(7, "\x00"), nil, http3.MissingSettings},
		"settings twice":               {control + frame3(4, ""), nil, http3.FrameUnexpected},
		"a setting twice":              {"\x00" + frame3(4, "\x06\x10\x06\x11"), nil, http3.SettingsError},
		"a setting of HTTP/2":          {"\x00" + frame3(4, "\x04\x01"), nil, http3.SettingsError},
		"a setting that breaks off":    {"\x00" + frame3(4, "\x06"), nil, http3.FrameError},
		"settings that are too long":   {"\x00" + frame3(4, strings.Repeat("x", 2000)), nil, http3.ExcessiveLoad},
		"data on the control stream":   {control + frame3(0, "x"), nil, http3.FrameUnexpected},
		"a push id that goes back":     {control + frame3(13, "\x05") + frame3(13, "\x04"), nil, http3.IDError},
		"a goaway that goes up":        {control + frame3(7, "\x04") + frame3(7, "\x08"), nil, http3.IDError},
		"a push that was not promised": {control + frame3(3, "\x00"), nil, http3.IDError},
		"an id with something behind":  {control + frame3(7, "\x04\x04"), nil, http3.FrameError},
		"two control streams":          {control, uni(control), http3.StreamCreationError},
		"a push stream of a client":    {control, uni("\x01\x00"), http3.StreamCreationError},
		"an entry for the table":       {control, uni("\x02\xc0\x01a"), http3.EncoderStreamError},
		"an acknowledgment of nothing": {control, uni("\x03\x81"), http3.DecoderStreamError},
		"a control stream that ends":   {control, func(r *h3Raw) { r.ctrl.Close() }, http3.ClosedCriticalStream},
		"a control stream that is reset": {control, func(r *h3Raw) {
			_, _, _, _ = answer3(r.request(good, true)) // the server has seen the stream by now
			r.ctrl.CancelWrite(1)
		}, http3.ClosedCriticalStream},
		"unknown frames without end":       {control, req(good + strings.Repeat(frame3(0x21, strings.Repeat("x", 1000)), 100)), http3.ExcessiveLoad},
		"unknown empty frames without end": {control, req(good + strings.Repeat(frame3(0x21, ""), 6000)), http3.ExcessiveLoad},
		"empty data without end":           {control, req(good + strings.Repeat(frame3(http3.FrameData, ""), 6000)), http3.ExcessiveLoad},
		"empty frames ahead of the head":   {control, req(strings.Repeat(frame3(0x21, ""), 6000) + good), http3.ExcessiveLoad},
		"streams without requests": {control, func(r *h3Raw) {
			for r.qc.Context().Err() == nil {
				s, err := r.qc.OpenStreamSync(r.qc.Context())
				if err != nil {
					return
				}
				_, _ = s.Write([]byte{1})
				s.CancelWrite(0)
				s.CancelRead(0)
			}
		}, http3.ExcessiveLoad},
		"requests that are given up": {control, func(r *h3Raw) { // rapid resets (G43)
			for r.qc.Context().Err() == nil {
				s, err := r.qc.OpenStreamSync(r.qc.Context())
				if err != nil {
					return
				}
				_, _ = io.WriteString(s, good)
				s.CancelWrite(quic.StreamErrorCode(http3.RequestCancelled))
				s.CancelRead(quic.StreamErrorCode(http3.RequestCancelled))
			}
		}, http3.ExcessiveLoad},
		"requests given up between good ones": {control, func(r *h3Raw) { // a past of good ones is worth little
			for range 200 {
				_, _, _, _ = answer3(r.request(good, true))
			}
			for range 5000 {
				s, err := r.qc.OpenStreamSync(r.qc.Context())
				if err != nil {
					return
				}
				_, _ = io.WriteString(s, good)
				s.CancelRead(quic.StreamErrorCode(http3.RequestCancelled))
				s.CancelWrite(quic.StreamErrorCode(http3.RequestCancelled))
			}
		}, http3.ExcessiveLoad},
		"control frames without end": {control + strings.Repeat(frame3(0x21, strings.Repeat("x", 1000)), 100), nil, http3.ExcessiveLoad},
	} {
		t.Run(name, func(t *testing.T) {
			before := w.server.Faults3[c.code.Place()].Load()
			r := w.h3Dial(control[:0])
			_, _ = io.WriteString(r.ctrl, c.first)
			if c.do != nil {
				c.do(r)
			}
			select {
			case <-r.qc.Context().Done():
			case <-time.After(patience):
				t.Fatal("the connection goes on")
			}
			var app *quic.ApplicationError
			if err := context.Cause(r.qc.Context()); !errors.As(err, &app) || app.ErrorCode != quic.ApplicationErrorCode(c.code) {
				t.Fatalf("%v, want %v", err, c.code)
			}
			if n := w.server.Faults3[c.code.Place()].Load() - before; n != 1 {
				t.Errorf("%d faults were counted", n)
			}
		})
	}
	all := w.server.Now().Faults3
	for range 20 { // who leaves, leaves for no fault
		r := w.h3Dial(control)
		_, _, _, _ = answer3(r.request(good, true))
		_ = r.qc.CloseWithError(quic.ApplicationErrorCode(http3.NoError), "")
	}
	for end := time.Now().Add(patience); w.server.Connections.Load() > 0 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
	}
	if w.server.Now().Faults3 != all {
		t.Errorf("%v, were %v", w.server.Now().Faults3, all)
	}
}

func TestHTTP3PassesOverWhatNobodyKnows(t *testing.T) {
	w := start(t, goroutines, handler(t, echo), setup{h3: true})
	r := w.h3Dial("\x00" + frame3(4, "\x40\x21\x05") + frame3(0x21, "hello"))
	r.uni("\x21grease")
	r.uni("\x02\x20")
	r.uni("\x03\x44")
	status, _, body, err := answer3(r.request(frame3(0x40, "x")+fieldSection(pseudo("POST")...)+frame3(0x21, "")+
		frame3(0, "ab")+frame3(0x5f, "zz")+frame3(0, "")+frame3(0, "c")+fieldSection("x-t", "1")+frame3(0x21, "end"), true))
	if status != 200 || body != "abc" || err != nil {
		t.Fatalf("%d %q %v", status, body, err)
	}
}

func TestHTTP3SlowHeadsAndBodiesAreAnswered408(t *testing.T) {
	t.Parallel()
	up := handler(t, echo)
	w := start(t, goroutines, up, setup{h3: true, engine: Options{HeaderTime: 300 * time.Millisecond}})
	r := w.h3Dial(control)
	head := fieldSection(pseudo("GET")...)
	for name, b := range map[string]string{"half a head": head[:10], "nothing but a frame's head": head[:1], "a head without an end": head} {
		if status, why, _, err := answer3(r.request(b, false)); status != 408 || why != reason.HeaderTimeout.String() || err != nil {
			t.Errorf("%s: %d %q %v", name, status, why, err)
		}
	}
	doc := strings.Replace(plainDocument, "timeout: 20s", "timeout: 300ms", 1)
	w = start(t, goroutines, up, setup{h3: true, document: doc})
	r = w.h3Dial(control)
	for name, b := range map[string]string{
		"a short body": fieldSection(pseudo("POST", "content-length", "5")...) + frame3(0, "abc"),
		"a long body":  fieldSection(pseudo("POST", "content-length", "50000")...) + frame3(0, "abc"),
	} {
		if status, why, _, err := answer3(r.request(b, false)); status != 408 || why != reason.BodyTimeout.String() || err != nil {
			t.Errorf("%s: %d %q %v", name, status, why, err)
		}
	}
}

func TestHTTP3EarlyAnswerIsDeliveredWhileTheBodyGoesOn(t *testing.T) {
	w := start(t, goroutines, scripted(t, func(_ int, c *raw) {
		if _, err := http.ReadRequest(c.r); err == nil {
			c.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
		}
	}), setup{h3: true})
	r := w.h3Dial(control)
	s := r.request(fieldSection(pseudo("POST", "content-length", "9000000")...), false)
	go func() { // until the server says that it wants no more
		for i := 0; i < 9000; i++ {
			if _, err := io.WriteString(s, frame3(0, strings.Repeat("x", 1000))); err != nil {
				return
			}
		}
	}()
	if status, _, body, err := answer3(s); status != 403 || body != "no" || err != nil {
		t.Fatalf("%d %q %v", status, body, err)
	}
}

// A reader that is stuck keeps next to nothing here, however much there is for it.
func TestHTTP3StuckReaderOfAGigabyteHoldsNoMemory(t *testing.T) {
	var sent atomic.Int64
	w := start(t, goroutines, handler(t, func(w http.ResponseWriter, r *http.Request) {
		piece := make([]byte, 64<<10)
		for range 1 << 14 {
			n, err := w.Write(piece)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	}), setup{h3: true, document: strings.Replace(plainDocument, "timeout: 20s", "timeout: 5s", 1)})
	r := w.h3Dial(control)
	before := heap()
	var all []*quic.Stream
	for range 20 {
		all = append(all, r.request(fieldSection(pseudo("GET")...), true))
	}
	settled(t, func() int64 { return sent.Load() })
	if grown := heap() - before; grown > 32<<20 {
		t.Fatalf("%d MB for 20 stuck readers", grown>>20)
	}
	for _, s := range all {
		s.CancelRead(quic.StreamErrorCode(http3.RequestCancelled))
	}
	for end := time.Now().Add(patience); w.server.InFlight.Load() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d exchanges outlive their clients", w.server.InFlight.Load())
		}
	}
}

func TestHTTP3OneStalledStreamStallsNoOther(t *testing.T) {
	w := start(t, goroutines, handler(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/big" {
			_, _ = w.Write(make([]byte, 10<<20))
			return
		}
		b, _ := io.ReadAll(r.Body)
		_, _ = w.Write(b)
	}), setup{h3: true, silent: true})
	r := w.h3Dial(control)
	big := pseudo("GET")
	big[7] = "/big"
	s := r.request(fieldSection(big...), true)
	defer s.CancelRead(quic.StreamErrorCode(http3.RequestCancelled))
	for range 200 {
		status, _, body, err := answer3(r.request(fieldSection(pseudo("POST")...)+frame3(http3.FrameData, strings.Repeat("x", 5000)), true))
		if status != 200 || len(body) != 5000 || err != nil {
			t.Fatalf("%d, %d bytes, %v", status, len(body), err)
		}
	}
}

// A client that packs frames of a byte each makes the gateway do no more for the upstream than it would for a long one.
func TestHTTP3SmallFramesAreSentOnTogether(t *testing.T) {
	const frames = 2000
	chunks, length := make(chan int, 1), make(chan int64, 1)
	w := start(t, goroutines, scripted(t, func(_ int, c *raw) {
		for line := ""; line != "\r\n"; {
			line, _ = c.r.ReadString('\n')
		}
		n, sum := 0, int64(0)
		for size := int64(-1); size != 0; n, sum = n+1, sum+size {
			line, _ := c.r.ReadString('\n')
			size, _ = strconv.ParseInt(strings.TrimSpace(line), 16, 32)
			_, _ = c.r.Discard(int(size) + 2)
		}
		chunks <- n
		length <- sum
		c.send(ok)
	}), setup{h3: true})
	status, _, _, err := answer3(w.h3Dial(control).request(fieldSection(pseudo("POST")...)+strings.Repeat(frame3(http3.FrameData, "x"), frames), true))
	if n, sum := <-chunks, <-length; status != 200 || err != nil || sum != frames || n > frames/20 {
		t.Errorf("%d bytes in %d chunks, %d %v", sum, n, status, err)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// settled waits until a counter stands still.
func settled(t *testing.T, count func() int64) {
	t.Helper()
	end := time.Now().Add(10 * time.Second)
	for last, same := int64(-1), 0; same < 20; time.Sleep(20 * time.Millisecond) {
		if n := count(); n == last && n > 0 {
			same++
		} else {
			last, same = n, 0
		}
		if time.Now().After(end) {
			t.Fatal("it never stands still")
		}
	}
}

// Rapid reset (CVE-2023-44487): a stream that the client gives up counts until its exchange has ended here.
func TestHTTP3StreamsGivenUpCountUntilTheirExchangeHasEnded(t *testing.T) {
	var most atomic.Int64
	release := make(chan struct{})
	var once sync.Once
	t.Cleanup(func() { once.Do(func() { close(release) }) })
	w := start(t, goroutines, scripted(t, func(_ int, c *raw) { c.request(); <-release }), setup{h3: true, silent: true})
	r := w.h3Dial(control)
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	head := fieldSection(pseudo("GET")...)
	n := 0
	for ; ; n++ {
		s, err := r.qc.OpenStreamSync(ctx)
		if err != nil {
			break
		}
		_, _ = io.WriteString(s, head)
		s.CancelWrite(quic.StreamErrorCode(http3.RequestCancelled))
		s.CancelRead(quic.StreamErrorCode(http3.RequestCancelled))
		most.Store(max(most.Load(), w.server.InFlight.Load()))
	}
	if n < 200 || most.Load() > 100 {
		t.Fatalf("%d streams, %d exchanges at once", n, most.Load())
	}
}

func TestHTTP3DrainAsksThenRefusesThenCloses(t *testing.T) {
	t.Parallel()
	inside, release := make(chan struct{}), make(chan struct{})
	w := start(t, goroutines, handler(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(inside)
			<-release
		}
		_, _ = io.WriteString(rw, "done")
	}), setup{h3: true, engine: Options{HardStop: 8 * time.Second}})
	r := w.h3Dial(control)
	slow := pseudo("GET")
	slow[7] = "/slow"
	busy := r.request(fieldSection(slow...), true)
	<-inside
	server, err := r.qc.AcceptUniStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = server.SetReadDeadline(time.Now().Add(patience))
	var told []byte
	w.stop()
	want := func(id uint64) {
		t.Helper()
		for next := http3.AppendGoAway(nil, id); !bytes.HasSuffix(told, next); {
			var b [64]byte
			n, err := server.Read(b[:])
			if told = append(told, b[:n]...); err != nil {
				t.Fatalf("%x %v", told, err)
			}
		}
	}
	want(http3.MaxStreamID)
	// What is on its way is answered.
	if status, _, body, err := answer3(r.request(fieldSection(pseudo("GET")...), true)); status != 200 || body != "done" || err != nil {
		t.Fatalf("%d %q %v", status, body, err)
	}
	want(8)
	_, _, _, err = answer3(r.request(fieldSection(pseudo("GET")...), true))
	var se *quic.StreamError
	if !errors.As(err, &se) || se.ErrorCode != quic.StreamErrorCode(http3.RequestRejected) {
		t.Fatalf("%v", err)
	}
	close(release)
	if status, _, body, err := answer3(busy); status != 200 || body != "done" || err != nil {
		t.Fatalf("%d %q %v", status, body, err)
	}
	<-r.qc.Context().Done()
	var app *quic.ApplicationError
	if err := context.Cause(r.qc.Context()); !errors.As(err, &app) || app.ErrorCode != quic.ApplicationErrorCode(http3.NoError) {
		t.Fatal(err)
	}
}

func TestHTTP3HardStopEndsADrain(t *testing.T) {
	block := make(chan struct{})
	t.Cleanup(func() { close(block) })
	w := start(t, goroutines, scripted(t, func(_ int, c *raw) { c.request(); <-block }), setup{h3: true, engine: Options{HardStop: 300 * time.Millisecond}})
	s := w.h3Dial(control).request(fieldSection(pseudo("GET")...), true)
	w.has(1)
	began := time.Now()
	w.stop()
	if _, err := io.ReadAll(s); err == nil || time.Since(began) > soon {
		t.Fatalf("%v after %v", err, time.Since(began))
	}
}

// ownEnd says whether it was the client that ended its connection, without a fault: having been told to leave, quic-go's does so
// when it knows of no request under way, though one may just have been given to it.
func ownEnd(err error) bool {
	var end *qhttp3.Error
	return errors.As(err, &end) && !end.Remote && end.ErrorCode == qhttp3.ErrCodeNoError
}

func TestHTTP3ClientsFollowWithoutAFailure(t *testing.T) {
	t.Parallel()
	w := start(t, goroutines, handler(t, echo), setup{h3: true, engine: Options{MaxAge: 100 * time.Millisecond}})
	var dials atomic.Int32
	c := w.h3Client(&dials)
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		res, err := c.Get("https://a.example/")
		if !ownEnd(err) {
			read(t, res, err)
		}
	}
	if n := dials.Load(); n < 3 {
		t.Fatalf("only %d connections although they are to be young", n)
	}
}

func TestHTTP3ConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	w := start(t, goroutines, handler(t, echo), setup{h3: true, engine: Options{MaxConnections: 3}})
	var all []*h3Raw
	for range 3 {
		c := w.h3Dial(control)
		c.request("\x01", false) // the beginning of a head: an exchange is under way
		all = append(all, c)
	}
	w.has(3)
	pc, err := net.ListenPacket("udp", "127.46.0.4:0")
	if err != nil {
		t.Fatal(err)
	}
	via := &quic.Transport{Conn: pc}
	defer pc.Close()
	defer via.Close()
	cfg := &tls.Config{RootCAs: w.roots, ServerName: "a.example", NextProtos: []string{"h3"}}
	var refused *quic.TransportError
	if _, err := via.Dial(t.Context(), w.udp, cfg, nil); !errors.As(err, &refused) || refused.ErrorCode != quic.ConnectionRefused {
		t.Fatal(err)
	}
	_ = all[0].qc.CloseWithError(quic.ApplicationErrorCode(http3.NoError), "")
	for range 2 { // one takes the place of that, and another its own once it has been idle for long
		if w.server.Evicted.Load() != 0 {
			t.Fatal("who was at work had to go")
		}
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := via.Dial(ctx, w.udp, cfg, nil)
			if cancel(); err == nil {
				break
			} else if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
	if w.server.Evicted.Load() != 1 {
		t.Fatal(w.server.Evicted.Load())
	}
}

// spy looks at what comes.
type spy struct {
	net.PacketConn
	retries *atomic.Int32
}

func (s spy) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := s.PacketConn.ReadFrom(b)
	if n > 0 && b[0]&0xb0 == 0xb0 { // a long header of the type Retry (RFC 9000, section 17.2.5)
		s.retries.Add(1)
	}
	return n, from, err
}

// A node whose connections are scarce has addresses proved before it does the work of a handshake.
func TestHTTP3AddressesAreProvedUnderLoad(t *testing.T) {
	t.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true") // the spy is no plain socket
	w := start(t, goroutines, handler(t, echo), setup{h3: true, engine: Options{MaxConnections: 4}})
	for i := range 4 {
		pc, err := net.ListenPacket("udp", "127.46.0.6:0")
		if err != nil {
			t.Fatal(err)
		}
		s := spy{pc, new(atomic.Int32)}
		via := &quic.Transport{Conn: s}
		defer pc.Close()
		defer via.Close()
		qc, err := via.Dial(t.Context(), w.udp, &tls.Config{RootCAs: w.roots, ServerName: "a.example", NextProtos: []string{"h3"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if asked := s.retries.Load() > 0; asked != (i == 3) {
			t.Errorf("connection %d: asked to prove its address: %v", i, asked)
		}
		defer func() { _ = qc.CloseWithError(quic.ApplicationErrorCode(http3.NoError), "") }()
	}
}

func TestHTTP3TakesNoEarlyData(t *testing.T) {
	w := start(t, goroutines, handler(t, echo), setup{h3: true})
	pc, err := net.ListenPacket("udp", "127.46.0.5:0")
	if err != nil {
		t.Fatal(err)
	}
	via := &quic.Transport{Conn: pc}
	defer pc.Close()
	defer via.Close()
	cfg := &tls.Config{RootCAs: w.roots, ServerName: "a.example", NextProtos: []string{"h3"}, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	for i := range 2 {
		qc, err := via.DialEarly(t.Context(), w.udp, cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		<-qc.HandshakeComplete()
		if st := qc.ConnectionState(); st.Used0RTT || st.TLS.DidResume != (i == 1) {
			t.Fatalf("connection %d: early data %v, resumed %v", i, st.Used0RTT, st.TLS.DidResume)
		}
		if i == 0 { // until its ticket has come
			rt := (&qhttp3.Transport{}).NewClientConn(qc)
			res, err := rt.RoundTrip(must(http.NewRequest("GET", "https://a.example/", nil)))
			read(t, res, err)
		}
		_ = qc.CloseWithError(0x100, "")
	}
}

func must[T any](v T, _ error) T { return v }

func TestHTTP3RandomBytesHarmNobody(t *testing.T) {
	w := start(t, goroutines, handler(t, echo), setup{h3: true, silent: true})
	good := w.h3Client(nil)
	for i := range 40 {
		r := w.h3Dial(control)
		b := []byte(fieldSection(pseudo("POST")...) + frame3(0, "abc"))
		b[i%len(b)] ^= byte(1 << (i % 8))
		s, err := r.qc.OpenStreamSync(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = s.Write(b)
		s.Close()
		_ = s.SetReadDeadline(time.Now().Add(patience))
		if _, _, _, err := answer3(s); errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("byte %d: no answer and no end", i)
		}
		_ = r.qc.CloseWithError(0x100, "")
	}
	res, err := good.Get("https://a.example/")
	read(t, res, err)
}
