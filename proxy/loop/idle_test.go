//go:build linux

package loop

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/proxy/engine"
)

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A connection that has carried a request and waits for the next holds no buffer and no exchange.
func TestAnIdleConnectionTakesLessThanAKilobyte(t *testing.T) {
	w := start(t, steady(t), "max_connections: 20", Options{Loops: 2})
	at := netip.MustParseAddrPort(w.addr)
	const clients = 2000
	before := heap()
	for range clients {
		fd, _, err := dial(at) // without the memory that a net.Conn takes
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(int(fd)) })
		if err := unix.SetNonblock(int(fd), false); err != nil {
			t.Fatal(err)
		}
		pollFor(t, fd, unix.POLLOUT)
		if _, err := unix.Write(int(fd), []byte(get)); err != nil {
			t.Fatal(err)
		}
		pollFor(t, fd, unix.POLLIN)
	}
	until(t, "all to be idle", func() bool { return w.server.InFlight.Load() == 0 })
	if each := int64(heap()-before) / clients; each > 1000 {
		t.Errorf("%d bytes for each of %d connections", each, clients)
	} else {
		t.Logf("%d bytes each", each)
	}
}

func pollFor(t testing.TB, fd int32, events int16) {
	t.Helper()
	until(t, "a socket to become ready", func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: fd, Events: events}}, 1000)
		return err == nil && n == 1
	})
}

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
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, pool
}

// Both ends of a TLS connection are crypto/tls's and in this process: together they stay below what one may take.
func TestAnIdleTLSConnectionTakesLessThan16Kilobytes(t *testing.T) {
	cert, roots := selfSigned(t)
	w := start(t, steady(t), "max_connections: 20", Options{Loops: 1})
	l := listen(t)
	other := New(w.server, Options{Loops: 1, Options: engine.Options{HardStop: time.Second}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- other.Run(ctx, engine.Listener{Listener: l, TLS: &tls.Config{Certificates: []tls.Certificate{cert}}})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	const clients = 200
	before := heap()
	for range clients {
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		tc := tls.Client(nc, &tls.Config{RootCAs: roots, ServerName: "a.example"})
		if _, err := io.WriteString(tc, get); err != nil {
			t.Fatal(err)
		}
		if _, err := tc.Read(make([]byte, 512)); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "all to be idle", func() bool { return w.server.InFlight.Load() == 0 })
	if each := int64(heap()-before) / clients; each > 16<<10 {
		t.Errorf("%d bytes for both ends of each connection", each)
	} else {
		t.Logf("%d bytes for both ends", each)
	}
}

// What crypto/tls is given comes record by record, however the network cuts it, and none of it is lost at a temporary error.
func TestTLSGoesOnAfterATemporaryError(t *testing.T) {
	cert, roots := selfSigned(t)
	here, there := net.Pipe()
	defer here.Close()
	sending := tls.Client(here, &tls.Config{RootCAs: roots, ServerName: "a.example"})
	d := &dripping{Conn: there}
	receiving := tls.Server(d, &tls.Config{Certificates: []tls.Certificate{cert}})
	go func() {
		_ = sending.Handshake()
		for range 50 {
			_, _ = io.WriteString(sending, get)
		}
		sending.Close()
	}()
	if err := receiving.Handshake(); err != nil {
		t.Fatal(err)
	}
	d.drip = true
	var got []byte
	b := make([]byte, 1<<10)
	for {
		n, err := receiving.Read(b)
		got = append(got, b[:n]...)
		if err == io.EOF {
			break
		}
		if err != nil && err != (errAgain{}) {
			t.Fatal(err)
		}
	}
	if len(got) != 50*len(get) || d.refused < 1000 {
		t.Fatalf("%d bytes of %d, after %d temporary errors", len(got), 50*len(get), d.refused)
	}
}

// dripping gives one byte at a time, with a temporary error ahead of each.
type dripping struct {
	net.Conn
	drip, gave bool
	refused    int
}

func (d *dripping) Read(p []byte) (int, error) {
	if !d.drip {
		return d.Conn.Read(p)
	}
	if d.gave = !d.gave; !d.gave {
		return d.Conn.Read(p[:1])
	}
	d.refused++
	return 0, errAgain{}
}
