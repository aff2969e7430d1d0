package engine_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/callers"
	"github.com/cellgate/cellgate/proxy/decide"
	. "github.com/cellgate/cellgate/proxy/engine" // package loop, which is tested as well, imports it
	"github.com/cellgate/cellgate/proxy/hops"
	"github.com/cellgate/cellgate/proxy/identity"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/program/programtest"
	"github.com/cellgate/cellgate/proxy/shed"
	"github.com/cellgate/cellgate/proxy/tracecontext"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// These tests wait more than they work, so some run side by side.
func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "6")
	runtime.GOMAXPROCS(6 * 4) // as in the proxy: loops, two in each world, hold one of Go's processors each through short sleeps
	goleak.VerifyTestMain(m)
}

// compile makes the program of a document; "UP" in it stands for the upstream's address.
func compile(t testing.TB, number uint64, document, up string) *program.Program {
	t.Helper()
	return programtest.Compile(t, number, strings.ReplaceAll(document, `"UP"`, `"`+up+`"`))
}

// patience is how long a test waits for what must come: nothing is measured by it.
const patience = time.Minute

// soon is more than whatever happens at once takes on a machine that is busy, and less than any limit that these tests set.
const soon = 10 * time.Second

const plainDocument = `
version: v1
routes:
  - {id: any, match: {host: a.example, path_prefix: /, allow_catch_all: true}, upstream: up, timeout: 20s}
upstreams:
  - {id: up, endpoints: ["UP"]}
`

// nobody is the authenticator of documents without policies.
type nobody struct{}

func (nobody) Foresee(*proxy.Credentials) {}

func (nobody) Authenticate(*proxy.Credentials, *proxy.Identity, time.Time) (reason.Reason, <-chan struct{}) {
	return reason.AuthUnavailable, nil
}

// records keeps what the recorder is told.
type records struct{ ch chan proxy.Record }

func (r records) Record(x *proxy.Record) {
	c := *x
	c.Method, c.Host, c.Path, c.RequestID = strings.Clone(c.Method), strings.Clone(c.Host), strings.Clone(c.Path), strings.Clone(c.RequestID)
	c.Tries = slices.Clone(c.Tries)
	select {
	case r.ch <- c:
	default:
	}
}

// world is one engine on loopback in front of one upstream.
type world struct {
	t      testing.TB
	server *proxy.Server
	make   maker
	trust  *tls.Config // of clients over TLS; nil = they are plain
	addr   string
	udp    net.Addr // with setup.h3
	roots  *x509.CertPool
	logged chan proxy.Record
	stop   context.CancelFunc
	ended  chan error
}

type setup struct {
	document string
	auth     proxy.Authenticator
	limits   proxy.Limiter
	engine   Options
	tls      *tls.Config
	silent   bool // no recorder of the world's own
	recorder proxy.Recorder
	shadow   proxy.Shadow
	decided  *decide.Decisions
	sample   tracecontext.Ratio
	trusted  hops.Trusted
	vouch    identity.Voucher
	here     snapshot.Locality
	level    shed.Level
	finder   upstream.Finder
	h3       bool // TLS with a certificate of its own, and HTTP/3 beside it
}

// runner is an engine of either kind, maker makes one.
type (
	runner interface {
		Run(ctx context.Context, listeners ...Listener) error
	}
	maker func(*proxy.Server, Options) runner
)

// starter starts a world of one kind of engine.
type starter func(t testing.TB, up string, s setup) *world

// each runs a test with every kind of engine that this system has, side by side: what one promises, all do.
func each(t *testing.T, test func(t *testing.T, start starter)) {
	eachOf(t, "plain", (*testing.T).Parallel, plainly, test)
}

// eachSecure does it for clients over TLS as well.
func eachSecure(t *testing.T, test func(t *testing.T, start starter)) {
	each(t, test)
	eachOverTLS(t, test)
}

// eachOverTLS does it for clients over TLS alone.
func eachOverTLS(t *testing.T, test func(t *testing.T, start starter)) {
	eachOf(t, "over TLS", (*testing.T).Parallel, overTLS(t), test)
}

// eachAlone does what eachSecure does with nothing beside it: what counts allocations counts everybody's.
func eachAlone(t *testing.T, test func(t *testing.T, start starter)) {
	eachOf(t, "plain", func(*testing.T) {}, plainly, test)
	eachOf(t, "over TLS", func(*testing.T) {}, overTLS(t), test)
}

func eachOf(t *testing.T, group string, begin func(*testing.T), how func(maker) starter, test func(t *testing.T, start starter)) {
	t.Run(group, func(t *testing.T) {
		for name, kind := range engines() {
			t.Run(name, func(t *testing.T) {
				begin(t)
				test(t, how(kind))
			})
		}
	})
}

func plainly(kind maker) starter {
	return func(tb testing.TB, up string, s setup) *world { return start(tb, kind, up, s) }
}

func overTLS(t *testing.T) func(maker) starter {
	cert, roots := selfSigned(t)
	return func(kind maker) starter {
		return func(tb testing.TB, up string, s setup) *world {
			s.tls = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
			w := start(tb, kind, up, s)
			w.trust = &tls.Config{RootCAs: roots, ServerName: "a.example"}
			return w
		}
	}
}

func goroutines(s *proxy.Server, o Options) runner { return New(s, o) }

func start(t testing.TB, kind maker, up string, s setup) *world {
	t.Helper()
	if s.document == "" {
		s.document = plainDocument
	}
	if s.auth == nil {
		s.auth = nobody{}
	}
	if s.limits == nil {
		s.limits = callers.NewLimiter(time.Now())
	}
	w := &world{t: t, logged: make(chan proxy.Record, 100), ended: make(chan error, 2)}
	opts := proxy.Options{Auth: s.auth, Limits: s.limits, Upstream: upstream.Options{Allow: snapshot.Loopback(), Here: s.here, Finder: s.finder}, Trusted: s.trusted, Voucher: s.vouch, Sample: s.sample, Shadow: s.shadow, Decisions: s.decided}
	if !s.silent {
		opts.Recorders = []proxy.Recorder{records{w.logged}}
	}
	if s.recorder != nil {
		opts.Recorders = append(opts.Recorders, s.recorder)
	}
	w.server = proxy.New(opts)
	w.server.Shed(s.level)
	if err := w.server.Apply(compile(t, 1, s.document, up)); err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	w.addr = l.Addr().String()
	if s.engine.HardStop == 0 {
		s.engine.HardStop = time.Second
	}
	w.make = kind
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	go func() { w.ended <- w.server.Run(ctx) }()
	listeners := []Listener{{Listener: l, TLS: s.tls}}
	if s.h3 {
		listeners = w.beside(l)
	}
	go func() { w.ended <- kind(w.server, s.engine).Run(ctx, listeners...) }()
	t.Cleanup(func() {
		stop()
		for range 2 {
			if err := <-w.ended; err != nil {
				t.Error(err)
			}
		}
	})
	return w
}

// beside makes l a listener of TLS with one of HTTP/3 beside it.
func (w *world) beside(l net.Listener) []Listener {
	cert, roots := selfSigned(w.t)
	udp, err := net.ListenPacket("udp", "127.46.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.udp, w.roots = udp.LocalAddr(), roots
	cfg := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
	return []Listener{{Listener: l, TLS: cfg, AltSvc: `h3=":8443"; ma=3600`}, {UDP: udp, TLS: cfg}}
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.22.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// client is a raw connection.
type raw struct {
	net.Conn
	r *bufio.Reader
	t testing.TB
}

// has waits until n exchanges are under way.
func (w *world) has(n int64) {
	w.t.Helper()
	for end := time.Now().Add(patience); w.server.InFlight.Load() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("%d exchanges are under way, not %d", w.server.InFlight.Load(), n)
		}
	}
}

func (w *world) dial() *raw {
	w.t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	if w.trust != nil {
		c = tls.Client(c, w.trust)
	}
	return &raw{c, bufio.NewReader(c), w.t}
}

func (c *raw) send(s string) *raw {
	c.t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		c.t.Fatal(err)
	}
	return c
}

// answer reads one answer with its body; err is that of the body.
func (c *raw) answer(method string) (*http.Response, string, error) {
	c.t.Helper()
	res, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		c.t.Fatalf("no answer: %v", err)
	}
	b, err := io.ReadAll(res.Body)
	return res, string(b), err
}

// closed says that nothing more comes.
func (c *raw) closed() {
	c.t.Helper()
	if b, err := c.r.ReadByte(); err == nil {
		c.t.Fatalf("the connection goes on with %q", b)
	}
}

// allocsPerRun is testing.AllocsPerRun on as many processors as there are: an event loop has its own.
func allocsPerRun(runs int, do func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		do()
	}
	runtime.ReadMemStats(&after)
	return float64((after.Mallocs - before.Mallocs) / uint64(runs))
}

func get(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: a.example\r\n\r\n" }

// problem checks that an answer is the gateway's own, for this reason.
func problem(t testing.TB, res *http.Response, body string, why reason.Reason) {
	t.Helper()
	var doc struct {
		Type, Title, Reason string
		Status              int
		RequestID           string `json:"request_id"`
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatalf("%d %q: %v", res.StatusCode, body, err)
	}
	if res.StatusCode != why.Status() || doc.Reason != why.String() || doc.Status != why.Status() || doc.Title != why.Title() ||
		res.Header.Get("Content-Type") != "application/problem+json" || res.Header.Get("X-Cellgate-Reason") != why.String() ||
		doc.RequestID == "" || doc.RequestID != res.Header.Get("X-Request-Id") {
		t.Fatalf("%d %v %s, want %v", res.StatusCode, res.Header, body, why)
	}
}

// scripted is an upstream that hands every connection to a script.
func scripted(t testing.TB, script func(n int, c *raw)) string {
	l := listen(t)
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for n := 1; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			r := &raw{c, bufio.NewReader(c), t}
			go func() {
				defer c.Close()
				script(n, r)
			}()
		}
	}()
	return l.Addr().String()
}

// request reads one request with its body in a script; ok is false at the end of the connection.
func (c *raw) request() (*http.Request, string, bool) {
	req, err := http.ReadRequest(c.r)
	if err != nil {
		return nil, "", false
	}
	b, err := io.ReadAll(req.Body)
	return req, string(b), err == nil
}

// handler is an upstream of net/http.
func handler(t testing.TB, h http.HandlerFunc) string {
	l := listen(t)
	s := &http.Server{Handler: h}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

func echo(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	w.Header().Set("X-Seen", r.Method+" "+r.Host+" "+r.RequestURI)
	for _, k := range []string{"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Real-Ip", "Forwarded", "X-Caller", "X-Request-Id", "X-Named", "Connection", "X-Request-Timeout-Ms"} {
		for _, v := range r.Header.Values(k) {
			w.Header().Add("Seen-"+k, v)
		}
	}
	_, _ = w.Write(b)
}
