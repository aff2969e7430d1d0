package engine_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/cellgate/cellgate/proxy/engine"
)

// selfSigned is a certificate for a.example.
func selfSigned(t testing.TB) (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"a.example"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, _ := x509.ParseCertificate(der)
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, pool
}

func TestTLSOffersBothProtocols(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		cert, roots := selfSigned(t)
		w := start(t, handler(t, echo), setup{tls: &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}})
		for proto, version := range map[string]uint16{"h2": tls.VersionTLS13, "http/1.1": tls.VersionTLS12} {
			cfg := &tls.Config{RootCAs: roots, ServerName: "a.example", NextProtos: []string{proto}, MaxVersion: version}
			tr := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: proto == "h2",
				DialContext: func(ctx context.Context, n, _ string) (net.Conn, error) {
					return (&net.Dialer{}).DialContext(ctx, n, w.addr)
				}}
			res, err := (&http.Client{Transport: tr}).Get("https://a.example/")
			read(t, res, err)
			if want := map[string]int{"h2": 2, "http/1.1": 1}[proto]; res.ProtoMajor != want || res.Header.Get("Seen-X-Forwarded-Proto") != "https" {
				t.Errorf("%s: %s %v", proto, res.Proto, res.Header)
			}
			tr.CloseIdleConnections()
		}
	})
}

func TestDrainLetsExchangesEndAndAsksClientsToLeave(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		inside, release := make(chan struct{}), make(chan struct{})
		w := start(t, handler(t, func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				close(inside)
				<-release
			}
			_, _ = io.WriteString(rw, "done")
		}), setup{engine: Options{HardStop: 4 * time.Second}})
		idle := w.dial().send(get("/"))
		if res, _, _ := idle.answer("GET"); res.Close {
			t.Fatal("asked to leave before the drain")
		}
		busy := w.dial().send(get("/slow"))
		<-inside
		w.stop()
		time.Sleep(50 * time.Millisecond)
		// An idle connection is not cut under a request that is on its way.
		if res, body, err := idle.send(get("/")).answer("GET"); err != nil || body != "done" || !res.Close {
			t.Fatalf("%v %q close=%v", err, body, res.Close)
		}
		idle.closed()
		close(release)
		if res, body, err := busy.answer("GET"); err != nil || body != "done" || !res.Close {
			t.Fatalf("%v %q close=%v", err, body, res.Close)
		}
		time.Sleep(200 * time.Millisecond)
		if c, err := net.Dial("tcp", w.addr); err == nil {
			c.Close()
			t.Fatal("the port is still open")
		}
	})
}

func TestHardStopEndsADrain(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		block := make(chan struct{})
		t.Cleanup(func() { close(block) })
		w := start(t, scripted(t, func(_ int, c *raw) { c.request(); <-block }), setup{engine: Options{HardStop: 300 * time.Millisecond}})
		c := w.dial().send(get("/"))
		w.has(1)
		began := time.Now()
		w.stop()
		_, _ = c.r.ReadByte()
		if took := time.Since(began); took > soon {
			t.Fatalf("drained for %v", took)
		}
	})
}

func TestReconnectIsAskedOfHTTP1ClientsInTheirAnswers(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{engine: Options{LeaveOver: 2 * time.Second}})
		var all []*raw
		for range 40 {
			c := w.dial()
			if res, _, _ := c.send(get("/")).answer("GET"); res.Close {
				t.Fatal("asked before")
			}
			all = append(all, c)
		}
		w.server.Reconnect(true)
		time.Sleep(500 * time.Millisecond)
		early := 0
		for _, c := range all {
			if res, _, _ := c.send(get("/")).answer("GET"); res.Close {
				early++
				c.closed()
			}
		}
		if early == 0 || early == len(all) {
			t.Fatalf("%d of %d were asked half way: not spread", early, len(all))
		}
		c := w.dial()
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if res, _, _ := c.send(get("/")).answer("GET"); res.Close {
				break
			}
			if time.Now().After(end) {
				t.Fatal("a new connection was never asked")
			}
		}
		c.closed()
		if !w.server.Ready() {
			t.Fatal("a node that is being left still serves and is ready")
		}
		w.server.Reconnect(false)
		if res, _, _ := w.dial().send(get("/")).answer("GET"); res.Close {
			t.Fatal("still asked to leave")
		}
	})
}

func TestOldConnectionsAreAskedToLeave(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		const age = 500 * time.Millisecond
		w := start(t, handler(t, echo), setup{engine: Options{MaxAge: age}})
		var c *raw
		for young := false; !young; { // a slow machine may take the whole age to connect
			began := time.Now()
			c = w.dial()
			res, _, _ := c.send(get("/")).answer("GET")
			if young = !res.Close; !young && time.Since(began) < age*4/5 {
				t.Fatal("asked at once")
			}
		}
		time.Sleep(age * 13 / 10)
		if res, _, _ := c.send(get("/")).answer("GET"); !res.Close {
			t.Fatal("not asked after its maximum age")
		}
	})
}

// G47 in small: pools live over swaps, and swapping leaks nothing (TestMain checks goroutines).
func TestSwappingSnapshotsKeepsConnections(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		var conns atomic.Int32
		up := scripted(t, func(n int, c *raw) {
			conns.Store(int32(n))
			for {
				if _, _, alive := c.request(); !alive {
					return
				}
				c.send(ok)
			}
		})
		w := start(t, up, setup{})
		c := w.dial()
		p := compile(t, 2, plainDocument, up)
		for i := range 500 {
			if err := w.server.Apply(p); err != nil {
				t.Fatal(err)
			}
			if i%50 == 0 {
				if res, _, _ := c.send(get("/")).answer("GET"); res.StatusCode != 200 {
					t.Fatal(res.StatusCode)
				}
			}
		}
		if n := conns.Load(); n != 1 {
			t.Fatalf("%d upstream connections", n)
		}
		if st := w.server.Snapshot(); st.Snapshot != 2 || len(st.Upstreams) != 1 || st.Upstreams[0].Open != 1 {
			t.Fatalf("%+v", st)
		}
		if err := w.server.Apply(compile(t, 3, plainDocument+fmt.Sprintf("  - {id: other, endpoints: [%q]}\n", up), up)); err != nil {
			t.Fatal(err)
		}
	})
}
