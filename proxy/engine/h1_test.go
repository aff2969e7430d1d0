package engine_test

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	. "github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/hops"
	"github.com/cellgate/cellgate/proxy/tracecontext"
	"github.com/cellgate/cellgate/reason"
)

func TestRequestsOfOneConnectionAreAnsweredInOrder(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{})
		c := w.dial().send(get("/1") + "POST /2 HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\n\r\nabc" +
			"POST /3 HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nxyz\r\n0\r\n\r\n" + get("/4"))
		for i, want := range []string{"", "abc", "xyz", ""} {
			res, body, err := c.answer("GET")
			if err != nil || res.StatusCode != 200 || body != want || !strings.HasSuffix(res.Header.Get("X-Seen"), fmt.Sprintf("/%d", i+1)) {
				t.Fatalf("answer %d: %v %v %q %v", i+1, res.StatusCode, res.Header, body, err)
			}
		}
	})
}

// G33, G35: what a client says about itself is deleted, what it names in Connection can't take ours away.
func TestForwardingFieldsAreRebuilt(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{})
		res, _, _ := w.dial().send("GET /x HTTP/1.1\r\nHost: A.example:80\r\nConnection: x-request-id, x-forwarded-for, X-Named\r\nX-Named: 1\r\n" +
			"X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 2.2.2.2\r\nX-Forwarded-Prefix: /p\r\nForwarded: for=1\r\nX-Real-IP: 1\r\nX-Caller: root\r\nX-Request-Id: mine\r\n\r\n").answer("GET")
		for name, want := range map[string]string{"X-Seen": "GET A.example:80 /x", "Seen-X-Forwarded-For": "127.0.0.1", "Seen-X-Forwarded-Proto": "http",
			"Seen-X-Forwarded-Host": "A.example:80", "Seen-X-Request-Id": res.Header.Get("X-Request-Id"), "Seen-X-Real-Ip": "", "Seen-Forwarded": "",
			"Seen-X-Caller": "", "Seen-X-Named": "", "Seen-Connection": ""} {
			if got := strings.Join(res.Header.Values(name), ", "); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		if id := res.Header.Get("X-Request-Id"); len(id) != 32 || id == "mine" {
			t.Errorf("request id %q", id)
		}
	})
}

// F7: a trusted proxy's word holds for the request that it stands in, not for the next one on its connection.
func TestTheWordOfATrustedProxyHoldsForOneRequest(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{trusted: hops.Trusted{netip.MustParsePrefix("127.0.0.0/8")}})
		c, h2 := w.dial(), w.h2c(nil)
		for _, from := range []string{"192.0.2.7", "2001:db8::7", "", "unknown", "192.0.2.8"} {
			want := map[bool]string{true: from, false: "127.0.0.1"}[from != "" && from != "unknown"]
			req, _ := http.NewRequest("GET", "http://a.example/x", nil)
			line := ""
			if from != "" {
				req.Header.Set("X-Forwarded-For", "6.6.6.6, "+from)
				line = "X-Forwarded-For: 6.6.6.6, " + from + "\r\n"
			}
			one, _, _ := c.send("GET /x HTTP/1.1\r\nHost: a.example\r\n" + line + "\r\n").answer("GET")
			two, err := h2.Do(req)
			read(t, two, err)
			for _, res := range []*http.Response{one, two} {
				if got := strings.Join(res.Header.Values("Seen-X-Forwarded-For"), "|"); got != want {
					t.Errorf("%s, from %q: the upstream takes %q for the client", res.Proto, from, got)
				}
				if r := <-w.logged; r.Peer.String() != want {
					t.Errorf("%s, from %q: the log says %v", res.Proto, from, r.Peer)
				}
			}
		}
	})
}

func TestEveryOwnRefusalIsAProblemDocument(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{document: `
version: v1
routes:
  - {id: one, match: {host: a.example, path: /one, methods: [GET, PUT]}, upstream: up}
  - {id: all, match: {host: a.example, path: /all}, upstream: up}
upstreams:
  - {id: up, endpoints: ["UP"]}
`})
		const h = " HTTP/1.1\r\nHost: a.example\r\n"
		for name, c := range map[string]struct {
			send  string
			why   reason.Reason
			stays bool
		}{
			"garbage":            {"\x16\x03\x01\r\n\r\n", reason.BadRequest, false},
			"two lengths":        {"POST /all" + h + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nx", reason.BadFraming, false},
			"length and chunked": {"POST /all" + h + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", reason.BadFraming, false},
			"long URL":           {"GET /" + strings.Repeat("x", 9000) + h + "\r\n", reason.URLTooLong, false},
			"large header":       {"GET /all" + h + "X: " + strings.Repeat("x", 65<<10) + "\r\n\r\n", reason.HeaderTooLarge, false},
			"many headers":       {"GET /all" + h + strings.Repeat("X: y\r\n", 101) + "\r\n", reason.TooManyHeaders, false},
			"large body":         {"POST /all" + h + "Content-Length: 10485761\r\n\r\n", reason.BodyTooLarge, false},
			"bad chunk":          {"POST /all" + h + "Transfer-Encoding: chunked\r\n\r\nxx\r\n", reason.BadFraming, false},
			"CONNECT":            {"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n", reason.ConnectRefused, false},
			"websocket":          {"GET /all" + h + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", reason.UpgradeRefused, false},
			"path leaves root":   {"GET /../x" + h + "\r\n", reason.BadRequest, true},
			"no route":           {"GET /none" + h + "\r\n", reason.NoRoute, true},
			"other host":         {"GET /one HTTP/1.1\r\nHost: b.example\r\n\r\n", reason.NoRoute, true},
			"wrong method":       {"POST /one" + h + "Content-Length: 2\r\n\r\nab", reason.MethodNotAllowed, true},
			"bad deadline":       {"GET /all" + h + "X-Request-Timeout-Ms: soon\r\n\r\n", reason.DeadlineInvalid, true},
			"bad gRPC deadline":  {"GET /all" + h + "grpc-timeout: 1x\r\n\r\n", reason.DeadlineInvalid, true},
			"past deadline":      {"GET /all" + h + "X-Request-Timeout-Ms: 0\r\n\r\n", reason.DeadlineExpired, true},
		} {
			t.Run(name, func(t *testing.T) {
				conn := w.dial()
				conn.t = t
				res, body, err := conn.send(c.send).answer("GET")
				if err != nil {
					t.Fatal(err)
				}
				problem(t, res, body, c.why)
				if c.why == reason.MethodNotAllowed && res.Header.Get("Allow") != "GET, PUT" {
					t.Errorf("Allow: %q", res.Header.Get("Allow"))
				}
				if res.Close == c.stays {
					t.Errorf("close: %v", res.Close)
				}
				if !c.stays {
					conn.closed()
				} else if res, _, _ := conn.send(get("/one")).answer("GET"); res.StatusCode != 200 {
					t.Errorf("the next request: %d", res.StatusCode)
				}
			})
		}
	})
}

func TestSlowHeadIsAnswered408(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{engine: Options{HeaderTime: 100 * time.Millisecond}})
		c := w.dial().send("GET / HTTP/1.1\r\nHost:")
		for range 5 { // dripping doesn't help
			time.Sleep(15 * time.Millisecond)
			c.send("a")
		}
		res, body, _ := c.answer("GET")
		problem(t, res, body, reason.HeaderTimeout)
		c.closed()
	})
}

// G39.
func TestExpectationIsAnsweredWhenTheBodyIsWanted(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{})
		c := w.dial().send("POST / HTTP/1.1\r\nHost: a.example\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
		if res, _, _ := c.answer("POST"); res.StatusCode != 100 {
			t.Fatalf("%d instead of 100", res.StatusCode)
		}
		if _, body, _ := c.send("hello").answer("POST"); body != "hello" {
			t.Fatalf("%q", body)
		}
		c = w.dial().send("POST / HTTP/1.1\r\nHost: b.example\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
		res, body, _ := c.answer("POST")
		problem(t, res, body, reason.NoRoute)
		c.closed() // whether the body comes is unknown
	})
}

func TestChunkedBodiesAndTrailersPassBothWays(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			w.Header().Set("X-Trailer", r.Trailer.Get("X-Sum")+r.Trailer.Get("X-Caller"))
			w.(http.Flusher).Flush()
			_, _ = w.Write(b)
			w.Header().Set(http.TrailerPrefix+"X-Back", "late")
		}), setup{})
		big := strings.Repeat("0123456789", 5000)
		c := w.dial()
		go io.WriteString(c, "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"+
			fmt.Sprintf("%x;ext=1\r\n%s\r\n", len(big), big)+"0\r\nX-Sum: 42\r\nX-Caller: root\r\n\r\n")
		res, body, err := c.answer("POST")
		if err != nil || body != big || res.Header.Get("X-Trailer") != "42" || res.Trailer.Get("X-Back") != "late" {
			t.Fatalf("%v %v %v, %d bytes", err, res.Header, res.Trailer, len(body))
		}
		if res, _, _ := c.send(get("/")).answer("GET"); res.StatusCode != 200 {
			t.Fatal("the connection is not in order")
		}
	})
}

func TestHTTP10ClientsGetNoChunks(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "hello")
		}), setup{})
		c := w.dial().send("GET / HTTP/1.0\r\nHost: a.example\r\nConnection: keep-alive\r\n\r\n")
		b, err := io.ReadAll(c.r)
		if err != nil || strings.Contains(string(b), "chunked") || !strings.HasSuffix(string(b), "\r\n\r\nhello") {
			t.Fatalf("%v %q", err, b)
		}
	})
}

func TestReadinessIsAnsweredAheadOfRouting(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{})
		if res, _, _ := w.dial().send("GET /.well-known/cellgate/ready HTTP/1.1\r\nHost: whatever\r\n\r\n").answer("GET"); res.StatusCode != 200 {
			t.Fatalf("%d", res.StatusCode)
		}
		w.server.Drain()
		if res, _, _ := w.dial().send("GET /.well-known/cellgate/ready HTTP/1.1\r\nHost: whatever\r\n\r\n").answer("GET"); res.StatusCode != 503 {
			t.Fatalf("%d while draining", res.StatusCode)
		}
	})
}

// Counts every allocation of the process: client, gateway and upstream together make none per request.
func TestPlainRequestAllocatesNothing(t *testing.T) {
	eachAlone(t, func(t *testing.T, start starter) {
		w := start(t, quickly(t), setup{silent: true, recorder: exporter(t, "http://127.73.3.1:1"), sample: tracecontext.RatioOf(0.5), document: strings.Replace(plainDocument, "timeout: 20s", "timeout: 20s, limits: {tenant: 1000000/second}", 1)})
		w.allocatesNothing(get("/v1/orders/7"))
	})
}

// allocatesNothing sends a request again and again on one connection.
func (w *world) allocatesNothing(request string) {
	w.t.Helper()
	c, req, b := w.dial(), []byte(request), make([]byte, 4096)
	once := func() {
		if _, err := c.Write(req); err != nil {
			w.t.Fatal(err)
		}
		if n, err := c.Conn.Read(b); n == 0 || err != nil || string(b[:12]) != "HTTP/1.1 200" {
			w.t.Fatalf("%q %v", b[:n], err)
		}
	}
	for range 50 {
		once()
	}
	allowed := float64(allocsAllowed)
	if w.trust != nil {
		allowed += 2 // crypto/tls makes one for each read, here and in the client
	}
	if n := allocsPerRun(2000, once); n > allowed {
		w.t.Fatalf("%v allocations per request", n)
	}
}
