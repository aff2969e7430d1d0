package nodeapi

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/cellgate/cellgate/internal/loopback"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// controller is a real gRPC server with mutual TLS that records what it is told and says what it is made to.
type controller struct {
	UnimplementedControllerServer
	addr   string
	server *grpc.Server

	mu     sync.Mutex
	ups    []*Up
	blobs  map[string][]byte // sent as they are, even when they don't fit their digest
	refuse error             // what Attach answers
	polls  []*Down
	deaf   bool // Attach does not read

	downs    chan *Down
	attached atomic.Int32 // streams open now
}

func (c *controller) Attach(s grpc.BidiStreamingServer[Up, Down]) error {
	c.mu.Lock()
	refuse, deaf := c.refuse, c.deaf
	c.mu.Unlock()
	if refuse != nil {
		return refuse
	}
	c.attached.Add(1)
	defer c.attached.Add(-1)
	if !deaf {
		go func() {
			for up, err := s.Recv(); err == nil; up, err = s.Recv() {
				c.mu.Lock()
				c.ups = append(c.ups, up)
				c.mu.Unlock()
			}
		}()
	}
	for {
		select {
		case <-s.Context().Done():
			return nil
		case d := <-c.downs:
			if err := s.Send(d); err != nil {
				return err
			}
		}
	}
}

func (c *controller) Poll(context.Context, *Hello) (*PollReply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &PollReply{Messages: c.polls}, nil
}

func (c *controller) Fetch(r *FetchRequest, s grpc.ServerStreamingServer[Chunk]) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range r.GetDigests() {
		if b, ok := c.blobs[d]; ok {
			if err := SendBlob(s.Send, d, b); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *controller) count(is func(*Up) bool) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, up := range c.ups {
		if is(up) {
			n++
		}
	}
	return n
}

func hello(up *Up) bool { return up.GetHello() != nil }

// identity gives one self-signed certificate that both sides use and trust.
func identity(t *testing.T) *tls.Config {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{"peer"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, tpl, tpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, ServerName: "peer"}
}

// freeAddr is an address that nobody else wants while the test runs.
func freeAddr(t *testing.T) string { return loopback.For(t).Addr(0, 1).String() + ":7000" }

// start listens on addr ("" = any) and serves until the test ends or stop is called.
func start(t *testing.T, tc *tls.Config, addr string) *controller {
	t.Helper()
	if addr == "" {
		addr = freeAddr(t)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c := &controller{addr: l.Addr().String(), downs: make(chan *Down, 100), blobs: map[string][]byte{},
		server: grpc.NewServer(grpc.Creds(credentials.NewTLS(tc)))}
	RegisterControllerServer(c.server, c)
	done := make(chan struct{})
	go func() { defer close(done); _ = c.server.Serve(l) }()
	t.Cleanup(func() { c.server.Stop(); <-done })
	return c
}

// brisk are intervals that let a test see everything within a second or two.
func brisk() timing {
	return timing{dial: 300 * time.Millisecond, pulseEvery: 50 * time.Millisecond, pulseLimit: 250 * time.Millisecond,
		prefer: 100 * time.Millisecond, steady: time.Second, backoff: 10 * time.Millisecond, backoffMax: 50 * time.Millisecond}
}

// attach runs a client until the test ends.
func attach(t *testing.T, opt Options) *Client {
	t.Helper()
	return attachAt(t, opt, brisk())
}

func attachAt(t *testing.T, opt Options, pace timing) *Client {
	t.Helper()
	if opt.Hello == nil {
		opt.Hello = func() *Hello { return &Hello{Boot: "b", TargetNumber: 7} }
	}
	if opt.Receive == nil {
		opt.Receive = func(*Down) {}
	}
	c := NewClient(opt)
	c.timing = pace
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return c
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("did not happen: " + what)
		}
	}
}

func ack(n uint64) *Up      { return &Up{Message: &Up_Ack{Ack: &Ack{Number: n}}} }
func reportOf(b string) *Up { return &Up{Message: &Up_Report{Report: []byte(b)}} }
func target(s string) *Down {
	return &Down{Message: &Down_Target{Target: &Signed{Envelope: []byte(s)}}}
}
func isAck(n uint64) func(*Up) bool {
	return func(up *Up) bool { return up.GetAck().GetNumber() == n }
}

func TestAttachSaysHelloAndDeliversInOrder(t *testing.T) {
	tc := identity(t)
	srv := start(t, tc, "")
	var mu sync.Mutex
	var got []string
	c := attach(t, Options{Controllers: []string{srv.addr}, TLS: tc, Receive: func(d *Down) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, string(d.GetTarget().GetEnvelope()))
	}})
	var want []string
	for i := range 50 {
		want = append(want, fmt.Sprint(i))
		srv.downs <- target(fmt.Sprint(i))
	}
	eventually(t, "50 messages", func() bool { mu.Lock(); defer mu.Unlock(); return len(got) == 50 })
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Fatalf("order: %v", got)
	}
	eventually(t, "the one Hello", func() bool { return srv.count(func(up *Up) bool { return up.GetHello().GetTargetNumber() == 7 }) == 1 })
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if !c.Connected() || !hello(srv.ups[0]) {
		t.Fatal("the first message must be the Hello")
	}
}

func TestUnsentMessagesNewestOfAKindWins(t *testing.T) {
	tc := identity(t)
	addr := freeAddr(t) // nothing serves there yet
	c := attach(t, Options{Controllers: []string{addr}, TLS: tc})
	for i := range uint64(10_000) {
		c.Send(ack(i + 1))
		c.Send(reportOf(fmt.Sprint("r", i)))
	}
	if c.Connected() {
		t.Fatal("connected to nothing")
	}
	srv := start(t, tc, addr)
	eventually(t, "the newest ack and report", func() bool {
		return srv.count(isAck(10_000)) == 1 && srv.count(func(up *Up) bool { return string(up.GetReport()) == "r9999" }) == 1
	})
	if len(srv.ups) != 3 {
		t.Fatalf("%d messages, want hello, ack, report", len(srv.ups))
	}
}

func TestRestartOfTheControllerIsSurvivedAndTheAckRepeated(t *testing.T) {
	tc := identity(t)
	srv := start(t, tc, "")
	c := attach(t, Options{Controllers: []string{srv.addr}, TLS: tc})
	c.Send(ack(3))
	eventually(t, "ack", func() bool { return srv.count(isAck(3)) == 1 })
	srv.server.Stop()
	eventually(t, "loss is noticed", func() bool { return !c.Connected() })
	again := start(t, tc, srv.addr)
	eventually(t, "hello and ack again", func() bool { return again.count(hello) == 1 && again.count(isAck(3)) == 1 && c.Connected() })
}

func TestOwnRegionIsPreferredAgainWhenItIsBack(t *testing.T) {
	tc := identity(t)
	own, other := start(t, tc, ""), start(t, tc, "")
	attach(t, Options{Controllers: []string{own.addr, other.addr}, TLS: tc})
	eventually(t, "attached to own", func() bool { return own.attached.Load() == 1 })
	own.server.Stop()
	eventually(t, "attached to the other", func() bool { return other.attached.Load() == 1 })
	own = start(t, tc, own.addr)
	eventually(t, "back home", func() bool { return own.attached.Load() == 1 && other.attached.Load() == 0 })
}

func TestAControllerThatRefusesIsPassedBy(t *testing.T) {
	tc := identity(t)
	own, other := start(t, tc, ""), start(t, tc, "")
	own.refuse = status.Error(codes.FailedPrecondition, "not my region")
	attach(t, Options{Controllers: []string{own.addr, other.addr}, TLS: tc})
	eventually(t, "attached to the other", func() bool { return other.attached.Load() == 1 })
}

// A controller that refuses again and again is one line in the log, not a tick.
func TestAStandingRefusalIsLoggedOnce(t *testing.T) {
	tc := identity(t)
	srv := start(t, tc, "")
	srv.refuse = status.Error(codes.FailedPrecondition, "not my region")
	var mu sync.Mutex
	var log bytes.Buffer
	lines := func() int { mu.Lock(); defer mu.Unlock(); return strings.Count(log.String(), "\n") }
	attach(t, Options{Controllers: []string{srv.addr}, TLS: tc, Log: slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return log.Write(p)
	}), nil))})
	eventually(t, "a line", func() bool { return lines() > 0 })
	time.Sleep(400 * time.Millisecond)
	if n := lines(); n != 1 {
		t.Fatalf("%d lines:\n%s", n, log.String())
	}
	srv.mu.Lock()
	srv.refuse = nil
	srv.mu.Unlock()
	eventually(t, "attached is told", func() bool { return lines() == 2 })
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestAStrangersCertificateIsNotSpokenTo(t *testing.T) {
	srv := start(t, identity(t), "")
	c := attach(t, Options{Controllers: []string{srv.addr}, TLS: identity(t)})
	time.Sleep(300 * time.Millisecond)
	if c.Connected() || srv.count(hello) != 0 {
		t.Fatal("attached across a trust boundary")
	}
}

// relay forwards TCP until it is frozen; then the connection stays open and nothing passes.
type relay struct {
	addr   string
	frozen atomic.Bool
}

func newRelay(t *testing.T, to string) *relay {
	l, err := net.Listen("tcp", freeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{addr: l.Addr().String()}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	pipe := func(dst, src net.Conn) {
		defer wg.Done()
		defer dst.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := src.Read(buf)
			if r.frozen.Load() {
				_, _ = io.Copy(io.Discard, src) // half-open: read, acknowledged, lost
				return
			}
			if n > 0 {
				if _, err := dst.Write(buf[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, in, out)
			mu.Unlock()
			wg.Add(2)
			go pipe(in, out)
			go pipe(out, in)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return r
}

func TestABlackHoledConnectionIsNoticedAndLeft(t *testing.T) {
	tc := identity(t)
	own, other := start(t, tc, ""), start(t, tc, "")
	r := newRelay(t, own.addr)
	c := attach(t, Options{Controllers: []string{r.addr, other.addr}, TLS: tc})
	eventually(t, "attached through the relay", func() bool { return own.attached.Load() == 1 })
	r.frozen.Store(true)
	eventually(t, "attached to the other", func() bool { return other.attached.Load() == 1 })
	if !c.Connected() {
		t.Fatal("not connected")
	}
	d := defaultTiming()
	if limit := d.pulseEvery + d.pulseLimit; limit > 10*time.Second {
		t.Fatalf("a dead peer is noticed after %v only", limit)
	}
}

func TestAControllerThatStopsReadingIsLeft(t *testing.T) {
	tc := identity(t)
	own, other := start(t, tc, ""), start(t, tc, "")
	own.deaf = true
	c := attach(t, Options{Controllers: []string{own.addr, other.addr}, TLS: tc})
	eventually(t, "attached", func() bool { return own.attached.Load() == 1 })
	big := strings.Repeat("x", 1<<20)
	eventually(t, "attached to the other", func() bool {
		c.Send(reportOf(big))
		return other.attached.Load() == 1
	})
}

func TestPollIsASecondPath(t *testing.T) {
	tc := identity(t)
	srv := start(t, tc, "")
	srv.refuse = status.Error(codes.Internal, "no streams today")
	srv.polls = []*Down{target("1"), target("2")}
	var got sync.Map
	attach(t, Options{Controllers: []string{srv.addr}, TLS: tc, PollEvery: 50 * time.Millisecond,
		Polled: func(d *Down) { got.Store(string(d.GetTarget().GetEnvelope()), true) }})
	eventually(t, "polled", func() bool {
		_, one := got.Load("1")
		_, two := got.Load("2")
		return one && two
	})
}

func digest(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }

func TestFetchGivesAllBlobsVerified(t *testing.T) {
	tc := identity(t)
	srv := start(t, tc, "")
	noise := make([]byte, 3<<20) // incompressible: several chunks
	_, _ = rand.Read(noise)
	blobs := [][]byte{{}, []byte("small"), bytes.Repeat([]byte("a"), 5<<20), noise}
	var digests []string
	for i := range 2 * batch { // more than one request asks for
		blobs = append(blobs, fmt.Appendf(nil, "blob %d", i))
	}
	for _, b := range blobs {
		digests = append(digests, digest(b))
		srv.blobs[digest(b)] = b
	}
	for _, attached := range []bool{false, true} {
		c := NewClient(Options{Controllers: []string{srv.addr}, TLS: tc})
		if attached {
			c = attach(t, Options{Controllers: []string{srv.addr}, TLS: tc})
			eventually(t, "attached", c.Connected)
		}
		got, err := c.Fetch(t.Context(), digests)
		if err != nil || len(got) != len(blobs) {
			t.Fatalf("%d blobs, %v", len(got), err)
		}
		for i, d := range digests {
			if !bytes.Equal(got[d], blobs[i]) {
				t.Fatalf("blob %d differs", i)
			}
		}
	}
}

func TestFetchFillsGapsFromAnotherControllerAndRefusesForgedBlobs(t *testing.T) {
	tc := identity(t)
	one, two := start(t, tc, ""), start(t, tc, "")
	a, b := []byte("blob a"), []byte("blob b")
	one.blobs[digest(a)] = a
	one.blobs[digest(b)] = []byte("forged")
	c := NewClient(Options{Controllers: []string{one.addr, two.addr}, TLS: tc})
	if got, err := c.Fetch(t.Context(), []string{digest(a), digest(b)}); err == nil || got != nil || !strings.Contains(err.Error(), "another content") {
		t.Fatalf("got %v, %v", got, err)
	}
	two.blobs[digest(b)] = b
	two.blobs[digest(a)] = a
	if got, err := c.Fetch(t.Context(), []string{digest(a), digest(b)}); err != nil || string(got[digest(b)]) != "blob b" {
		t.Fatalf("got %v, %v", got, err)
	}
}

func TestAssemblyRefusesWhatIsTooLargeOrUnasked(t *testing.T) {
	bomb := make([]byte, MaxBlob+1)
	if err := SendBlob(func(*Chunk) error { return nil }, "d", bomb); err == nil {
		t.Fatal("a blob above the bound was sent")
	}
	a, err := newAssembly([]string{"d"})
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	if err := a.add(&Chunk{Digest: "other", Last: true}); err == nil {
		t.Fatal("took a blob that was not asked for")
	}
	if err := a.add(&Chunk{Digest: "d", Data: []byte("not zstd"), Last: true}); err == nil {
		t.Fatal("took garbage")
	}
	a.restart()
	bomb = encoders.Get().(*zstd.Encoder).EncodeAll(bomb, nil)
	if err := a.add(&Chunk{Digest: "d", Data: bomb, Last: true}); err == nil || !strings.Contains(err.Error(), "exceed") {
		t.Fatalf("a small frame that unpacks beyond the bound: %v", err)
	}
	a.restart()
	part := &Chunk{Digest: "d", Data: make([]byte, 16<<20)}
	for i := 0; ; i++ {
		if err := a.add(part); err != nil {
			break
		}
		if i > 5 {
			t.Fatal("an endless blob is collected")
		}
	}
}

func TestRunRefusesIncompleteOptions(t *testing.T) {
	if err := NewClient(Options{}).Run(t.Context()); err == nil {
		t.Fatal("ran without anything")
	}
}

// A herd that loses its controller is back soon after it, and nothing is left over from the attempts.
func TestAHerdComesBack(t *testing.T) {
	tc := identity(t)
	srv := start(t, tc, "")
	const herd = 40
	for range herd {
		attachAt(t, Options{Controllers: []string{srv.addr}, TLS: tc}, defaultTiming())
	}
	eventually(t, "all attached", func() bool { return srv.attached.Load() == herd })
	srv.server.Stop()
	srv = start(t, tc, srv.addr)
	eventually(t, "all back", func() bool { return srv.attached.Load() == herd })
}
