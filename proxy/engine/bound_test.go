package engine_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	. "github.com/cellgate/cellgate/proxy/engine"
)

// Clients that hold connections open for nothing keep nobody out; those who are at work, or were a moment ago, stay.
func TestIdleClientsMakeRoomForOthers(t *testing.T) {
	t.Parallel()
	for name, kind := range engines() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			release := make(chan struct{})
			w := start(t, kind, handler(t, func(rw http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/held" {
					<-release
				}
				_, _ = io.WriteString(rw, "ok")
			}), setup{engine: Options{MaxConnections: 3}})
			ask := func(c *raw) bool {
				_, _ = io.WriteString(c, get("/"))
				res, err := http.ReadResponse(c.r, nil)
				if err != nil {
					return false
				}
				body, err := io.ReadAll(res.Body)
				return err == nil && string(body) == "ok"
			}
			held := w.dial().send(get("/held"))
			one, two := w.dial(), w.frames()
			if !ask(one) {
				t.Fatal("no answer")
			}
			two.head(1, true)
			if got, _ := dataOf(two, 1, 2); got != "ok" {
				t.Fatal(got)
			}
			w.has(1)
			w.dial().closed() // nobody has been idle for long
			if w.server.NoRoom.Load() == 0 {
				t.Fatal("none is counted as refused")
			}
			for n := range uint64(2) { // both that are idle, one after the other
				came := w.server.Evicted.Load()
				for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
					c := w.dial()
					if ask(c) {
						break
					}
					c.Close()
					if time.Now().After(end) {
						t.Fatalf("no room for client %d", n)
					}
				}
				if w.server.Evicted.Load() == came {
					t.Fatal("none is counted as evicted")
				}
			}
			one.closed()
			until(two, func(*http2.GoAwayFrame) bool { return true })
			close(release)
			if res, body, err := held.answer("GET"); err != nil || res.StatusCode != 200 || body != "ok" {
				t.Fatal("who was at work lost its connection", err)
			}
		})
	}
}

// What fails again and again is said once in a while.
func TestFailuresToAcceptAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var out lockedBuffer
	e := New(start(t, goroutines, handler(t, echo), setup{}).server, Options{Log: slog.New(slog.NewTextHandler(&out, nil))})
	for range 1000 {
		e.Unaccepted(errors.New("too many open files"))
	}
	if n := strings.Count(out.String(), "no connection could be taken"); n != 1 {
		t.Fatalf("said %d times", n)
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
