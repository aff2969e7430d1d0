package engine_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/reason"
)

// eachClient runs a test with a client of every protocol before every engine, also over the engine's own TLS. The URL of the
// client begins with base.
func eachClient(t *testing.T, up func(t *testing.T) string, s setup, test func(t *testing.T, c *http.Client, base string)) {
	kinds := engines()
	kinds["nethttp"] = standard
	for name, kind := range kinds {
		over := func(protocol string, s setup, client func(*world) *http.Client, base string) {
			t.Run(name+", "+protocol, func(t *testing.T) {
				t.Parallel()
				test(t, client(start(t, kind, up(t), s)), base)
			})
		}
		secure := s
		secure.h3 = true // TLS too
		over("HTTP/1.1", s, (*world).h1Client, "http://a.example")
		over("HTTP/2", s, func(w *world) *http.Client { return w.h2c(nil) }, "http://a.example")
		over("HTTP/1.1 over TLS", secure, func(w *world) *http.Client { return w.tlsClient("http/1.1") }, "https://a.example")
		over("HTTP/2 over TLS", secure, func(w *world) *http.Client { return w.tlsClient("h2") }, "https://a.example")
		over("HTTP/3", secure, func(w *world) *http.Client { return w.h3Client(nil) }, "https://a.example")
	}
}

func (w *world) h1Client() *http.Client {
	tr := &http.Transport{DialContext: func(ctx context.Context, n, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, n, w.addr)
	},
		TLSClientConfig: &tls.Config{}}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// F5: a body that was not announced is refused as soon as it is too large, and no upstream takes it for whole.
func TestABodyThatGrowsTooLargeIsRefused(t *testing.T) {
	whole := make(chan int64, 100)
	up := func(t *testing.T) string {
		return handler(t, func(w http.ResponseWriter, r *http.Request) {
			if n, err := io.Copy(io.Discard, r.Body); err == nil {
				whole <- n
			}
		})
	}
	eachClient(t, up, setup{document: patient, silent: true}, func(t *testing.T, c *http.Client, base string) {
		c.Timeout = time.Minute
		for size, want := range map[int64]int{proxy.MaxBody: 200, proxy.MaxBody + 1: reason.BodyTooLarge.Status()} {
			req, _ := http.NewRequest("POST", base+"/", io.MultiReader(io.LimitReader(zeros{}, size)))
			res, err := c.Do(req)
			if body := read(t, res, err); res.StatusCode != want {
				t.Fatalf("%d bytes: %d %s", size, res.StatusCode, body)
			} else if want != 200 {
				problem(t, res, body, reason.BodyTooLarge)
			} else if n := <-whole; n != size {
				t.Fatalf("%d of %d bytes", n, size)
			}
		}
	})
	select {
	case n := <-whole:
		t.Errorf("an upstream took %d bytes for a whole body", n)
	default:
	}
}

// awaited is a body that isn't sent before somebody wants it.
type awaited struct {
	io.Reader
	wanted chan struct{}
}

func (a *awaited) Read(p []byte) (int, error) {
	select {
	case <-a.wanted:
		return a.Reader.Read(p)
	case <-time.After(5 * time.Second):
		return 0, errors.New("nobody wants the body")
	}
}

// G39: a client that waits with its body is told when it is wanted, and is refused without it.
func TestAClientThatWaitsWithItsBodyIsToldToGoOn(t *testing.T) {
	up := func(t *testing.T) string { return handler(t, echo) }
	eachClient(t, up, setup{silent: true}, func(t *testing.T, c *http.Client, base string) {
		if tr, ok := c.Transport.(*http.Transport); ok {
			tr.ExpectContinueTimeout = 5 * time.Second // then the head goes out ahead
		}
		ask := func(url string) *http.Response {
			body := &awaited{bytes.NewReader([]byte("hello")), make(chan struct{})}
			var once sync.Once
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
				if code == 100 {
					once.Do(func() { close(body.wanted) })
				}
				return nil
			}})
			req, _ := http.NewRequestWithContext(ctx, "POST", url, body)
			req.ContentLength = 5
			req.Header.Set("Expect", "100-continue")
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			return res
		}
		res := ask(base + "/")
		if body := read(t, res, nil); res.StatusCode != 200 || body != "hello" {
			t.Fatalf("%d %q", res.StatusCode, body)
		}
		res = ask(base + "/a%2fb")
		problem(t, res, read(t, res, nil), reason.BadRequest)
	})
}
