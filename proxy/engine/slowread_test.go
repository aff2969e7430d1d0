package engine_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	. "github.com/cellgate/cellgate/proxy/engine"
)

// patient is a document whose route has time for downloads.
var patient = strings.Replace(plainDocument, "timeout: 20s", "timeout: 1h", 1)

// endless is an upstream that gives what is taken of it. It says when nobody takes it any more.
func endless(t *testing.T) (addr string, left chan struct{}) {
	left = make(chan struct{}, 10)
	return handler(t, func(w http.ResponseWriter, _ *http.Request) {
		for b := make([]byte, 64<<10); ; {
			if _, err := w.Write(b); err != nil {
				left <- struct{}{}
				return
			}
		}
	}), left
}

// G45: a client that doesn't take its answer, or takes it byte by byte, is given up long before the time of its route ends, and
// its upstream is free again.
func TestAClientThatDoesNotReadIsGivenUp(t *testing.T) {
	kinds := engines()
	kinds["nethttp"] = standard
	for name, kind := range kinds {
		for how, ask := range map[string]func(*world){
			"HTTP/1.1": func(w *world) { w.dial().send(get("/")) },
			"HTTP/1.1 over TLS": func(w *world) {
				c := w.tlsClient("http/1.1")
				c.Timeout = 0
				res, err := c.Get("https://a.example/")
				if err != nil {
					t.Error(err)
					return
				}
				w.t.Cleanup(func() { res.Body.Close() })
			},
			"HTTP/2, no window": func(w *world) {
				w.frames(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}).head(1, true)
			},
			"HTTP/2, byte by byte": func(w *world) {
				f := w.frames(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
				f.head(1, true)
				for range 20 {
					time.Sleep(30 * time.Millisecond)
					_ = f.WriteWindowUpdate(1, 1)
				}
			},
			"HTTP/2, nothing read": func(w *world) {
				f := w.frames(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
				_ = f.WriteWindowUpdate(0, 1<<30)
				f.head(1, true)
			},
			"HTTP/3": func(w *world) { w.h3Dial(control).request(fieldSection(pseudo("GET")...), true) },
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				up, left := endless(t)
				w := start(t, kind, up, setup{document: patient, h3: strings.Contains(how, "TLS") || how == "HTTP/3", engine: Options{TakeTime: 300 * time.Millisecond}})
				began := time.Now()
				ask(w)
				select {
				case <-left:
				case <-time.After(15 * time.Second):
					t.Fatal("the upstream still has its client")
				}
				if took := time.Since(began); took < 250*time.Millisecond {
					t.Errorf("after %v already", took)
				}
				for end := time.Now().Add(5 * time.Second); w.server.InFlight.Load() > 0; time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("%d in flight", w.server.InFlight.Load())
					}
				}
				if r := <-w.logged; !r.Truncated {
					t.Errorf("%+v", r)
				}
			})
		}
	}
}

// A slow client that goes on reading gets all of its answer.
func TestAClientThatReadsSlowlyIsServed(t *testing.T) {
	const size = 1 << 20
	up := func(t *testing.T) string {
		return handler(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, size)) })
	}
	eachClient(t, up, setup{document: patient, engine: Options{TakeTime: 2 * time.Second}, silent: true}, func(t *testing.T, c *http.Client, base string) {
		c.Timeout = 0
		if tr, ok := c.Transport.(*http.Transport); ok {
			inner := tr.DialContext
			tr.DialContext = func(ctx context.Context, n, a string) (net.Conn, error) {
				nc, err := inner(ctx, n, a)
				if err == nil {
					_ = nc.(*net.TCPConn).SetReadBuffer(16 << 10)
				}
				return nc, err
			}
		}
		res, err := c.Get(base + "/")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		got, b := 0, make([]byte, 32<<10)
		for began := time.Now(); ; {
			n, err := res.Body.Read(b)
			if got += n; err != nil {
				if got != size {
					t.Fatalf("%d bytes: %v", got, err)
				}
				return
			}
			time.Sleep(time.Until(began.Add(time.Duration(got) * 5 * time.Second / 2 / size)))
		}
	})
}
