package engine_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/proxy"
	. "github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/trust"
)

// elsewhere sends every request to one pool, and takes those of others by priority.
type elsewhere struct {
	pool  atomic.Pointer[upstream.Pool]
	admit func(cells.Priority) bool
}

func (e *elsewhere) Pool(string, netip.Addr) *upstream.Pool { return e.pool.Load() }
func (e *elsewhere) Room(p cells.Priority) bool             { return e.admit == nil || e.admit(p) }

// pair is an evacuated cell's proxy (here) and one of the cell that has its clients now (there), each with its upstream.
type pair struct {
	here, there         *world
	hereHits, thereHits atomic.Int64
	tail, thereTail     *elsewhere
	peer                string // address of there's peer listener
	stop                func() // ends it
	ca                  *trust.CA
	roots               *trust.Roots
}

func (p *pair) signer(t testing.TB, id cells.NodeID) *trust.Signer {
	cert, key, err := p.ca.Issue(trust.Identity{World: "gw.test", Role: trust.RoleProxy, ID: id}, nil, nil, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	s, err := trust.NewSigner(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (p *pair) client(t testing.TB) *tls.Config {
	return trust.ClientTLSTo(p.signer(t, "e/a/1"), p.roots, trust.RoleProxy, func(id trust.Identity) bool { return id.ID.Cell() == "e/b" })
}

func newPair(t testing.TB, start starter, document string) *pair {
	p := &pair{tail: &elsewhere{}, thereTail: &elsewhere{}}
	counted := func(n *atomic.Int64, where string) string {
		return handler(t, func(w http.ResponseWriter, r *http.Request) {
			n.Add(1)
			w.Header().Set("X-Cell", where)
			w.Header().Set("X-Cellgate-Reason", "made_up")
			echo(w, r)
		})
	}
	p.here = start(t, counted(&p.hereHits, "here"), setup{document: document})
	p.there = start(t, counted(&p.thereHits, "there"), setup{document: document})
	p.here.server.SetTail(p.tail)
	p.there.server.SetTail(p.thereTail)
	var err error
	if p.ca, err = trust.NewCA("gw.test", time.Now()); err != nil {
		t.Fatal(err)
	}
	if p.roots, err = trust.NewRoots(p.ca.CertPEM()); err != nil {
		t.Fatal(err)
	}
	p.serve(t)
	pool, err := upstream.NewPeers("peer:e/b", []string{p.peer}, p.client(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Retire)
	p.tail.pool.Store(pool)
	return p
}

// serve runs there's peer listener.
func (p *pair) serve(t testing.TB) {
	l := listen(t)
	p.peer = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	via := func(s tls.ConnectionState) (string, error) {
		id, err := trust.PeerIdentity(s)
		return string(id.ID), err
	}
	cfg := trust.ServerTLS(p.signer(t, "e/b/1"), p.roots, trust.RoleProxy)
	go func() {
		ended <- p.there.make(p.there.server, Options{HardStop: time.Second}).Run(ctx, Listener{Listener: l, TLS: cfg, Via: via})
	}()
	var once atomic.Bool
	p.stop = func() {
		if !once.Swap(true) {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(p.stop)
}

func (p *pair) hits(t *testing.T, here, there int64) {
	t.Helper()
	if h, th := p.hereHits.Swap(0), p.thereHits.Swap(0); h != here || th != there {
		t.Errorf("%d requests were executed here and %d there, want %d and %d", h, th, here, there)
	}
}

const priorities = `
version: v1
routes:
  - {id: low, match: {host: a.example, path_prefix: /low}, upstream: up, priority: background, timeout: 3s}
  - {id: high, match: {host: a.example, path_prefix: /high}, upstream: up, priority: critical, timeout: 3s}
  - {id: few, match: {host: a.example, path_prefix: /few}, upstream: up, timeout: 20s, limits: {tenant: 2/minute}}
  - {id: any, match: {host: a.example, path_prefix: /any}, upstream: up, timeout: 20s}
upstreams:
  - {id: up, endpoints: ["UP"]}
`

func TestARequestOfAnEvacuatedCellIsServedByTheCellThatHasItsClient(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		p := newPair(t, start, priorities)
		c := p.here.dial()
		res, _, _ := c.send("GET /any/1?q=%20x HTTP/1.1\r\nHost: a.example\r\nX-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Proto: https\r\nForwarded: for=6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\n\r\n").answer("GET")
		h := res.Header
		if res.StatusCode != 200 || h.Get("X-Cell") != "there" || h.Get("X-Seen") != "GET a.example /any/1?q=%20x" || h.Get("X-Cellgate-Reason") != "" {
			t.Errorf("%d %v", res.StatusCode, h)
		}
		if h.Get("Seen-X-Forwarded-For") != "127.0.0.1" || h.Get("Seen-X-Forwarded-Proto") != "http" || len(h.Values("Seen-X-Forwarded-For")) != 1 || h.Get("Seen-X-Real-Ip") != "" {
			t.Errorf("whom the upstream takes for the client: %v", h)
		}
		entry, exit := <-p.here.logged, <-p.there.logged
		if !entry.Handed || entry.UpstreamID != "peer:e/b" || entry.Via != "" || entry.Attempts != 1 {
			t.Errorf("the entry's record: %+v", entry)
		}
		if exit.Via != "e/a/1" || exit.Handed || exit.RequestID != entry.RequestID || exit.Peer != netip.MustParseAddr("127.0.0.1") || exit.TLS {
			t.Errorf("the record of the cell that served it: %+v", exit)
		}
		big := strings.Repeat("0123456789", 50_000)
		for name, req := range map[string]string{
			"small":   "POST /any HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nhello",
			"large":   fmt.Sprintf("POST /any HTTP/1.1\r\nHost: a.example\r\nContent-Length: %d\r\n\r\n%s", len(big), big),
			"chunked": fmt.Sprintf("POST /any HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(big), big),
		} {
			go func() { _, _ = io.WriteString(c, req) }()
			res, body, err := c.answer("POST")
			if want := map[bool]string{true: "hello", false: big}[name == "small"]; err != nil || res.StatusCode != 200 || body != want || res.Header.Get("X-Cell") != "there" {
				t.Errorf("%s: %d, %d bytes, %v", name, res.StatusCode, len(body), err)
			}
		}
		res, body, err := c.send("HEAD /any HTTP/1.1\r\nHost: a.example\r\n\r\n").answer("HEAD")
		if err != nil || res.StatusCode != 200 || body != "" {
			t.Errorf("HEAD: %d %v", res.StatusCode, err)
		}
		p.hits(t, 0, 5)
	})
}

func TestForwardedRequestsAreCountedOnceByTheCellThatServesThem(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		p := newPair(t, start, priorities)
		c := p.here.dial()
		for i, want := range []int{200, 200, 429} { // whoever counts twice refuses the second
			res, body, _ := c.send(get("/few")).answer("GET")
			if res.StatusCode != want {
				t.Fatalf("request %d: %d %s", i, res.StatusCode, body)
			}
			if want == 429 {
				problem(t, res, body, reason.RateTenant)
			}
		}
		p.tail.pool.Store(nil)
		if res, _, _ := c.send(get("/few")).answer("GET"); res.StatusCode != 200 {
			t.Errorf("the entry counted what it handed on: %d", res.StatusCode)
		}
		p.hits(t, 1, 2)
	})
}

func TestThereIsOneHopAtMost(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		p := newPair(t, start, priorities)
		p.thereTail.pool.Store(p.tail.pool.Load()) // to itself: it would never end
		if res, _, _ := p.here.dial().send(get("/any")).answer("GET"); res.StatusCode != 200 || res.Header.Get("X-Cell") != "there" {
			t.Errorf("%d %v", res.StatusCode, res.Header)
		}
		p.hits(t, 0, 1)
	})
}

func TestWhatCannotBeHandedOnIsServedHere(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		p := newPair(t, start, priorities)
		c := p.here.dial()
		c.send(get("/any")).answer("GET")
		p.hits(t, 0, 1)
		p.stop() // a pooled connection is left, too
		big := strings.Repeat("0123456789", 5_000)
		for _, req := range []string{
			get("/any"), "POST /any HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nhello",
			fmt.Sprintf("POST /any HTTP/1.1\r\nHost: a.example\r\nContent-Length: %d\r\n\r\n%s", len(big), big),
		} {
			res, body, err := c.send(req).answer("POST")
			if err != nil || res.StatusCode != 200 || res.Header.Get("X-Cell") != "here" {
				t.Fatalf("%.40q: %d %s, %v", req, res.StatusCode, body, err)
			}
		}
		p.hits(t, 3, 0)
		<-p.here.logged
		if r := <-p.here.logged; !r.Stayed || r.Handed || r.UpstreamID != "up" {
			t.Errorf("record %+v", r)
		}
	})
}

func TestACellWithoutRoomIsNotForcedByPriority(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		p := newPair(t, start, priorities)
		p.thereTail.admit = func(c cells.Priority) bool { return c == cells.PriorityCritical }
		c := p.here.dial()
		for path, where := range map[string]string{"/low": "here", "/any": "here", "/high": "there"} {
			res, body, _ := c.send(get(path)).answer("GET")
			if res.StatusCode != 200 || res.Header.Get("X-Cell") != where {
				t.Errorf("%s: %d %q %s, want %s", path, res.StatusCode, res.Header.Get("X-Cell"), body, where)
			}
		}
		p.hits(t, 2, 1)
		// A body under way can't be taken back: its client learns the reason.
		big := strings.Repeat("x", 20_000)
		res, body, _ := c.send(fmt.Sprintf("POST /any HTTP/1.1\r\nHost: a.example\r\nContent-Length: %d\r\n\r\n%s", len(big), big)).answer("POST")
		if res.StatusCode != 503 || res.Header.Get("X-Cellgate-Reason") != "forward_refused" || res.Header.Get("Retry-After") == "" {
			t.Errorf("%d %v %s", res.StatusCode, res.Header, body)
		}
		p.hits(t, 0, 0)
	})
}

func TestWhatMayHaveBeenExecutedElsewhereIsNotExecutedAgainHere(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		p := newPair(t, start, priorities)
		l := listen(t)
		defer l.Close()
		cfg := trust.ServerTLS(p.signer(t, "e/b/2"), p.roots, trust.RoleProxy)
		go func() {
			for {
				nc, err := l.Accept()
				if err != nil {
					return
				}
				go func() { // takes the request and dies
					defer nc.Close()
					b := make([]byte, 4096)
					_, _ = tls.Server(nc, cfg).Read(b)
				}()
			}
		}()
		pool, err := upstream.NewPeers("peer:e/b", []string{l.Addr().String()}, p.client(t))
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Retire()
		p.tail.pool.Store(pool)
		c := p.here.dial()
		if res, _, _ := c.send(get("/any")).answer("GET"); res.StatusCode != 200 || res.Header.Get("X-Cell") != "here" {
			t.Errorf("GET: %d", res.StatusCode)
		}
		p.hits(t, 1, 0)
		res, body, _ := c.send("POST /any HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nhello").answer("POST")
		problem(t, res, body, reason.UpstreamReset)
		p.hits(t, 0, 0)
	})
}

func TestOnlyAProxyOfTheWorldIsBelievedAboutTheClient(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		p := newPair(t, start, priorities)
		raw := func(cfg *tls.Config) (*tls.Conn, error) {
			nc, err := net.Dial("tcp", p.peer)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { nc.Close() })
			_ = nc.SetDeadline(time.Now().Add(5 * time.Second))
			tc := tls.Client(nc, cfg)
			if err := tc.Handshake(); err != nil {
				return nil, err
			}
			_, err = io.WriteString(tc, "GET /any HTTP/1.1\r\nHost: a.example\r\nX-Forwarded-For: 9.9.9.9\r\nX-Forwarded-Proto: https\r\nX-Request-Id: 0123456789abcdef0123456789abcdef\r\n\r\n")
			if err != nil {
				return nil, err
			}
			one := make([]byte, 1)
			_, err = tc.Read(one) // TLS 1.3: a refused certificate shows with the first read
			return tc, err
		}
		other, err := trust.NewCA("gw.test", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		q := &pair{ca: other, roots: p.roots}
		for name, cfg := range map[string]*tls.Config{
			"no certificate": {InsecureSkipVerify: true}, "another world's": trust.ClientTLS(q.signer(t, "e/a/1"), p.roots, trust.RoleProxy),
		} {
			if _, err := raw(cfg); err == nil {
				t.Errorf("%s: it was answered", name)
			}
		}
		if _, err := raw(p.client(t)); err != nil {
			t.Fatal(err)
		}
		if r := <-p.there.logged; r.Peer != netip.MustParseAddr("9.9.9.9") || !r.TLS || r.Via != "e/a/1" || r.RequestID != "0123456789abcdef0123456789abcdef" {
			t.Errorf("record %+v", r)
		}
		// One of another cell that answers at the address is not handed anything.
		wrong := trust.ClientTLSTo(p.signer(t, "e/a/1"), p.roots, trust.RoleProxy, func(id trust.Identity) bool { return id.ID.Cell() == "e/c" })
		pool, err := upstream.NewPeers("peer:e/c", []string{p.peer}, wrong)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Retire()
		p.thereHits.Store(0)
		p.tail.pool.Store(pool)
		if res, _, _ := p.here.dial().send(get("/any")).answer("GET"); res.StatusCode != 200 || res.Header.Get("X-Cell") != "here" {
			t.Errorf("%d %v", res.StatusCode, res.Header)
		}
		p.hits(t, 1, 0)
	})
}

func TestHTTP2ClientsOfAnEvacuatedCellAreForwardedAsWell(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		p := newPair(t, start, priorities)
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		tr := &http.Transport{Protocols: protocols}
		defer tr.CloseIdleConnections()
		body := bytes.Repeat([]byte("x"), 300_000)
		for range 3 {
			req, _ := http.NewRequest("POST", "http://"+p.here.addr+"/any", bytes.NewReader(body))
			req.Host = "a.example"
			res, err := tr.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || res.StatusCode != 200 || !bytes.Equal(got, body) || res.Header.Get("X-Cell") != "there" || res.ProtoMajor != 2 {
				t.Fatalf("%d %v %d bytes %v", res.StatusCode, res.Header, len(got), err)
			}
		}
		p.hits(t, 0, 3)
	})
}

var _ proxy.Tail = (*elsewhere)(nil)

// A stream of HTTP/2 goes to the other cell, and is served here when that cell can't be had, beside streams that never left.
func TestHTTP2OfAnEvacuatedCellIsExecutedWhereItsClientBelongs(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		p := newPair(t, start, priorities)
		c := p.here.h2c(nil)
		for range 3 {
			req, _ := http.NewRequest("PUT", "http://a.example/any", strings.NewReader("hello"))
			res, err := c.Do(req)
			if body := read(t, res, err); body != "hello" || res.Header.Get("X-Cell") != "there" {
				t.Fatalf("%q %v", body, res.Header)
			}
		}
		p.hits(t, 0, 3)
		p.stop()
		res, err := c.Get("http://a.example/any")
		if read(t, res, err); res.StatusCode != 200 || res.Header.Get("X-Cell") != "here" {
			t.Fatalf("%d %v", res.StatusCode, res.Header)
		}
		p.tail.pool.Store(nil)
		res, err = c.Get("http://a.example/any")
		if read(t, res, err); res.Header.Get("X-Cell") != "here" {
			t.Fatalf("%d %v", res.StatusCode, res.Header)
		}
		p.hits(t, 2, 0)
	})
}
