package engine_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	. "github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/relay"
	"github.com/cellgate/cellgate/reason"
)

// slowly is an upstream that takes its time to answer; gone is told whether it was left alone meanwhile.
func slowly(t testing.TB, takes time.Duration, gone chan<- bool) string {
	return handler(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
			gone <- true
		case <-time.After(takes):
			_, _ = io.WriteString(w, "in the end")
		}
	})
}

// A client that has ended its sending is answered, however long that takes (RFC 9293, section 3.6), and then closed.
func TestAClientThatHasEndedItsSendingIsAnswered(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		w := start(t, slowly(t, 700*time.Millisecond, make(chan bool, 1)), setup{})
		c := w.dial().send(get("/")).half()
		if b, _ := c.r.Peek(len(relay.Continue)); string(b) == relay.Continue { // to see whether it is there
			_, _ = c.r.Discard(len(b))
		}
		if res, body, err := c.answer("GET"); err != nil || res.StatusCode != 200 || body != "in the end" {
			t.Fatalf("%v %q %v", res, body, err)
		}
		c.closed()
		if r := <-w.logged; r.Status != 200 || r.Truncated {
			t.Fatalf("%+v", r)
		}
	})
}

// So is one that is slow to read.
func TestAClientThatHasEndedItsSendingMayReadSlowly(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		const size = 24 << 20
		w := start(t, handler(t, func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(make([]byte, size)) }), setup{document: strings.Replace(plainDocument, "20s", "20s", 1)})
		c := w.dial().send(get("/")).half()
		time.Sleep(1500 * time.Millisecond)
		if b, _ := c.r.Peek(len(relay.Continue)); string(b) == relay.Continue { // the upstream was slow, too
			_, _ = c.r.Discard(len(b))
		}
		if _, body, err := c.answer("GET"); err != nil || len(body) != size {
			t.Fatalf("%d bytes, %v", len(body), err)
		}
	})
}

func TestAnHTTP2ClientThatHasEndedItsSendingIsAnswered(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		gone := make(chan bool, 2)
		w := start(t, slowly(t, 500*time.Millisecond, gone), setup{})
		f := w.frames().head(1, true).head(3, false, "content-length", "5").head(5, true)
		time.Sleep(50 * time.Millisecond)
		_ = f.Conn.(interface{ CloseWrite() error }).CloseWrite()
		until(f, func(g *http2.GoAwayFrame) bool { return g.LastStreamID == 5 })
		got := map[uint32]string{}
		for {
			fr, err := f.ReadFrame()
			if err != nil {
				if err != io.EOF {
					t.Fatal(err)
				}
				break
			}
			if d, ok := fr.(*http2.DataFrame); ok {
				got[d.StreamID] += string(d.Data())
			}
		}
		if got[1] != "in the end" || got[5] != "in the end" || got[3] != "" {
			t.Fatal(got)
		}
		for range 3 {
			if r := <-w.logged; (r.Reason == reason.ClientGone) != (r.BytesOut == 0) {
				t.Fatalf("%+v", r)
			}
		}
	})
}

// One that is gone, which looks the same at first, is found out by what it is sent, and costs its upstream nothing more.
func TestAnHTTP2ClientThatIsGoneCancelsItsUpstream(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		gone := make(chan bool, 1)
		w := start(t, slowly(t, 8*time.Second, gone), setup{document: strings.Replace(plainDocument, "20s", "20s", 1)})
		f := w.frames()
		until(f, func(*http2.SettingsFrame) bool { return true })
		f.head(1, true)
		time.Sleep(50 * time.Millisecond)
		f.Conn.Close()
		<-gone
		if r := <-w.logged; r.Reason != reason.ClientGone {
			t.Fatalf("%+v", r)
		}
	})
}

// A WebSocket of such a client's connection can't go on.
func TestTheEndOfAnHTTP2ConnectionEndsItsWebSockets(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, opened(t, func(_ int, c *raw) { _, _ = io.Copy(io.Discard, c.r) }), setup{engine: Options{}})
		f := w.frames().connect(1, false)
		if s := codeOf(f, 1); s != "200" {
			t.Fatal(s)
		}
		_ = f.Conn.(interface{ CloseWrite() error }).CloseWrite()
		<-w.logged
	})
}
