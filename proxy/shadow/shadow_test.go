package shadow

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cellgate/cellgate/internal/testpki"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/ask"
	"github.com/cellgate/cellgate/proxy/decide"
	"github.com/cellgate/cellgate/proxy/program/programtest"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// byPolicy lets in whom the policy "now" is asked about, refuses for "next", and waits for "slow".
type byPolicy struct{}

func (byPolicy) Foresee(*proxy.Credentials) {}

func (byPolicy) Authenticate(c *proxy.Credentials, id *proxy.Identity, _ time.Time) (reason.Reason, <-chan struct{}) {
	id.Consumer = "c"
	switch c.Policy.ID {
	case "next":
		return reason.ScopeMissing, nil
	case "cert":
		return reason.CertificateMissing, nil
	case "slow":
		return reason.AuthUnavailable, make(chan struct{})
	}
	return reason.None, nil
}

type unlimited struct{}

func (unlimited) Take([]proxy.Claim, int, time.Time) (int, <-chan struct{}) { return -1, nil }
func (unlimited) Aim([]proxy.Claim)                                         {}

const document = `
version: v1
routes: [{id: r, match: {host: a.example, path: /r}, upstream: up, auth: now, policies: [next, slow, web, cert]}]
upstreams: [{id: up, endpoints: ["127.0.0.1:1"]}]
policies:
  - {id: now, jwt: {issuer: "https://i.example", audience: a, jwks: "https://i.example/keys"}}
  - {id: next, mode: shadow, jwt: {issuer: "https://n.example", audience: a, jwks: "https://n.example/keys"}}
  - {id: slow, mode: shadow, jwt: {issuer: "https://s.example", audience: a, jwks: "https://s.example/keys"}}
  - {id: cert, mode: shadow, mtls: {ca: %q, names: [{dns: a.example}]}}
  - {id: web, mode: shadow, cors: {origins: ["https://app.example"]}}
`

// serverOf serves a document, and shows it to a watcher.
func serverOf(t *testing.T, document string, limits proxy.Limiter, w *Watcher) *proxy.Server {
	t.Helper()
	s := proxy.New(proxy.Options{Auth: byPolicy{}, Limits: limits, Shadow: w})
	if err := s.Apply(programtest.Compile(t, 1, document)); err != nil {
		t.Fatal(err)
	}
	return s
}

// J3: verdicts of policies in shadow mode are counted, and the exchange goes on as if they weren't there, without waiting.
func TestAPolicyInShadowModeIsCountedAndChangesNothing(t *testing.T) {
	w := New(byPolicy{}, nil, slog.New(slog.NewTextHandler(io.Discard, nil)))
	w.every = 1
	s := serverOf(t, fmt.Sprintf(document, testpki.New(t, "Partners").PEM), unlimited{}, w)
	const n = 100
	for range n {
		x := s.Acquire()
		x.Start = time.Now()
		if _, err := x.Request.Parse([]byte("GET /r HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer t\r\nOrigin: https://evil.example\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		if v := x.Run(time.Now()); v != proxy.Next || x.Parked || x.Reason != reason.None {
			t.Fatalf("verdict %d, parked %v, %v", v, x.Parked, x.Reason)
		}
		s.Release(x)
	}
	for policy, why := range map[string]reason.Reason{"next": reason.ScopeMissing, "slow": reason.AuthUnavailable, "cert": reason.CertificateMissing, "web": reason.CORSRefused} {
		if got := w.of(subject{id: policy})[why].Load(); got != n {
			t.Errorf("%s: %d times %v, not %d", policy, got, why, n)
		}
	}
	if kept := uint64(len(w.queue)); kept != queued || w.dropped.Load() != 4*n-queued {
		t.Errorf("%d kept and %d dropped of %d", kept, w.dropped.Load(), 4*n)
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(w)
	families, err := reg.Gather()
	if err != nil || len(families) != 2 || families[1].GetName() != "cellgate_proxy_shadow_verdicts_total" || len(families[1].GetMetric()) != 4 || len(families[1].GetMetric()[0].GetLabel()) != 3 {
		t.Fatalf("%v, %v", families, err)
	}
}

func TestPoliciesBeyondTheBoundAreCountedTogether(t *testing.T) {
	w := New(byPolicy{}, nil, slog.New(slog.DiscardHandler))
	for i := range maxPolicies + 50 {
		w.of(subject{id: time.Duration(i).String()})[0].Add(1)
	}
	if all := len(reason.All()) + 1; all > reasons {
		t.Errorf("%d reasons", all)
	}
	if len(w.counts) > maxPolicies+1 || w.of(subject{id: other})[0].Load() == 0 {
		t.Fatalf("%d policies", len(w.counts))
	}
}

const decidedDocument = `
version: v1
routes: [{id: r, match: {host: a.example, path: /r}, upstream: up, policies: [pdp]}]
upstreams: [{id: up, endpoints: ["127.0.0.1:1"]}]
policies: [{id: pdp, mode: shadow, decision: {url: "PDP", inputs: ["header:X-N"], timeout: 1s, in_flight: 1000, lookups_per_sec: 10000}}]
`

// What a service has to be asked for is counted once it has answered, and nobody waits; where too many are waited for it is unknown.
func TestAVerdictThatIsAskedForIsCountedWhenItComes(t *testing.T) {
	gate := make(chan struct{})
	pdp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-gate
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"allow":false}`)
	}))
	asked := ask.New(ask.Options{Allow: snapshot.Loopback()})
	t.Cleanup(func() { asked.Close(); pdp.Close() })
	w := New(byPolicy{}, decide.New(asked, nil), slog.New(slog.DiscardHandler))
	s := serverOf(t, strings.Replace(decidedDocument, "PDP", pdp.URL, 1), unlimited{}, w)
	for i := range waits + 10 {
		x := s.Acquire()
		x.Start = time.Now()
		if _, err := x.Request.Parse(fmt.Appendf(nil, "GET /r HTTP/1.1\r\nHost: a.example\r\nX-N: %d\r\n\r\n", i)); err != nil {
			t.Fatal(err)
		}
		if v := x.Run(time.Now()); v != proxy.Next || x.Parked {
			t.Fatalf("verdict %d, parked %v, %v", v, x.Parked, x.Reason)
		}
		x.Finish(time.Now())
		s.Release(x)
	}
	got := w.of(subject{id: "pdp"})
	unknown := got[reason.DecisionUnavailable].Load() // on a machine that is late some have run out of their second
	close(gate)
	if unknown < 10 {
		t.Errorf("%d verdicts are unknown at once", unknown)
	}
	for end := time.Now().Add(10 * time.Second); got[reason.DecisionDenied].Load()+got[reason.DecisionUnavailable].Load() != waits+10; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d verdicts have come, %d are unknown", got[reason.DecisionDenied].Load(), got[reason.DecisionUnavailable].Load())
		}
	}
	if got[reason.DecisionDenied].Load() == 0 {
		t.Error("no verdict has come in time")
	}
}

// comes waits until so many verdicts have come.
func comes(t *testing.T, c *counts, why reason.Reason, n uint64) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); c[why].Load() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d verdicts have come", c[why].Load())
		}
	}
}
