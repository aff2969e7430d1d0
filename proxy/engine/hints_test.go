package engine_test

import (
	"fmt"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	. "github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/relay"
)

// Interim answers are passed on to clients over HTTP/2 and HTTP/3, edited as answers are; over HTTP/1.1, where many take them for the
// answer, they are not (RFC 8297, section 3).
func TestEarlyHintsArePassedOnWhereClientsKnowThem(t *testing.T) {
	t.Parallel()
	document := strings.Replace(transformDocument, "[edit, inner]", "[edit]", 1)
	hinted := func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		for i := range 2 {
			for k, v := range map[string]string{"Link": fmt.Sprintf("</%d.css>; rel=preload", i), "Server": "inside/1.0", "X-Inside": "10.0.0.1", "X-From": "v"} {
				h.Set(k, v)
			}
			w.WriteHeader(103)
		}
		clear(h)
		w.WriteHeader(102)
		w.Header().Set("X-Last", "1")
		_, _ = w.Write([]byte("ok"))
	}
	for name, s := range map[string]setup{"1.1": {document: document, auth: onlyIn{}}, "2": {document: over2(document), auth: onlyIn{}}} {
		t.Run("upstream over HTTP/"+name, func(t *testing.T) {
			up := func(t *testing.T) string {
				if name == "2" {
					return handler2(t, nil, hinted)
				}
				return handler(t, hinted)
			}
			eachClient(t, up, s, func(t *testing.T, c *http.Client, base string) {
				var got []string
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
					got = append(got, fmt.Sprint(code, lines(http.Header(h), "Date")))
					return nil
				}})
				req, _ := http.NewRequestWithContext(ctx, "GET", base+"/v1", nil)
				res, err := c.Do(req)
				if body := read(t, res, err); res.StatusCode != 200 || body != "ok" || res.Header.Get("X-Last") != "1" || res.Header.Get("Link") != "" {
					t.Fatalf("%d %q %v", res.StatusCode, body, res.Header)
				}
				want := "[103 [link: </0.css>; rel=preload server: inside/1.0] 103 [link: </1.css>; rel=preload server: inside/1.0] 102 []]"
				if res.ProtoMajor == 1 {
					want = "[]"
				}
				if fmt.Sprint(got) != want {
					t.Fatalf("%v\nwant %v", got, want)
				}
			})
		})
	}
}

// hinting answers with as many interim answers as pass, of this size each, and then as told.
func hinting(size int, then http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", strings.Repeat("x", size))
		for range relay.MaxInterims {
			w.WriteHeader(103)
		}
		w.Header().Del("Link")
		then(w, r)
	}
}

// Interim answers are bound to no window. A client that doesn't read them gets the answers in the end, and few of these.
func TestInterimAnswersThatNobodyReadsAreBounded(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		var asked atomic.Int32
		const streams, size = 60, 16 << 10
		w := start(t, handler(t, hinting(size, func(http.ResponseWriter, *http.Request) { asked.Add(1) })), setup{silent: true})
		f := w.frames(http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: 1 << 20})
		for i := range uint32(streams) {
			f.head(2*i+1, true)
		}
		for end := time.Now().Add(patience); asked.Load() < streams || w.server.InFlight.Load() > 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d asked, %d under way: nobody's answer waits for who reads nothing", asked.Load(), w.server.InFlight.Load())
			}
		}
		hints := 0
		for answers := 0; answers < streams; {
			switch h := until(f, func(*http2.MetaHeadersFrame) bool { return true }); h.PseudoValue("status") {
			case "103":
				hints++
			case "200":
				answers++
			}
		}
		if most := streams * relay.MaxInterims / 2; hints > most { // the kernel takes some megabytes
			t.Errorf("%d hints of %d bytes were kept", hints, size)
		}
	})
}

// Over HTTP/3 they wait for the stream's window, and whoever doesn't open it is given up as a reader of nothing is.
func TestHTTP3ClientsThatTakeNoInterimAnswerAreGivenUp(t *testing.T) {
	t.Parallel()
	left := make(chan bool, 1)
	w := start(t, goroutines, handler(t, hinting(30<<10, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done(); left <- true })),
		setup{h3: true, engine: Options{TakeTime: 100 * time.Millisecond}, document: strings.Replace(plainDocument, "20s", "300s", 1)})
	w.h3Dial(control).request(fieldSection(pseudo("GET")...), true)
	select {
	case <-left:
	case <-time.After(patience):
		t.Fatal("the upstream still works for who takes nothing")
	}
	w.has(0)
}
