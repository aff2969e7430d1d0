package upstream

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/cellgate/cellgate/snapshot"
)

// talker is an upstream whose connections the test holds, over TLS or plain; ca is empty when plain.
func talker(t *testing.T, secure bool) (addr, ca string, next func() net.Conn) {
	l, err := net.Listen("tcp", "127.22.1.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr = l.Addr().String()
	if secure {
		var pair tls.Certificate
		pair, ca = selfSigned(t, "orders.internal")
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}})
	}
	conns := make(chan net.Conn, 8)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if tc, ok := c.(*tls.Conn); ok {
				_ = tc.Handshake()
			}
			conns <- c
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return addr, ca, func() net.Conn {
		c := <-conns
		t.Cleanup(func() { c.Close() })
		return c
	}
}

func selfSigned(t *testing.T, name string) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// Whatever an upstream says between two exchanges, on a connection in the pool or handed over, nobody's request gets it for
// an answer: the connection is dropped, however short the pause was.
func TestBytesThatCameBeforeTheRequestPoisonTheConnection(t *testing.T) {
	for name, c := range map[string]struct{ secure, handed bool }{
		"plain, pooled": {false, false}, "plain, handed over": {false, true}, "TLS, pooled": {true, false}, "TLS, handed over": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			addr, ca, next := talker(t, c.secure)
			u := snapshot.Upstream{ID: "u", Endpoints: []string{addr}, Pool: snapshot.Pool{MaxConnections: 1, MaxPending: 1}}
			if c.secure {
				u.TLS = snapshot.TLS{CA: ca, ServerName: "orders.internal"}
			}
			_, p := one(t, u, Options{})
			first, err := p.Acquire(0, false, time.Now(), in(2*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			up := next()
			// One segment carries the answer and what nobody asked for. Only the answer is read, as its length says.
			if _, err := up.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")); err != nil {
				t.Fatal(err)
			}
			if _, err := up.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Millisecond)
			if c.secure { // each record is read alone, so the codec sees no surplus
				_ = first.SetReadDeadline(in(time.Second))
				if err := first.ReadHead(); err != nil || len(first.Buffered()) > 0 {
					t.Fatal(err, first.Buffered())
				}
			}
			got := make(chan *Conn, 1)
			acquire := func() {
				c, err := p.Acquire(0, false, time.Now(), in(2*time.Second))
				if err != nil {
					t.Error(err)
				}
				got <- c
			}
			if c.handed {
				go acquire()
				for p.stats(time.Now()).Pending == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			p.Release(first, true, time.Now())
			if !c.handed {
				go acquire()
			}
			second := <-got
			if second == first || second.Reused {
				t.Fatal("a connection that had something to say was given out")
			}
			p.Release(second, true, time.Now())
			third, err := p.Acquire(0, false, time.Now(), in(2*time.Second))
			if err != nil || third != second {
				t.Fatalf("a quiet connection was not used again: %v", err)
			}
			p.Release(third, false, time.Now())
			if st := p.stats(time.Now()); st.Open != 0 {
				t.Fatalf("%+v", st)
			}
		})
	}
}
