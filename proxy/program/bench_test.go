package program

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/path"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// world is n routes over hosts, as a snapshot and as one request for each route.
func world(t testing.TB, n, hosts int) (*snapshot.Snapshot, []Request) {
	t.Helper()
	cfg := &snapshot.Config{Upstreams: []snapshot.Upstream{{ID: "up", Endpoints: []string{"10.0.0.1:80"}}}}
	requests := make([]Request, n)
	for i := range n {
		host := fmt.Sprintf("host-%05d.example.com", i%hosts)
		r := snapshot.Route{ID: fmt.Sprintf("route-%06d", i), Upstream: "up", Owner: fmt.Sprintf("team-%02d", i%40)}
		r.Match = snapshot.Match{Host: host, Path: fmt.Sprintf("/v1/service-%d/items/{id}", i/hosts), Methods: []string{"GET", "POST"}}
		cfg.Routes = append(cfg.Routes, r)
		req, err := ParseRequest("GET", fmt.Sprintf("https://%s/v1/service-%d/items/%d", host, i/hosts, i), nil)
		if err != nil {
			t.Fatal(err)
		}
		requests[i] = *req
	}
	s, err := snapshot.Seal(cfg, snapshot.Meta{Number: 1})
	if err != nil {
		t.Fatal(err)
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(n, func(i, j int) { requests[i], requests[j] = requests[j], requests[i] })
	return s, adjacent(requests)
}

// adjacent copies the requests' texts to lie in order of use, as a proxy's have just been read and are in the cache.
func adjacent(requests []Request) []Request {
	var all strings.Builder
	for _, r := range requests {
		all.WriteString(r.Host)
		all.WriteString(string(r.Path))
	}
	text := all.String()
	for i := range requests {
		r := &requests[i]
		host, rest := text[:len(r.Host)], text[len(r.Host):]
		r.Host, r.Path, text = host, path.Clean(rest[:len(r.Path)]), rest[len(r.Path):]
	}
	return requests
}

// cpu reports the process's CPU time per iteration beside the wall time, which other work on the machine stretches.
func cpu(b *testing.B) (done func()) {
	spent := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := spent()
	return func() { b.ReportMetric(float64(spent()-before)/float64(b.N), "cpu-ns/op") }
}

// BenchmarkCompile100k is gate A5: 100,000 routes from sealed shards in less than a second on one core, < 100 MB.
func BenchmarkCompile100k(b *testing.B) {
	s, _ := world(b, 100_000, 2000)
	defer cpu(b)()
	for b.Loop() {
		p, err := Compile(s, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(p.TableBytes())/1e6, "table-MB")
	}
}

// BenchmarkCompile2k shows the size of an ordinary table.
func BenchmarkCompile2k(b *testing.B) {
	s, _ := world(b, 2000, 100)
	for b.Loop() {
		p, err := Compile(s, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(p.TableBytes())/1e6, "table-MB")
	}
}

// BenchmarkRecompileOneShard shows what a change to one route costs a node.
func BenchmarkRecompileOneShard(b *testing.B) {
	s, _ := world(b, 100_000, 2000)
	p, err := Compile(s, nil)
	if err != nil {
		b.Fatal(err)
	}
	cfg, err := snapshot.Open(s)
	if err != nil {
		b.Fatal(err)
	}
	cfg.Routes[7].Owner = "somebody-else"
	changed, err := snapshot.Seal(cfg, snapshot.Meta{Number: 2})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Compile(changed, p); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLookup100k is gate A5: uniformly random over 100,000 routes < 600 ns, 0 allocations.
func BenchmarkLookup100k(b *testing.B) {
	for _, hosts := range []int{1, 1000, 10_000} {
		b.Run(fmt.Sprintf("hosts=%d", hosts), func(b *testing.B) {
			s, requests := world(b, 100_000, hosts)
			p, err := Compile(s, nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			var m Match
			i := 0
			defer cpu(b)()
			for b.Loop() {
				if p.Lookup(&requests[i], &m) != reason.None {
					b.Fatal("lost")
				}
				if i++; i == len(requests) {
					i = 0
				}
			}
		})
	}
}

func TestEveryOfManyRoutesIsFoundWithoutAllocation(t *testing.T) {
	s, requests := world(t, 100_000, 2000)
	p, err := Compile(s, nil)
	if err != nil || p.TableBytes() > 100e6 {
		t.Fatalf("compiled to %d bytes: %v", p.TableBytes(), err)
	}
	for i := range requests {
		var m Match
		if p.Lookup(&requests[i], &m) != reason.None {
			t.Fatalf("%v is lost", requests[i])
		}
	}
	var m Match
	if n := testing.AllocsPerRun(1000, func() { p.Lookup(&requests[0], &m) }); n != 0 {
		t.Fatalf("%v allocations a look-up", n)
	}
}
