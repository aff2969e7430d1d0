package engine_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/cellgate/cellgate/proxy/engine"
)

// Under load of ordinary clients, asking them to leave, letting them stay, and swapping snapshots costs no request.
func TestNothingFailsWhileClientsAreMovedAndSnapshotsSwapped(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		var seen atomic.Int64
		up := handler(t, func(w http.ResponseWriter, r *http.Request) {
			seen.Add(1)
			b, _ := io.ReadAll(r.Body)
			_, _ = w.Write(append(b, "done"...))
		})
		w := start(t, up, setup{silent: true, engine: Options{LeaveOver: 20 * time.Millisecond}})
		began := time.Now()
		var sent, failed atomic.Int64
		var wg sync.WaitGroup
		load := func(c *http.Client, id int) {
			defer wg.Done()
			for i := 0; goesOn(began, &sent); i++ {
				req, _ := http.NewRequest("GET", "http://"+w.addr+"/", nil)
				want := "done"
				if i%4 == 3 {
					body := strings.Repeat("x", rand.IntN(30000))
					req, _ = http.NewRequest("POST", "http://"+w.addr+"/", strings.NewReader(body))
					want = body + want
				}
				req.Host = "a.example"
				sent.Add(1)
				res, err := c.Do(req)
				if err == nil {
					var b []byte
					b, err = io.ReadAll(res.Body)
					res.Body.Close()
					if err == nil && (res.StatusCode != 200 || string(b) != want) {
						err = fmt.Errorf("%d, %d bytes of %d", res.StatusCode, len(b), len(want))
					}
				}
				if err != nil && failed.Add(1) < 5 {
					t.Errorf("client %d: %v", id, err)
				}
			}
		}
		h1 := &http.Transport{MaxIdleConnsPerHost: 8}
		defer h1.CloseIdleConnections()
		h2 := w.h2c(nil)
		for i := range 8 {
			wg.Add(2)
			go load(&http.Client{Transport: h1, Timeout: patience}, i)
			go load(h2, 100+i)
		}
		p := []string{plainDocument, strings.Replace(plainDocument, "timeout: 20s", "timeout: 19s", 1)}
		for n := uint64(2); goesOn(began, &sent); n++ {
			if err := w.server.Apply(compile(t, n, p[n%2], up)); err != nil {
				t.Error(err)
			}
			w.server.Reconnect(n%3 == 0)
			time.Sleep(30 * time.Millisecond)
		}
		wg.Wait()
		if repeated := seen.Load() - sent.Load(); failed.Load() > 0 || repeated > sent.Load()/500+1 || sent.Load() < 100 {
			t.Fatalf("%d sent, %d failed, %d repeated", sent.Load(), failed.Load(), repeated)
		}
	})
}

// goesOn says that a crowd goes on: for a time, and until enough is sent to say something.
func goesOn(began time.Time, sent *atomic.Int64) bool {
	took := time.Since(began)
	return took < 1500*time.Millisecond || sent.Load() < 100 && took < patience
}

// Whatever a client sends, and however it is cut, the node answers or closes in time and goes on serving.
func TestHostileBytesNeverHurtTheNode(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{silent: true, engine: Options{HeaderTime: 80 * time.Millisecond}})
		parts := []string{"GET / HTTP/1.1\r\n", "POST /x HTTP/1.1\r\n", "Host: a.example\r\n", "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n", "\r\n", "5\r\nhello\r\n", "0\r\n\r\n", "hello",
			"Connection: close\r\n", "Expect: 100-continue\r\n", "\x00", "\n", "\r", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "ffffffffffffffff\r\n", "X: y\r\n", ";a=b", strings.Repeat("z", 5000)}
		r := rand.New(rand.NewPCG(1, 2))
		var wg sync.WaitGroup
		gate := make(chan struct{}, 32)
		for range 400 {
			var b strings.Builder
			for range 1 + r.IntN(12) {
				b.WriteString(parts[r.IntN(len(parts))])
			}
			wire, cut, leave := b.String(), 1+r.IntN(64), r.IntN(4) == 0
			wg.Add(1)
			gate <- struct{}{}
			go func() {
				defer func() { <-gate; wg.Done() }()
				c, err := net.Dial("tcp", w.addr)
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(5 * time.Second))
				for rest := wire; len(rest) > 0; {
					n := min(cut*50, len(rest))
					if _, err := io.WriteString(c, rest[:n]); err != nil {
						return
					}
					rest = rest[n:]
				}
				if leave {
					return
				}
				_ = c.(*net.TCPConn).CloseWrite()
				if _, err := io.Copy(io.Discard, c); err != nil && strings.Contains(err.Error(), "timeout") {
					t.Errorf("no end of the answer to %q", wire)
				}
			}()
		}
		wg.Wait()
		if res, _, _ := w.dial().send(get("/")).answer("GET"); res.StatusCode != 200 {
			t.Fatal(res.StatusCode)
		}
		for end := time.Now().Add(3 * time.Second); w.server.Connections.Load() > 1 || w.server.InFlight.Load() > 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d connections are left, %d in flight", w.server.Connections.Load(), w.server.InFlight.Load())
			}
		}
	})
}
