package probe

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/report"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// host is a name in the certificate of httptest's servers.
const host = "example.com"

// door is a front door with both ports whose answer can be changed.
type door struct {
	tls, plain *httptest.Server
	status     atomic.Int32
	conns      atomic.Int32 // new TLS connections
	last       atomic.Pointer[http.Request]
}

func newDoor(t *testing.T) *door {
	d := &door{}
	d.status.Store(200)
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.last.Store(r)
		w.WriteHeader(int(d.status.Load()))
	})
	d.tls, d.plain = httptest.NewUnstartedServer(answer), httptest.NewServer(answer)
	d.tls.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			d.conns.Add(1)
		}
	}
	d.tls.Config.ErrorLog = nil
	d.tls.StartTLS()
	t.Cleanup(func() { d.tls.Close(); d.plain.Close() })
	return d
}

func addr(s *httptest.Server) netip.AddrPort {
	return netip.MustParseAddrPort(s.Listener.Addr().String())
}

func (d *door) cell(id cells.CellID) cells.Cell {
	return cells.Cell{ID: id, Addresses: []netip.Addr{addr(d.tls).Addr()}, HTTPS: addr(d.tls).Port(), HTTP: addr(d.plain).Port()}
}

func roots(d *door) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(d.tls.Certificate())
	return p
}

// sink keeps the newest probe of each target.
type sink struct {
	mu   sync.Mutex
	seen map[string]report.Probe
	n    map[string]int
}

func (s *sink) send(ps []report.Probe) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range ps {
		key := string(p.Cell) + "|" + string(p.Node)
		s.seen[key] = p
		s.n[key]++
	}
}

func (s *sink) get(key string) (report.Probe, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[key], s.n[key]
}

func begin(t *testing.T, opt Options) (*Prober, *sink) {
	s := &sink{seen: map[string]report.Probe{}, n: map[string]int{}}
	opt.Host, opt.From, opt.Send = host, "e", s.send
	if opt.Every == 0 {
		opt.Every = 40 * time.Millisecond
	}
	if opt.Limit == 0 {
		opt.Limit = 200 * time.Millisecond
	}
	p := New(opt)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p, s
}

// looks is how often the prober has looked with this outcome.
func (p *Prober) looks(ok bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int(p.total[ok])
}

// A look that isn't renewed is not told again and again.
func TestOldLooksAreNotRepeated(t *testing.T) {
	p := New(Options{Every: time.Second, Limit: time.Second})
	p.record(target{cell: "e/a"}, nil, time.Millisecond)
	if got := len(p.round(time.Now())); got != 1 {
		t.Fatalf("%d", got)
	}
	if got := len(p.round(time.Now().Add(3 * time.Second))); got != 0 {
		t.Fatalf("%d", got)
	}
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("did not happen: " + what)
		}
	}
}

func topology(cs ...cells.Cell) cells.Topology {
	var t cells.Topology
	for _, c := range cs {
		t.Regions = append(t.Regions, cells.Region{ID: c.ID.Region(), Cells: []cells.Cell{c}})
	}
	return t
}

func TestFrontDoorIsProbedAsAClientWould(t *testing.T) {
	d := newDoor(t)
	prober, s := begin(t, Options{Topology: topology(d.cell("u/a")), Roots: roots(d)})
	eventually(t, "three good looks", func() bool { p, n := s.get("u/a|"); return n >= 3 && p.OK })
	p, _ := s.get("u/a|")
	if p.From != "e" || p.Latency <= 0 || p.Form != report.Form {
		t.Fatalf("%+v", p)
	}
	if r := d.last.Load(); r.Host != host || r.URL.Path != ReadyPath {
		t.Fatalf("asked for %s%s", r.Host, r.URL.Path)
	}
	if looks, conns := prober.looks(true), int(d.conns.Load()); looks < 3 || conns < looks {
		t.Fatalf("%d connections for %d looks: a look must make its own handshake", conns, looks)
	}
	d.status.Store(503)
	eventually(t, "not ready is seen", func() bool { p, _ := s.get("u/a|"); return !p.OK && strings.Contains(p.Why, "status 503") })
	d.status.Store(302)
	eventually(t, "a redirect is no readiness", func() bool { p, _ := s.get("u/a|"); return strings.Contains(p.Why, "status 302") })
}

func TestWhatFailsIsSaidInWords(t *testing.T) {
	good := newDoor(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepted by the kernel, never answered
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	on := func(id cells.CellID, a net.Addr) cells.Cell {
		ap := netip.MustParseAddrPort(a.String())
		return cells.Cell{ID: id, Addresses: []netip.Addr{ap.Addr()}, HTTPS: ap.Port()}
	}
	half := good.cell("h/a")
	half.HTTP = netip.MustParseAddrPort(closed.Addr().String()).Port()
	_, s := begin(t, Options{Topology: topology(good.cell("g/a"), on("s/a", silent.Addr()), on("c/a", closed.Addr()), on("p/a", good.plain.Listener.Addr()), half), Roots: roots(good)})
	for key, want := range map[string]string{"s/a|": "https: no answer in time", "c/a|": "https: connection refused", "p/a|": "https: ", "h/a|": "http: connection refused"} {
		eventually(t, key+" says "+want, func() bool { p, n := s.get(key); return n > 0 && !p.OK && strings.Contains(p.Why, want) })
	}
	if p, _ := s.get("g/a|"); !p.OK {
		t.Fatalf("the good cell suffers: %+v", p)
	}
	eventually(t, "the good cell is looked at at its own pace", func() bool {
		before, began := good.conns.Load(), time.Now()
		eventually(t, "20 looks at two cells", func() bool { return good.conns.Load() >= before+20 })
		return time.Since(began) < 1500*time.Millisecond // in lockstep with the silent one: 10 rounds of 200 ms
	})
}

func TestAnUnknownCertificateIsNoFrontDoor(t *testing.T) {
	d := newDoor(t)
	_, s := begin(t, Options{Topology: topology(d.cell("u/a")), Roots: x509.NewCertPool()})
	eventually(t, "refused", func() bool { p, n := s.get("u/a|"); return n > 0 && !p.OK && strings.Contains(p.Why, "certificate") })
}

func TestOnlyNodesOfTheOwnRegionAreLookedAt(t *testing.T) {
	d := newDoor(t)
	own, other := d.cell("e/a"), d.cell("u/a")
	own.Nodes = []cells.Node{{ID: "e/a/1", Address: addr(d.plain).Addr()}, {ID: "e/a/2", Address: netip.MustParseAddr("127.25.9.9")}}
	other.Nodes = []cells.Node{{ID: "u/a/1", Address: addr(d.plain).Addr()}}
	p, s := begin(t, Options{Topology: topology(own, other), Roots: roots(d)})
	eventually(t, "own nodes", func() bool {
		one, _ := s.get("e/a|e/a/1")
		two, n := s.get("e/a|e/a/2")
		return one.OK && n > 0 && !two.OK
	})
	if _, n := s.get("u/a|u/a/1"); n != 0 {
		t.Fatal("looked at another region's node")
	}
	eventually(t, "four targets in the metrics", func() bool { return testutil.CollectAndCount(p.Collector(), "cellgate_probe_success") == 4 })
	if problems, err := testutil.CollectAndLint(p.Collector()); err != nil || len(problems) > 0 {
		t.Fatal(problems, err)
	}
	if err := prometheus.NewRegistry().Register(p.Collector()); err != nil {
		t.Fatal(err)
	}
}

func TestTopologyIsReplacedWhileRunning(t *testing.T) {
	d := newDoor(t)
	p, s := begin(t, Options{Topology: topology(d.cell("u/a")), Roots: roots(d)})
	eventually(t, "first", func() bool { p, _ := s.get("u/a|"); return p.OK })
	for i := range 5 {
		p.SetTopology(topology(d.cell(cells.CellID(fmt.Sprintf("u/%d", i)))))
	}
	eventually(t, "newest", func() bool { p, _ := s.get("u/4|"); return p.OK })
	_, before := s.get("u/a|")
	time.Sleep(150 * time.Millisecond)
	if _, after := s.get("u/a|"); after != before {
		t.Fatal("still looks at the old cell")
	}
}
