package upstream

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cellgate/cellgate/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sink accepts connections and keeps them open until the test ends.
func sink(t *testing.T) string {
	l, err := net.Listen("tcp", "127.22.1.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all []net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			all = append(all, c)
			mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
		for _, c := range all {
			c.Close()
		}
	})
	return l.Addr().String()
}

func one(t *testing.T, u snapshot.Upstream, o Options) (*Registry, *Pool) {
	t.Helper()
	if o.Allow.Upstreams == nil {
		o.Allow = snapshot.Loopback()
	}
	r := NewRegistry(o)
	pools, err := r.Pools([]snapshot.Upstream{u})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Retire(nil) })
	return r, pools[0]
}

func in(d time.Duration) time.Time { return time.Now().Add(d) }

func TestPoolIsABulkhead(t *testing.T) {
	_, p := one(t, snapshot.Upstream{ID: "u", Endpoints: []string{sink(t)}, Pool: snapshot.Pool{MaxConnections: 2, MaxPending: 1}}, Options{})
	a, err := p.Acquire(0, false, time.Now(), in(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.Acquire(0, false, time.Now(), in(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *Conn, 1)
	go func() {
		c, err := p.Acquire(0, false, time.Now(), in(2*time.Second))
		if err != nil {
			t.Error(err)
		}
		got <- c
	}()
	for p.stats(time.Now()).Pending == 0 {
		time.Sleep(time.Millisecond)
	}
	if _, err := p.Acquire(0, false, time.Now(), in(time.Second)); !errors.Is(err, ErrPoolFull) {
		t.Fatalf("beyond the queue: %v", err)
	}
	p.Release(a, true, time.Now())
	c := <-got
	if c != a || !c.Reused {
		t.Fatal("the released connection was not handed to the one who waited")
	}
	go func() {
		c, err := p.Acquire(0, false, time.Now(), in(2*time.Second))
		if err != nil {
			t.Error(err)
		}
		got <- c
	}()
	for p.stats(time.Now()).Pending == 0 {
		time.Sleep(time.Millisecond)
	}
	p.Release(b, false, time.Now()) // a broken connection frees its place
	d := <-got
	if d == b || d.Reused {
		t.Fatal("no new connection in the freed place")
	}
	if _, err := p.Acquire(0, false, time.Now(), in(30*time.Millisecond)); !errors.Is(err, ErrNoTime) {
		t.Fatalf("waiting past the deadline: %v", err)
	}
	p.Release(c, true, time.Now())
	p.Release(d, true, time.Now())
	if st := p.stats(time.Now()); st.Open != 2 || st.Idle != 2 || st.Pending != 0 {
		t.Fatalf("%+v", st)
	}
}

// Whatever happens, connections are never more than the bound and none is lost from the count.
func TestPoolCountsStayRightUnderContention(t *testing.T) {
	_, p := one(t, snapshot.Upstream{ID: "u", Endpoints: []string{sink(t), sink(t), "127.22.1.1:1"}, Pool: snapshot.Pool{MaxConnections: 4, MaxPending: 50}}, Options{})
	var wg sync.WaitGroup
	for g := range 30 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 60 {
				c, err := p.Acquire((g+i)%3, i%7 == 0, time.Now(), in(20*time.Millisecond))
				if err != nil {
					continue
				}
				if st := p.stats(time.Now()); st.Open > 4 || st.Idle > st.Open || st.Idle < 0 {
					t.Errorf("%+v", st)
				}
				p.Release(c, (g+i)%4 != 0, time.Now())
			}
		}()
	}
	wg.Wait()
	if st := p.stats(time.Now()); st.Open != st.Idle || st.Pending != 0 || st.Open < 0 {
		t.Fatalf("after all: %+v", st)
	}
}

func TestAnIdleConnectionOfAnotherEndpointMakesRoom(t *testing.T) {
	_, p := one(t, snapshot.Upstream{ID: "u", Endpoints: []string{sink(t), sink(t)}, Pool: snapshot.Pool{MaxConnections: 1}}, Options{})
	c, err := p.Acquire(0, false, time.Now(), in(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	p.Release(c, true, time.Now())
	c, err = p.Acquire(1, false, time.Now(), in(time.Second))
	if err != nil || c.Endpoint != 1 {
		t.Fatal(err)
	}
	p.Release(c, true, time.Now())
}

func TestOldConnectionsAreNotReused(t *testing.T) {
	r, p := one(t, snapshot.Upstream{ID: "u", Endpoints: []string{sink(t)}}, Options{})
	c, err := p.Acquire(0, false, time.Now(), in(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	p.Release(c, true, time.Now().Add(maxAge))
	if st := p.stats(time.Now()); st.Open != 0 {
		t.Fatalf("past its maximum age: %+v", st)
	}
	c, _ = p.Acquire(0, false, time.Now(), in(time.Second))
	p.Release(c, true, time.Now())
	r.Sweep(time.Now().Add(idleTimeout + time.Second))
	if st := p.stats(time.Now()); st.Open != 0 || st.Idle != 0 {
		t.Fatalf("idle for too long: %+v", st)
	}
}

func TestUnchangedUpstreamsKeepTheirPoolAndDroppedOnesLetGo(t *testing.T) {
	u := snapshot.Upstream{ID: "u", Endpoints: []string{sink(t)}}
	r, p := one(t, u, Options{})
	busy, err := p.Acquire(0, false, time.Now(), in(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	again, _ := r.Pools([]snapshot.Upstream{u})
	if again[0] != p {
		t.Fatal("an unchanged upstream got a new pool")
	}
	changed := u
	changed.Balance = "round_robin"
	other, _ := r.Pools([]snapshot.Upstream{changed})
	if other[0] == p {
		t.Fatal("a changed upstream kept its pool")
	}
	r.Retire(other)
	p.Release(busy, true, time.Now())
	if st := p.stats(time.Now()); st.Open != 0 {
		t.Fatalf("a dropped pool keeps %+v", st)
	}
}

// The address is judged after resolution, at the moment of dialling: a name that turns to a forbidden one gains nothing.
func TestForbiddenAddressesAreNotDialled(t *testing.T) {
	target := netip.MustParseAddrPort(sink(t))
	answer := target.Addr()
	lookup := func(context.Context, string, string) ([]netip.Addr, error) { return []netip.Addr{answer}, nil }
	u := snapshot.Upstream{ID: "u", Endpoints: []string{netip.AddrPortFrom(target.Addr(), target.Port()).String(), "rebind.example:80", "169.254.169.254:80"}, TLS: snapshot.TLS{Off: true}}
	strict := snapshot.Allow{Upstreams: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	_, p := one(t, u, Options{Allow: strict, Lookup: lookup})
	for i := range u.Endpoints {
		if _, err := p.Acquire(i, false, time.Now(), in(time.Second)); !errors.Is(err, ErrForbidden) {
			t.Errorf("%s: %v", u.Endpoints[i], err)
		}
	}
	if st := p.stats(time.Now()); st.Open != 0 {
		t.Fatalf("%+v", st)
	}
}

func TestUpstreamTLSIsVerified(t *testing.T) {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"orders.internal"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.22.1.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.(*tls.Conn).Handshake()
			c.Close()
		}
	}()
	defer func() { l.Close(); <-done }()
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	for name, c := range map[string]struct {
		tls snapshot.TLS
		ok  bool
	}{
		"right name and CA": {snapshot.TLS{CA: ca, ServerName: "orders.internal"}, true},
		"wrong name":        {snapshot.TLS{CA: ca, ServerName: "other.internal"}, false},
		"unknown CA":        {snapshot.TLS{ServerName: "orders.internal"}, false},
		"address as name":   {snapshot.TLS{CA: ca}, false},
	} {
		_, p := one(t, snapshot.Upstream{ID: name, Endpoints: []string{l.Addr().String()}, TLS: c.tls}, Options{})
		conn, err := p.Acquire(0, false, time.Now(), in(2*time.Second))
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			p.Release(conn, false, time.Now())
		}
	}
	if _, err := NewRegistry(Options{}).Pools([]snapshot.Upstream{{ID: "x", Endpoints: []string{"a:1"}, TLS: snapshot.TLS{CA: "none"}}}); err == nil {
		t.Error("a CA without a certificate was taken")
	}
}

// An endpoint that is out for failing stays out when the definition of its upstream changes, so does the retry budget;
// one that leaves the upstream and comes back begins anew.
func TestWhatIsKnownOfAnEndpointOutlastsADefinition(t *testing.T) {
	now := time.Now()
	u := snapshot.Upstream{ID: "u", Endpoints: []string{"127.22.1.1:1", "127.22.1.1:2", "127.22.1.1:3"}}
	r, p := one(t, u, Options{})
	for range 10 {
		p.Set.Begin(1)
		p.Set.End(1, false, time.Millisecond, now)
	}
	if !p.Set.Ejected(1, now) {
		t.Fatal("not ejected to begin with")
	}
	swap := func(endpoints ...string) *Pool {
		t.Helper()
		u.Endpoints = endpoints
		pools, err := r.Pools([]snapshot.Upstream{u, {ID: "other", Endpoints: []string{"127.22.1.1:2"}}})
		if err != nil {
			t.Fatal(err)
		}
		r.Retire(pools)
		if pools[1].Set.Ejected(0, now) {
			t.Fatal("one upstream's failures count against another")
		}
		return pools[0]
	}
	next := swap("127.22.1.1:2", "127.22.1.1:9")
	if next == p || !next.Set.Ejected(0, now) || next.Set.Ejected(1, now) || next.Budget != p.Budget {
		t.Fatal("an ejected endpoint came in again with a new definition")
	}
	swap("127.22.1.1:9")
	if back := swap("127.22.1.1:2"); back.Set.Ejected(0, now) {
		t.Fatal("what had left is still remembered")
	}
}

// A listener whose queue is full lets no connection be made: connecting ends at the upstream's own time, long before the
// exchange's.
func TestConnectingHasItsOwnTimer(t *testing.T) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 22, 1, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, _ := syscall.Getsockname(fd)
	addr := netip.AddrPortFrom(netip.AddrFrom4(name.(*syscall.SockaddrInet4).Addr), uint16(name.(*syscall.SockaddrInet4).Port)).String()
	for range 4 { // fill the queue
		c, err := net.DialTimeout("tcp", addr, 50*time.Millisecond)
		if err == nil {
			defer c.Close()
		}
	}
	_, p := one(t, snapshot.Upstream{ID: "u", Endpoints: []string{addr}, Timeouts: snapshot.Timeouts{Connect: 80 * time.Millisecond}}, Options{})
	began := time.Now()
	_, err = p.Acquire(0, false, began, in(5*time.Second))
	if took := time.Since(began); err == nil || took < 60*time.Millisecond || took > time.Second {
		t.Fatalf("%v after %v", err, took)
	}
}

// G75: a session with an upstream is that of its definition: a new client certificate or CA is shown and checked in full.
func TestSessionsWithAnUpstreamAreItsDefinitionsAlone(t *testing.T) {
	pair := func(name string) (tls.Certificate, string) {
		key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
		der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		raw, _ := x509.MarshalPKCS8PrivateKey(key)
		return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
			string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})) + string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))
	}
	server, ca := pair("orders.internal")
	l, err := tls.Listen("tcp", "127.22.1.1:0", &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAnyClientCert})
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			tc := c.(*tls.Conn)
			_ = tc.Handshake()
			said <- fmt.Sprint(tc.ConnectionState().PeerCertificates[0].Subject.CommonName, " ", tc.ConnectionState().DidResume)
			_, _ = tc.Write([]byte("HTTP/1.1 200 OK\r\n\r\n")) // behind the ticket
			c.Close()
		}
	}()
	defer func() { l.Close(); <-done }()
	for _, name := range []string{"one", "two"} {
		_, client := pair(name)
		_, p := one(t, snapshot.Upstream{ID: "u", Endpoints: []string{l.Addr().String()}, TLS: snapshot.TLS{CA: ca, ServerName: "orders.internal", ClientCert: client}}, Options{})
		for i, want := range []string{name + " false", name + " true"} {
			c, err := p.Acquire(0, true, time.Now(), in(5*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			c.ArmRead(time.Now(), 5*time.Second, in(5*time.Second))
			if err := c.ReadHead(); err != nil {
				t.Fatal(err)
			}
			p.Release(c, false, time.Now())
			if got := <-said; got != want {
				t.Errorf("%s, connection %d: %s", name, i, got)
			}
		}
	}
}
