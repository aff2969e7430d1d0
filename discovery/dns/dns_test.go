package dns

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/cellgate/cellgate/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// zone is a server whose records and return code may be changed.
type zone struct {
	mu    sync.Mutex
	all   []dns.RR
	rcode int
	asked int
	cut   bool // over UDP
	other bool // the answers name another question
}

func (z *zone) set(t *testing.T, rcode int, records ...string) {
	t.Helper()
	z.mu.Lock()
	defer z.mu.Unlock()
	z.all, z.rcode = nil, rcode
	for _, text := range records {
		rr, err := dns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		z.all = append(z.all, rr)
	}
}

func (z *zone) truncate(yes bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.cut = yes
}

func (z *zone) mixUp(yes bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.other = yes
}

func (z *zone) times() int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.asked
}

func (z *zone) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.asked++
	m := new(dns.Msg)
	m.SetRcode(q, z.rcode)
	if _, udp := w.RemoteAddr().(*net.UDPAddr); z.cut && udp {
		m.Truncated = true
	} else {
		for _, rr := range z.all {
			if h := rr.Header(); h.Name == q.Question[0].Name && h.Rrtype == q.Question[0].Qtype && z.rcode == 0 {
				m.Answer = append(m.Answer, rr)
			}
		}
	}
	if z.other {
		m.Question[0].Name = "b.test."
	}
	_ = w.WriteMsg(m)
}

// serve starts a zone's server.
func serve(t *testing.T) (*zone, string) {
	z := &zone{}
	return z, handle(t, z)
}

// handle starts a server on UDP and TCP.
func handle(t *testing.T, h dns.Handler) string {
	p, err := net.ListenPacket("udp", "127.22.3.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", p.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*dns.Server{{PacketConn: p, Handler: h}, {Listener: l, Handler: h}} {
		started, ended := make(chan struct{}), make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() { defer close(ended); _ = s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { _ = s.Shutdown(); <-ended })
	}
	return p.LocalAddr().String()
}

// follow follows a name, and gives the sets that are told.
func follow(t *testing.T, name string, o Options) chan []string {
	told := make(chan []string, 100)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	o.floor = 20 * time.Millisecond
	go func() {
		defer close(done)
		New(o).Follow(ctx, name, func(all []snapshot.Endpoint) {
			var names []string
			for _, e := range all {
				names = append(names, e.Address)
			}
			told <- names
		})
	}()
	t.Cleanup(func() { stop(); <-done })
	return told
}

func next(t *testing.T, told chan []string, want ...string) {
	t.Helper()
	select {
	case got := <-told:
		if !slices.Equal(got, want) {
			t.Fatalf("told %v, not %v", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("nothing told, not %v", want)
	}
}

func TestAddressesAreFollowedByTheirTTL(t *testing.T) {
	z, server := serve(t)
	z.set(t, 0, "a.test. 0 A 10.0.0.2", "a.test. 0 A 10.0.0.1", "a.test. 0 AAAA fd00::1")
	told := follow(t, "a.test:80", Options{Servers: []string{server}})
	next(t, told, "10.0.0.1:80", "10.0.0.2:80", "[fd00::1]:80")
	z.set(t, 0, "a.test. 3600 A 10.0.0.3")
	next(t, told, "10.0.0.3:80")
	z.set(t, 0, "a.test. 3600 A 10.0.0.4")
	n := z.times()
	time.Sleep(200 * time.Millisecond)
	if z.times() != n {
		t.Fatal("asked again within an hour's TTL")
	}
}

// RFC 6761, section 6.3: names that mean this machine are asked of nobody.
func TestThisMachineIsLookedUpNowhere(t *testing.T) {
	z, server := serve(t)
	z.set(t, dns.RcodeNameError)
	for _, name := range []string{"localhost:80", "LocalHost.:80", "a.localhost:80"} {
		next(t, follow(t, name, Options{Servers: []string{server}}), "127.0.0.1:80")
	}
	if z.times() != 0 {
		t.Error("a server was asked")
	}
}

// An error is no empty set; that there is none has to be said for a while.
func TestFailuresKeepWhatIsKnown(t *testing.T) {
	z, server := serve(t)
	z.set(t, 0, "a.test. 0 A 10.0.0.1")
	told := follow(t, "a.test:80", Options{Servers: []string{"127.22.3.1:1", server}, hold: 2 * time.Second})
	next(t, told, "10.0.0.1:80")
	for _, rcode := range []int{dns.RcodeServerFailure, dns.RcodeRefused, dns.RcodeNameError} {
		z.set(t, rcode)
		n := z.times()
		for z.times() < n+3 {
			time.Sleep(5 * time.Millisecond)
		}
		select {
		case got := <-told:
			t.Fatalf("%s: told %v", dns.RcodeToString[rcode], got)
		default:
		}
	}
	next(t, told) // none, for long enough
	z.set(t, 0, "a.test. 0 A 10.0.0.1")
	next(t, told, "10.0.0.1:80")
}

// RFC 5452, section 9.1.
func TestAnswersToOtherQuestionsAreNone(t *testing.T) {
	z, server := serve(t)
	z.set(t, 0, "a.test. 0 A 10.0.0.1")
	told := follow(t, "a.test:80", Options{Servers: []string{server}})
	next(t, told, "10.0.0.1:80")
	z.mixUp(true)
	z.set(t, 0, "a.test. 0 A 10.0.0.2")
	for n := z.times(); z.times() < n+3; time.Sleep(5 * time.Millisecond) {
	}
	z.set(t, 0, "a.test. 0 A 10.0.0.3")
	z.mixUp(false)
	next(t, told, "10.0.0.3:80")
}

func TestServicesBringTheirPortsAndPriorities(t *testing.T) {
	z, server := serve(t)
	z.set(t, 0, "_o._tcp.test. 0 SRV 10 1 8080 a.test.", "_o._tcp.test. 0 SRV 10 9 8081 b.test.", "_o._tcp.test. 0 SRV 20 1 9090 c.test.", "_o._tcp.test. 0 SRV 10 1 0 a.test.",
		"a.test. 0 A 10.0.0.1", "b.test. 0 A 10.0.0.2", "b.test. 0 A 10.0.0.1", "c.test. 0 A 10.0.0.3")
	z.truncate(true)
	told := follow(t, "_o._tcp.test", Options{Servers: []string{server}})
	next(t, told, "10.0.0.1:8080", "10.0.0.1:8081", "10.0.0.2:8081")
	z.set(t, 0, "_o._tcp.test. 0 SRV 20 1 9090 c.test.", "c.test. 0 A 10.0.0.3")
	next(t, told, "10.0.0.3:9090")
}

func TestTooManyEndpointsAreCutAtTheSamePlaceEverywhere(t *testing.T) {
	z, server := serve(t)
	var records []string
	a := netip.MustParseAddr("10.0.0.0")
	for range maxEndpoints + 20 {
		a = a.Next()
		records = append(records, "a.test. 0 A "+a.String())
	}
	z.set(t, 0, records...)
	z.truncate(true)
	var log strings.Builder // written to before a set is told, read after the next
	told := follow(t, "a.test:80", Options{Servers: []string{server}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if got := <-told; len(got) != maxEndpoints || !slices.IsSorted(got) {
		t.Fatalf("%d endpoints", len(got))
	}
	for n := z.times(); z.times() < n+10; time.Sleep(time.Millisecond) {
	}
	z.set(t, 0, "a.test. 0 A 10.0.0.1")
	next(t, told, "10.0.0.1:80")
	if n := strings.Count(log.String(), "too many"); n != 1 {
		t.Errorf("said %d times for one set", n)
	}
}
