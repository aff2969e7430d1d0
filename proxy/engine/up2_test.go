package engine_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cellgate/cellgate/reason"
)

// patientDocument is for tests of much at once: machines are busy.
var patientDocument = strings.Replace(plainDocument, "timeout: 20s", "timeout: 30s", 1)

// over2 makes the upstream of a document speak HTTP/2 without TLS.
func over2(document string) string {
	if document == "" {
		document = patientDocument
	}
	return strings.ReplaceAll(document, `["UP"]`, `["UP"], protocol: h2c`)
}

// handler2 is an upstream of net/http that speaks HTTP/2 alone, without TLS. conns counts its connections.
func handler2(t testing.TB, conns *atomic.Int32, h http.HandlerFunc) string {
	l := listen(t)
	s := &http.Server{Handler: h, Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 50}, ErrorLog: log.New(io.Discard, "", 0)}
	s.Protocols.SetUnencryptedHTTP2(true)
	s.ConnState = func(_ net.Conn, to http.ConnState) {
		if conns != nil && to == http.StateNew {
			conns.Add(1)
		}
	}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

// fronts gives a client of every protocol, each of a world of its own.
func fronts(t *testing.T, up string, s setup, test func(t *testing.T, w *world, c *http.Client, scheme string)) {
	kinds := engines()
	kinds["nethttp"] = standard
	for name, kind := range kinds {
		for _, protocol := range []string{"HTTP/1.1", "HTTP/2", "HTTP/3"} {
			t.Run(name+", "+protocol, func(t *testing.T) {
				s := s
				s.h3 = protocol == "HTTP/3"
				w := start(t, kind, up, s)
				switch protocol {
				case "HTTP/2":
					test(t, w, w.h2c(nil), "http")
				case "HTTP/3":
					test(t, w, w.h3Client(nil), "https")
				default:
					tr := &http.Transport{DialContext: func(ctx context.Context, n, _ string) (net.Conn, error) {
						return (&net.Dialer{}).DialContext(ctx, n, w.addr)
					}}
					t.Cleanup(tr.CloseIdleConnections)
					test(t, w, &http.Client{Transport: tr, Timeout: patience}, "http")
				}
			})
		}
	}
}

// mirror tells what it was asked, and gives the body back as it comes, with trailers.
func mirror(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Seen", fmt.Sprint(r.Proto, " ", r.Method, " ", r.Host, " ", r.RequestURI, " te=", r.Header.Get("Te"), " for=", r.Header.Get("X-Forwarded-For") != "", " length=", r.ContentLength))
	w.Header().Set("X-Left", r.Header.Get("Grpc-Timeout"))
	w.Header().Set("Trailer", "X-Sum")
	if r.URL.Path == "/counted" {
		w.Header().Set("Content-Length", strconv.FormatInt(r.ContentLength, 10))
	}
	w.WriteHeader(200)
	_ = http.NewResponseController(w).Flush()
	n, _ := io.Copy(w, r.Body)
	w.Header().Set("X-Sum", strings.TrimSpace(fmt.Sprint(n, " ", r.Trailer.Get("X-Up"))))
}

func TestRequestsReachUpstreamsOverHTTP2(t *testing.T) {
	t.Parallel()
	var conns atomic.Int32
	fronts(t, handler2(t, &conns, mirror), setup{document: over2("")}, func(t *testing.T, w *world, c *http.Client, scheme string) {
		req, _ := http.NewRequest("POST", scheme+"://a.example/x?y", strings.NewReader(strings.Repeat("hello", 50000)))
		req.ContentLength = -1
		req.Trailer = http.Header{"X-Up": nil}
		req.Header.Set("Te", "trailers")
		req.Body = io.NopCloser(io.TeeReader(req.Body, late(func() { req.Trailer.Set("X-Up", "sent") })))
		res, err := c.Do(req)
		body := read(t, res, err)
		if len(body) != 250000 || res.Trailer.Get("X-Sum") != "250000 sent" {
			t.Errorf("%d %v", len(body), res.Trailer)
		}
		if seen := res.Header.Get("X-Seen"); seen != "HTTP/2.0 POST a.example /x?y te=trailers for=true length=-1" {
			t.Errorf("%s", seen)
		}
		for _, sent := range []string{"hello", "", "hello", ""} { // the connection is in order behind each
			res, err = c.Post(scheme+"://a.example/counted", "", strings.NewReader(sent))
			if body := read(t, res, err); body != sent || res.Trailer.Get("X-Sum") != strconv.Itoa(len(sent)) {
				t.Errorf("an answer of known length, %d: %q %v", len(sent), body, res.Trailer)
			}
		}
		for _, method := range []string{"GET", "HEAD", "POST"} {
			req, _ := http.NewRequest(method, scheme+"://a.example/z", nil)
			req.Header.Set("Grpc-Timeout", "5S")
			res, err := c.Do(req)
			if body := read(t, res, err); body != "" || res.StatusCode != 200 || !strings.Contains(res.Header.Get("X-Seen"), method+" a.example /z") {
				t.Errorf("%s: %d %q %v", method, res.StatusCode, body, res.Header)
			}
			if ms, err := strconv.Atoi(strings.TrimSuffix(res.Header.Get("X-Left"), "m")); err != nil || ms > 5000 || ms < 1 {
				t.Errorf("%s: the upstream has %q", method, res.Header.Get("X-Left"))
			}
		}
		if r := <-w.logged; r.Status != 200 || r.BytesIn != 250000 || r.BytesOut != 250000 || r.Attempts != 1 || r.Endpoint == "" || r.Truncated {
			t.Errorf("%+v", r)
		}
	})
}

// late calls at the first write.
type late func()

func (f late) Write(p []byte) (int, error) { f(); return len(p), nil }

const secureUp = `
version: v1
routes:
  - {id: any, match: {host: a.example, path_prefix: /, allow_catch_all: true}, upstream: up, timeout: 20s}
upstreams:
  - id: up
    endpoints: ["UP"]
    protocol: h2
    tls:
      server_name: a.example
      ca: |
`

// trusting is a certificate, with the document whose upstream has to show it.
func trusting(t testing.TB) (cert tls.Certificate, document string) {
	ca := "UP"
	for strings.Contains(ca, "UP") { // which stands for something else in a document
		cert, _ = selfSigned(t)
		ca = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}))
	}
	return cert, secureUp + "        " + strings.ReplaceAll(strings.TrimSpace(ca), "\n", "\n        ") + "\n"
}

// secure2 is an upstream over TLS that offers these protocols, with the document that leads there.
func secure2(t testing.TB, h http.HandlerFunc, offers ...string) (up, document string) {
	cert, document := trusting(t)
	l := listen(t)
	s := &http.Server{Handler: h, Protocols: new(http.Protocols), ErrorLog: log.New(io.Discard, "", 0)}
	for _, p := range offers {
		if p == "h2" {
			s.Protocols.SetHTTP2(true)
		} else {
			s.Protocols.SetHTTP1(true)
		}
	}
	go func() {
		_ = s.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: offers}))
	}()
	t.Cleanup(func() { s.Close() })
	return l.Addr().String(), document
}

func TestUpstreamsOverTLSAgreeOnHTTP2(t *testing.T) {
	t.Parallel()
	up, document := secure2(t, mirror, "h2", "http/1.1")
	fronts(t, up, setup{document: document}, func(t *testing.T, _ *world, c *http.Client, scheme string) {
		res, err := c.Get(scheme + "://a.example/")
		if body := read(t, res, err); body != "" || !strings.HasPrefix(res.Header.Get("X-Seen"), "HTTP/2.0") {
			t.Fatalf("%d %q %v", res.StatusCode, body, res.Header)
		}
	})
}

func TestAnUpstreamThatDoesNotSpeakHTTP2IsNamedSo(t *testing.T) {
	var asked atomic.Int32
	count := func(_ http.ResponseWriter, r *http.Request) {
		if r.Method != "PRI" { // what net/http takes the preface for
			asked.Add(1)
		}
	}
	alpn, document := secure2(t, count, "http/1.1")
	none, bare := secure2(t, count)
	for name, c := range map[string]struct{ up, document string }{
		"its TLS offers HTTP/1.1":  {alpn, document},
		"its TLS offers nothing":   {none, bare},
		"it speaks HTTP/1.1 plain": {handler(t, count), over2("")},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, start starter) {
				w := start(t, c.up, setup{document: c.document})
				res, body, _ := w.dial().send(get("/")).answer("GET")
				problem(t, res, body, reason.UpstreamProtocol)
			})
		})
	}
	if n := asked.Load(); n > 0 {
		t.Fatalf("%d requests were taken", n)
	}
}
