package etcd_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/internal/loopback"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/store/etcd"
	"github.com/cellgate/cellgate/store/etcd/server"
	"github.com/cellgate/cellgate/store/storetest"
	"github.com/cellgate/cellgate/trust"
)

// cluster is a world's CA and one embedded member, behind a relay whose connections can be broken.
type cluster struct {
	t      testing.TB
	ca     *trust.CA
	roots  *trust.Roots
	dir    string
	block  *loopback.Block
	ports  uint16 // given out
	addr   netip.AddrPort
	relay  *relay
	issued int
}

func (c *cluster) file(name string, b []byte) string {
	p := filepath.Join(c.dir, name)
	if err := os.WriteFile(p, b, 0o600); err != nil {
		c.t.Fatal(err)
	}
	return p
}

func (c *cluster) issue(role trust.Role, id cells.NodeID) (certFile, keyFile string) {
	c.t.Helper()
	ips := []netip.Addr{c.addr.Addr()}
	cert, key, err := c.ca.Issue(trust.Identity{World: c.ca.World(), Role: role, ID: id}, ips, nil, time.Now(), time.Hour)
	if err != nil {
		c.t.Fatal(err)
	}
	c.issued++
	name := fmt.Sprint(role, c.issued)
	return c.file(name+".crt", cert), c.file(name+".key", key)
}

func (c *cluster) clientTLS(role trust.Role) *tls.Config {
	c.t.Helper()
	signer, err := trust.LoadSigner(c.issue(role, "eu-west/1"))
	if err != nil {
		c.t.Fatal(err)
	}
	return trust.ClientTLS(signer, c.roots, trust.RoleEtcd)
}

// freePort is an address that nobody else wants while the test runs.
func (c *cluster) freePort() netip.AddrPort {
	c.ports++
	return netip.AddrPortFrom(c.block.Addr(0, 1), 7000+c.ports)
}

// world makes the CA of a world without members.
func world(t testing.TB) *cluster {
	t.Helper()
	ca, err := trust.NewCA("gw.test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, ca: ca, dir: t.TempDir(), block: loopback.For(t)}
	c.addr = c.freePort()
	if c.roots, err = trust.LoadRoots(c.file("ca.crt", ca.CertPEM())); err != nil {
		t.Fatal(err)
	}
	return c
}

// member is one etcd that can be stopped and started again on its data.
type member struct {
	t      testing.TB
	config server.Config
	stop   context.CancelFunc
	ready  chan struct{}
	done   chan error
}

func (c *cluster) member(name string, addr netip.AddrPort, set func(*server.Config)) *member {
	c.t.Helper()
	cert, key := c.issue(trust.RoleEtcd, "eu-west/1")
	m := &member{t: c.t, config: server.Config{
		Name: name, Dir: filepath.Join(c.dir, name), Addr: addr, Peer: c.freePort(), Cert: cert, Key: key,
		CA: filepath.Join(c.dir, "ca.crt"), Heartbeat: 10 * time.Millisecond,
	}}
	if set != nil {
		set(&m.config)
	}
	return m
}

func (m *member) run() {
	m.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	m.stop, m.ready, m.done = cancel, ready, done
	config := m.config
	config.Ready = func() { close(ready) }
	go func() { done <- server.Run(ctx, config) }()
	m.t.Cleanup(m.end)
}

func (m *member) wait() {
	m.t.Helper()
	select {
	case <-m.ready:
	case err := <-m.done:
		m.t.Fatal(err)
	case <-time.After(2 * time.Minute):
		m.t.Fatal("the member is not ready")
	}
}

// end stops the member, once.
func (m *member) end() {
	if m.stop == nil {
		return
	}
	m.stop()
	m.stop = nil
	if err := <-m.done; err != nil {
		m.t.Error(err)
	}
}

func start(t testing.TB) *cluster {
	t.Helper()
	c := world(t)
	m := c.member("eu-west", c.addr, nil)
	m.run()
	m.wait()
	c.relay = c.newRelay()
	return c
}

func (c *cluster) open(prefix string) *etcd.Store {
	c.t.Helper()
	s, err := etcd.Open(etcd.Config{Endpoints: []string{"https://" + c.relay.addr}, TLS: c.clientTLS(trust.RoleController), Prefix: prefix})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { s.Close() })
	return s
}

func (c *cluster) compact(rev store.Revision) {
	c.t.Helper()
	raw, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + c.addr.String()}, TLS: c.clientTLS(trust.RoleController), Logger: zap.NewNop()})
	if err != nil {
		c.t.Fatal(err)
	}
	defer raw.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := raw.Compact(ctx, int64(rev)); err != nil {
		c.t.Fatal(err)
	}
}

// relay forwards TCP connections until they are broken.
type relay struct {
	addr  string
	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func (c *cluster) newRelay() *relay {
	ln, err := net.Listen("tcp", c.freePort().String())
	if err != nil {
		c.t.Fatal(err)
	}
	r := &relay{addr: ln.Addr().String(), conns: map[net.Conn]struct{}{}}
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			go r.forward(in, c.addr.String())
		}
	}()
	c.t.Cleanup(func() { ln.Close(); r.cut() })
	return r
}

func (r *relay) forward(in net.Conn, to string) {
	out, err := net.Dial("tcp", to)
	if err != nil {
		in.Close()
		return
	}
	r.mu.Lock()
	r.conns[in], r.conns[out] = struct{}{}, struct{}{}
	r.mu.Unlock()
	for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
		go func() {
			io.Copy(pair[0], pair[1])
			pair[0].Close()
			pair[1].Close()
		}()
	}
}

func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		c.Close()
	}
	clear(r.conns)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	c := start(t)
	var world atomic.Int32
	storetest.Run(t, func(t *testing.T) storetest.World {
		prefix := fmt.Sprintf("world%d/", world.Add(1))
		return storetest.World{
			MinLease:  time.Second,
			Open:      func() store.Store { return c.open(prefix) },
			Compact:   c.compact,
			Reconnect: c.relay.cut,
		}
	})
}

func TestWholeKeySpaceListsWithoutAPrefix(t *testing.T) {
	t.Parallel()
	s := start(t).open("")
	for _, key := range []string{"b", "\xff", "a"} {
		if _, err := s.Commit(t.Context(), nil, []store.Op{store.Put(key, nil)}); err != nil {
			t.Fatal(err)
		}
	}
	entries, _, err := s.List(t.Context(), "")
	if err != nil || len(entries) != 3 || entries[2].Key != "\xff" {
		t.Fatalf("%v, %v", entries, err)
	}
}

func TestOnlyControllersTalkToEtcd(t *testing.T) {
	t.Parallel()
	c := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	s, err := etcd.Open(etcd.Config{Endpoints: []string{"https://" + c.addr.String()}, TLS: c.clientTLS(trust.RoleProxy)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, _, err := s.List(ctx, ""); err == nil {
		t.Fatal("a proxy read the store")
	}
	if _, _, err := c.open("").List(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
}

// A watch at the compacted revision itself is legal: whoever has seen everything up to a revision misses nothing when
// exactly that much is compacted, and must not pay a reset for it.
func TestWatchAtTheCompactedRevisionGoesOnWithoutReset(t *testing.T) {
	t.Parallel()
	c := start(t)
	s := c.open("")
	events := s.Watch(t.Context(), "a/")
	first := <-events
	if !first.Reset {
		t.Fatalf("%+v", first)
	}
	for i := range 5 {
		commit(t, s, fmt.Sprint("a/", i))
		ev := next(t, events)
		if ev.Reset || len(ev.Entries) != 1 || ev.Entries[0].Key != fmt.Sprint("a/", i) {
			t.Fatalf("round %d: %+v", i, ev)
		}
		c.compact(ev.Revision)
		c.relay.cut()
	}
}

// What a quiet watch has not read is never skipped: other prefixes move the store's revision on, connections break,
// and the one change that matters arrives all the same, and just once.
func TestQuietWatchSkipsNoRevision(t *testing.T) {
	t.Parallel()
	c := start(t)
	s := c.open("")
	events := s.Watch(t.Context(), "quiet/")
	next(t, events)
	for i := range 4 {
		for j := range 25 {
			commit(t, s, fmt.Sprint("busy/", j))
		}
		done := make(chan struct{})
		go func() { defer close(done); c.relay.cut() }()
		commit(t, s, fmt.Sprint("quiet/", i))
		<-done
		if ev := next(t, events); ev.Reset || len(ev.Entries) != 1 || ev.Entries[0].Key != fmt.Sprint("quiet/", i) {
			t.Fatalf("round %d: %+v", i, ev)
		}
	}
}

func commit(t *testing.T, s store.Store, key string) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, err := s.Get(t.Context(), key); err == nil {
			if _, err := s.Commit(t.Context(), nil, []store.Op{store.Delete(key)}); err != nil {
				continue
			}
		}
		_, err := s.Commit(t.Context(), []store.Cond{store.Absent(key)}, []store.Op{store.Put(key, nil)})
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
		if _, err := s.Get(t.Context(), key); err == nil {
			return // failed but persisted
		}
	}
}

func next(t *testing.T, events <-chan store.Event) store.Event {
	t.Helper()
	select {
	case ev, ok := <-events:
		if !ok {
			t.Fatal("the watch has ended")
		}
		return ev
	case <-time.After(2 * time.Minute):
		t.Fatal("no event")
	}
	panic("unreachable")
}

func TestOpenedBeforeTheClusterIsUp(t *testing.T) {
	t.Parallel()
	s, err := etcd.Open(etcd.Config{Endpoints: []string{"https://" + loopback.For(t).Addr(0, 1).String() + ":2379"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.Get(ctx, "a"); err == nil {
		t.Fatal("nobody answered")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Open(etcd.Config{}); err == nil {
		t.Fatal("no endpoints were taken")
	}
}

// However long a cluster was away, its return is noticed at once.
func TestAClusterThatIsAwayIsTriedAgainAllTheTime(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", loopback.For(t).Addr(0, 1).String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s, err := etcd.Open(etcd.Config{Endpoints: []string{"http://" + l.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	go func() {
		for t.Context().Err() == nil {
			s.Get(t.Context(), "a")
		}
	}()
	l.(*net.TCPListener).SetDeadline(time.Now().Add(15 * time.Second))
	for try := range 10 { // with pauses that grow for ever it would be the eighth by then
		c, err := l.Accept()
		if err != nil {
			t.Fatalf("after %d tries: %v", try, err)
		}
		c.Close()
	}
}
