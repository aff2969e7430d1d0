package traces

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cellgate/cellgate/internal/otlpsink"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/record"
	"github.com/cellgate/cellgate/proxy/retry"
	"github.com/cellgate/cellgate/proxy/tracecontext"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const loopback = "127.73.1.1:0"

// soon is how long a test waits for what must come.
const soon = 10 * time.Second

func exporter(t testing.TB, o Options) *Exporter {
	t.Helper()
	o.Allow = snapshot.Loopback()
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	e.to.first, e.every = time.Millisecond, time.Millisecond
	t.Cleanup(e.to.client.CloseIdleConnections)
	return e
}

// running sends what the exporter has until the test ends, or end is called.
func running(t testing.TB, e *Exporter) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = e.Run(ctx) }()
	end = func() { cancel(); <-ended }
	t.Cleanup(end)
	return end
}

func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: ", what)
		}
	}
}

var begin = time.Unix(1_900_000_000, 5)

// sampled is an exchange that was retried and whose trace began here.
func sampled() *proxy.Record {
	trace := tracecontext.New([]byte("0af7651916cd43dd8448eb211c80319c"), 7, tracecontext.RatioOf(1))
	outside, _ := tracecontext.Parse([]byte("00-11111111111111111111111111111111-2222222222222222-01"))
	return &proxy.Record{
		Start: begin, Total: 30 * time.Millisecond, Protocol: "HTTP/2.0", TLS: true, Method: "GET", Host: "api.example", Path: "/v1/orders/7", Peer: netip.MustParseAddr("2001:db8:1111:2222:3333:4444:5555:6666"),
		Status: 200, Snapshot: 42, Tenant: "acme", Route: "orders", Pattern: "/v1/orders/{id}", UpstreamID: "up", Trace: trace, Outside: outside, RequestID: "0af7651916cd43dd8448eb211c80319c",
		Tries: []record.Attempt{
			{Number: 1, Result: retry.ConnectFailed, Endpoint: "10.0.0.7:8080", Start: begin.Add(time.Millisecond), Took: 2 * time.Millisecond},
			{Number: 2, Result: retry.Fatal, Endpoint: "[fd00::7]:8080", Start: begin.Add(4 * time.Millisecond), Took: 20 * time.Millisecond},
			{Number: 3, Hedge: true, Result: retry.Answered, Status: 200, Endpoint: "ten", Start: begin.Add(14 * time.Millisecond), Took: 10 * time.Millisecond},
		},
	}
}

func TestSpansSayWhatAnExchangeCameTo(t *testing.T) {
	sink := otlpsink.New(t, loopback)
	e := exporter(t, Options{URL: sink.URL, Node: "eu/a/1", Cell: "eu/a", Region: "eu"})
	e.Record(sampled())
	end := running(t, e)
	end() // what is left is sent
	spans := sink.Spans()
	if len(spans) != 4 {
		t.Fatalf("%d spans", len(spans))
	}
	s := spans[0]
	if s.Trace() != "0af7651916cd43dd8448eb211c80319c" || s.Parent() != "" || s.Name != "GET orders" || s.Kind != 2 || s.Status.GetCode() != 0 ||
		s.StartTimeUnixNano != uint64(begin.UnixNano()) || s.EndTimeUnixNano != uint64(begin.Add(30*time.Millisecond).UnixNano()) || s.Flags != 0x103 {
		t.Errorf("%v", s.Span)
	}
	if l := s.Links; len(l) != 1 || fmt.Sprintf("%x %x %x", l[0].TraceId, l[0].SpanId, l[0].Flags) != "11111111111111111111111111111111 2222222222222222 301" {
		t.Errorf("links %v", s.Links)
	}
	for key, want := range map[string]string{"http.request.method": "GET", "url.scheme": "https", "url.path": "/v1/orders/7", "server.address": "api.example", "network.protocol.version": "2",
		"client.address": "2001:db8:1111:2222:3333:4444:5555:6666", "cellgate.tenant": "acme", "http.route": "/v1/orders/{id}", "cellgate.route": "orders", "cellgate.upstream": "up", "error.type": "", "cellgate.reason": ""} {
		if got := s.Text(key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if s.Number("http.response.status_code") != 200 || s.Number("cellgate.version") != 42 {
		t.Errorf("%v", s.Attributes)
	}
	if want := map[string]string{"service.name": "cellgate-proxy", "service.instance.id": "eu/a/1", "cellgate.cell": "eu/a", "cloud.region": "eu"}; fmt.Sprint(s.Resource) != fmt.Sprint(want) {
		t.Errorf("sent by %v", s.Resource)
	}
	for i, want := range []struct {
		host          string
		port, status  int64
		resend        int64
		result, fault string
		hedge         bool
	}{
		{"10.0.0.7", 8080, 0, 0, "connect_failed", "connect_failed", false},
		{"fd00::7", 8080, 0, 1, "given_up", "", false},
		{"ten", 0, 200, 0, "answered", "", true},
	} {
		a, r := spans[i+1], sampled()
		if a.Parent() != s.ID() || a.Trace() != s.Trace() || a.Kind != 3 || a.Name != "GET" || a.ID() != fmt.Sprintf("%x", r.Trace.Attempt(uint8(i+1)).Span) || a.EndTimeUnixNano-a.StartTimeUnixNano != uint64(r.Tries[i].Took) {
			t.Errorf("attempt %d: %v", i, a.Span)
		}
		if a.Text("server.address") != want.host || a.Number("server.port") != want.port || a.Number("http.response.status_code") != want.status || a.Number("http.request.resend_count") != want.resend ||
			a.Text("cellgate.result") != want.result || a.Text("error.type") != want.fault || a.Yes("cellgate.hedge") != want.hedge || a.Text("cellgate.upstream") != "up" || (a.Status.GetCode() == 2) != (want.fault != "") {
			t.Errorf("attempt %d: %v", i, a.Span)
		}
	}
}

func TestFailuresSayWhoseTheyAre(t *testing.T) {
	sink := otlpsink.New(t, loopback)
	e := exporter(t, Options{URL: sink.URL})
	for _, c := range []struct {
		status int
		why    reason.Reason
	}{{503, reason.PoolFull}, {503, reason.Overloaded}, {502, reason.None}, {404, reason.NoRoute}} {
		r := sampled()
		r.Status, r.Reason = c.status, c.why
		r.Tries = []record.Attempt{{Number: 1, Status: uint16(c.status)}}
		e.Record(r)
	}
	running(t, e)()
	got := []string{}
	for _, s := range sink.Spans() {
		got = append(got, fmt.Sprint(s.Kind.Number(), " ", s.Status.GetCode().Number(), " ", s.Text("error.type"), " ", s.Text("cellgate.cause"), " ", s.Text("cellgate.reason")))
	}
	slices.Sort(got)
	want := []string{"2 0   no_route", "2 2 502 upstream ", "2 2 overloaded gateway overloaded", "2 2 pool_full upstream pool_full", "3 2 404  ", "3 2 502  ", "3 2 503  ", "3 2 503  "}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestSampledFailedAndSlowExchangesAreKept(t *testing.T) {
	e := exporter(t, Options{URL: "http://127.73.1.1:1"})
	for name, c := range map[string]struct {
		change func(*proxy.Record)
		kept   bool
	}{
		"sampled":                    {func(*proxy.Record) {}, true},
		"not sampled":                {func(r *proxy.Record) { r.Trace.Flags = 0 }, false},
		"failed":                     {func(r *proxy.Record) { r.Trace.Flags, r.Status = 0, 500 }, true},
		"slow":                       {func(r *proxy.Record) { r.Trace.Flags, r.Total = 0, record.Slow }, true},
		"failed, another's":          {func(r *proxy.Record) { r.Trace.Flags, r.Status, r.Outside.Trace = 0, 500, r.Trace.Trace }, false},
		"another's, sampled":         {func(r *proxy.Record) { r.Outside.Trace = r.Trace.Trace }, true},
		"without a trace":            {func(r *proxy.Record) { r.Trace, r.Status = tracecontext.Context{}, 500 }, false},
		"a readiness probe":          {func(r *proxy.Record) { r.Route, r.Path = "", proxy.ReadyPath }, false},
		"the client's own mistake":   {func(r *proxy.Record) { r.Trace.Flags, r.Status = 0, 404 }, false},
		"a refused head, no request": {func(r *proxy.Record) { *r = proxy.Record{Status: 400} }, false},
	} {
		before, r := e.waiting(), sampled()
		c.change(r)
		if e.Record(r); (e.waiting() > before) != c.kept {
			t.Errorf("%s: %d spans wait, before %d", name, e.waiting(), before)
		}
	}
	before := e.waiting()
	for range 10 * mostExtra {
		r := sampled()
		r.Trace.Flags, r.Status, r.Tries, r.Start = 0, 500, nil, begin.Add(time.Minute)
		e.Record(r)
	}
	if n := e.waiting() - before; n != mostExtra {
		t.Errorf("%d failed ones of one second are kept", n)
	}
}

// waiting is how many spans wait to be sent.
func (e *Exporter) waiting() (n uint64) {
	for i := range e.shards {
		e.shards[i].mu.Lock()
		n += e.shards[i].count
		e.shards[i].mu.Unlock()
	}
	return n
}

func TestAFullBufferDropsAndCounts(t *testing.T) {
	e := exporter(t, Options{URL: "http://127.73.1.1:1"})
	for range 20_000 {
		e.Record(sampled())
	}
	bytes := 0
	for i := range e.shards {
		bytes += cap(e.shards[i].spans)
	}
	if n := e.waiting() + e.overflown.Load(); n != 4*20_000 || e.overflown.Load() == 0 || bytes > maxShards*buffered {
		t.Errorf("%d spans wait and %d were dropped, in %d bytes", e.waiting(), e.overflown.Load(), bytes)
	}
}

func TestRecordAllocatesNothing(t *testing.T) {
	e, r := exporter(t, Options{URL: "http://127.73.1.1:1"}), sampled()
	plain := sampled()
	plain.Trace.Flags = 0
	for range 100 {
		e.Record(r)
	}
	if n := testing.AllocsPerRun(100, func() { e.Record(r); e.Record(plain) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestACollectorThatIsIllIsAskedAgainAndOneThatRefusesIsNot(t *testing.T) {
	sink := otlpsink.New(t, loopback)
	file := filepath.Join(t.TempDir(), "headers")
	key := func(v string) {
		if err := os.WriteFile(file, []byte("X-Api-Key: "+v+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	key("one")
	e := exporter(t, Options{URL: sink.URL, HeadersFile: file})
	running(t, e)
	asked := 0
	sink.Answer(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked == 1 {
			key("two")
		}
		w.WriteHeader([]int{503, 429, 502, 504}[min(asked, 4)-1])
	})
	e.Record(sampled())
	until(t, "a message is tried and given up", func() bool { return e.unreachable.Load() == 4 })
	if heads := sink.Heads(); len(heads) != tries || heads[0].Get("X-Api-Key") != "one" || heads[1].Get("X-Api-Key") != "two" {
		t.Errorf("%d messages: %v", len(heads), heads)
	}
	sink.Answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400) })
	e.Record(sampled())
	until(t, "one is refused", func() bool { return e.refused.Load() == 4 })
	sink.Answer(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte{10, 2, 8, 3}) }) // partial_success {rejected_spans: 3}
	e.Record(sampled())
	until(t, "one is taken in part", func() bool { return e.refused.Load() == 7 && e.exported.Load() == 1 })
	sink.Answer(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://127.73.1.2/", http.StatusTemporaryRedirect)
	})
	e.Record(sampled())
	until(t, "a redirect is no answer", func() bool { return e.refused.Load() == 11 })
	sink.Answer(nil)
	e.Record(sampled())
	until(t, "all are taken", func() bool { return e.exported.Load() == 5 && len(sink.Spans()) == 4 })
}

func TestACollectorMayBeOfAPrivateAuthority(t *testing.T) {
	var came atomic.Int64
	srv := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { came.Add(1) }))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(srv.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for ca, want := range map[string]int64{"": 0, file: 1} {
		e, err := New(Options{URL: srv.URL, CAFile: ca, Allow: snapshot.Loopback()})
		if err != nil {
			t.Fatal(err)
		}
		came.Store(0)
		if _, _, err := e.to.post(t.Context(), nil); came.Load() != want || (err == nil) != (want == 1) {
			t.Errorf("with %q: %v", ca, err)
		}
		e.to.client.CloseIdleConnections()
	}
}

func TestACollectorThatIsNotThereCostsNothingButSpans(t *testing.T) {
	e := exporter(t, Options{URL: "http://127.73.1.1:1"})
	end := running(t, e)
	e.Record(sampled())
	until(t, "it is given up", func() bool { return e.unreachable.Load() == 4 })
	e.Record(sampled())
	began := time.Now()
	if end(); time.Since(began) > soon/2 {
		t.Errorf("its end took %v", time.Since(began))
	}
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "headers")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	good := Options{URL: "https://collector.example:4318", Ratio: 0.5, HeadersFile: file("Authorization: Bearer s3cret\nX-Scope: a\n")}
	e, err := New(good)
	if err != nil || e.to.url != "https://collector.example:4318/v1/traces" {
		t.Fatal(err)
	}
	for says, change := range map[string]func(*Options){
		"absolute URL":   func(o *Options) { o.URL = "collector:4318" },
		"must be https":  func(o *Options) { o.URL = "http://collector.example" },
		"credentials":    func(o *Options) { o.URL = "https://me:s3cret@collector.example" },
		"has a query":    func(o *Options) { o.URL = "https://collector.example/?key=s3cret" },
		"port of 1":      func(o *Options) { o.URL = "https://collector.example:0" },
		"169.254":        func(o *Options) { o.URL = "https://169.254.169.254/" },
		"metadata":       func(o *Options) { o.URL = "https://metadata.google.internal/" },
		"loopback":       func(o *Options) { o.URL = "https://127.0.0.1/" },
		"0 to 1":         func(o *Options) { o.Ratio = 1.5 },
		"is NaN":         func(o *Options) { o.Ratio = nan() },
		"is -1":          func(o *Options) { o.Ratio = -1 },
		"no such file":   func(o *Options) { o.HeadersFile = "/nowhere" },
		"Name: value":    func(o *Options) { o.HeadersFile = file("s3cret\n") },
		"1 to 32":        func(o *Options) { o.HeadersFile = file(strings.Repeat("a: s3cret\n", maxFile)) },
		"no certificate": func(o *Options) { o.CAFile = file("s3cret\n") },
		"something else": func(o *Options) {
			o.CAFile = file("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
		},
		"nowhere-ca":  func(o *Options) { o.CAFile = "/nowhere-ca" },
		"Host is not": func(o *Options) { o.HeadersFile = file("host: s3cret\n") },
		"together":    func(o *Options) { o.HeadersFile = file("X: s3cret\x01\n") },
		"of the form": func(o *Options) { o.HeadersFile = file("") },
	} {
		o := good
		change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q is not in %v, or a secret is", says, err)
		}
	}
}

func nan() float64 { z := 0.0; return z / z }

// I1: the address is looked at when the connection is made, whatever the name said before.
func TestTheCollectorsAddressIsLookedAtWhenItIsDialled(t *testing.T) {
	e, err := New(Options{URL: "https://localhost.example"})
	if err != nil {
		t.Fatal(err)
	}
	d := e.to.client.Transport.(*http.Transport).DialContext
	for _, addr := range []string{"127.0.0.1:1", "169.254.169.254:80", "[::ffff:169.254.169.254]:80"} {
		if _, err := d(t.Context(), "tcp", addr); err == nil || !strings.Contains(err.Error(), "not permitted") {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

func FuzzWhateverStandsInARequestCanBeRead(f *testing.F) {
	f.Add("GET", "api", "/ü\xff", "127.0.0.1:1", "HTTP/1.1", uint16(200))
	f.Add("\x80", strings.Repeat("ü", 400), strings.Repeat("€", 400), "::::", "", uint16(999))
	sink := otlpsink.New(f, loopback)
	e := exporter(f, Options{URL: sink.URL})
	f.Fuzz(func(t *testing.T, method, host, path, endpoint, protocol string, status uint16) {
		r := sampled()
		r.Method, r.Host, r.Path, r.Protocol, r.Status, r.Tenant, r.Route, r.Pattern = method, host, path, protocol, int(status), host, path, path
		r.Tries = slices.Repeat([]record.Attempt{{Number: 1, Status: status, Endpoint: endpoint}}, 8)
		before := len(sink.Spans())
		var b buffer
		if n := b.spans(r); n != 9 || len(b) > maxSpans {
			t.Fatalf("%d spans, %d bytes", n, len(b))
		}
		if o := e.to.send(t.Context(), e.message(b)); o != (outcome{}) || len(sink.Spans()) != before+9 {
			t.Fatalf("%+v, %d spans", o, len(sink.Spans())-before)
		}
	})
}

func BenchmarkRecord(b *testing.B) {
	e, r := exporter(b, Options{URL: "http://127.73.1.1:1"}), sampled()
	r.Tries = r.Tries[:1]
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if e.Record(r); n%100 == 0 {
			for i := range e.shards {
				e.shards[i].spans = e.shards[i].spans[:0]
			}
		}
	}
	if e.overflown.Load() > 0 {
		b.Fatal("nothing was measured")
	}
}
