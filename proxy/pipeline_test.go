package proxy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/proxy/hops"
	"github.com/cellgate/cellgate/proxy/limit"
	"github.com/cellgate/cellgate/proxy/program/programtest"
	"github.com/cellgate/cellgate/quota"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// script is an authenticator and a limiter that do as they are told.
type script struct {
	why    reason.Reason
	wait   chan struct{}
	id     Identity
	asked  []Credentials
	refuse int // index of the claim to refuse, -1 for none
	claims []Claim
	due    chan struct{} // a lease that is due
	waits  []int
}

func (*script) Foresee(*Credentials) {}

func (*script) Aim([]Claim) {}

func (s *script) Authenticate(c *Credentials, id *Identity, _ time.Time) (reason.Reason, <-chan struct{}) {
	s.asked = append(s.asked, *c)
	*id = s.id
	if s.wait != nil {
		w := s.wait
		s.wait = nil
		return reason.AuthUnavailable, w
	}
	return s.why, nil
}

func (s *script) Take(claims []Claim, waits int, _ time.Time) (int, <-chan struct{}) {
	s.claims, s.waits = append([]Claim(nil), claims...), append(s.waits, waits)
	if w := s.due; w != nil {
		s.due = nil
		return -1, w
	}
	if s.refuse >= 0 && s.refuse < len(claims) {
		claims[s.refuse].RetryAfter = 1500 * time.Millisecond
		return s.refuse, nil
	}
	return -1, nil
}

const document = `
version: v1
routes:
  - {id: open, match: {host: a.example, path: /open}, upstream: up}
  - {id: closed, match: {host: a.example, path: /closed}, upstream: up, auth: jwt, limits: {tenant: 100/second, user: 1/minute, scope: cell, on_store_loss: deny}, timeout: 2s}
  - {id: big, match: {host: b.example, path: /big}, upstream: up}
  - {id: split, match: {host: a.example, path: /split}, auth: jwt, sticky: user, split: [{upstream: up, weight: 95}, {upstream: canary, weight: 5}]}
upstreams:
  - {id: up, endpoints: ["127.0.0.1:1"]}
  - {id: canary, endpoints: ["127.0.0.1:2"]}
policies: [{id: jwt, jwt: {issuer: "https://i.example", audience: a, jwks: "https://i.example/keys"}}, {id: admins, authz: {roles: [admin]}}]
plans: [{id: pro, rate_per_sec: 7, quota_per_day: 86400, scope: region}]
consumers: [{id: acme, plan: pro}]
tenants: [{id: acme, hosts: [a.example]}, {id: big, hosts: [b.example], limits: {rate: 5000/second}}]
`

func serverOf(t testing.TB, s *script) *Server {
	t.Helper()
	return serverWith(t, s, document)
}

func serverWith(t testing.TB, s *script, document string) *Server {
	t.Helper()
	srv := New(Options{Auth: s, Limits: s})
	if err := srv.Apply(programtest.Compile(t, 1, document)); err != nil {
		t.Fatal(err)
	}
	return srv
}

func exchangeOf(t testing.TB, s *Server, head string) *Exchange {
	t.Helper()
	x := s.Acquire()
	x.Start, x.PeerText = time.Now(), "192.0.2.1"
	if n, err := x.Request.Parse([]byte(head)); err != nil || n != len(head) {
		t.Fatal(n, err)
	}
	return x
}

func get(path string, fields ...string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: a.example\r\n" + strings.Join(append(fields, ""), "\r\n") + "\r\n"
}

func TestAParkedExchangeResumesAtTheSameStage(t *testing.T) {
	wait := make(chan struct{})
	s := &script{wait: wait, refuse: -1, id: Identity{User: "u"}}
	x := exchangeOf(t, serverOf(t, s), get("/closed", "Authorization: Bearer x"))
	if v := x.Run(time.Now()); v != Park || x.Wait() != (<-chan struct{})(wait) {
		t.Fatalf("verdict %d", v)
	}
	id := x.ID()
	if v := x.Run(time.Now()); v != Next {
		t.Fatalf("after the wait: %d", v)
	}
	if len(s.asked) != 2 || x.ID() != id || len(s.claims) != 2 {
		t.Fatalf("asked %d times, id %s then %s, %d claims", len(s.asked), id, x.ID(), len(s.claims))
	}
}

func TestCredentialsCarryTenantAndPolicy(t *testing.T) {
	s := &script{refuse: -1}
	x := exchangeOf(t, serverOf(t, s), get("/closed", "Authorization: Bearer x", "X-API-Key: k"))
	x.Run(time.Now())
	c := s.asked[0]
	if c.Tenant != "acme" || c.Policy.ID != "jwt" || string(c.Authorization) != "Bearer x" || string(c.APIKey) != "k" || c.Program == nil {
		t.Fatalf("%+v", c)
	}
	x = exchangeOf(t, serverOf(t, s), get("/closed", "Authorization: Bearer x", "Authorization: Bearer y"))
	if x.Run(time.Now()) != Reply || x.Reason != reason.TokenInvalid || len(s.asked) != 1 {
		t.Fatalf("two credentials: %v", x.Reason)
	}
	x = exchangeOf(t, serverOf(t, s), get("/open"))
	if x.Run(time.Now()) != Next || len(s.asked) != 1 {
		t.Fatal("a public route asked who calls")
	}
}

func TestADeniedRouteIsRefusedBeforeAnybodyIsAsked(t *testing.T) {
	s := &script{refuse: -1}
	srv := serverOf(t, s)
	srv.Deny(denylist.Compile([]denylist.Entry{{Kind: denylist.Route, ID: "closed"}}))
	x := exchangeOf(t, srv, get("/closed", "Authorization: Bearer x"))
	if x.Run(time.Now()) != Reply || x.Reason != reason.RouteDenied || x.Status != 503 || len(s.asked) != 0 {
		t.Fatalf("%v, asked %d times", x.Reason, len(s.asked))
	}
	if x = exchangeOf(t, srv, get("/open")); x.Run(time.Now()) != Next {
		t.Fatalf("another route: %v", x.Reason)
	}
	srv.Deny(nil)
	if x = exchangeOf(t, srv, get("/closed", "Authorization: Bearer x")); x.Run(time.Now()) != Next {
		t.Fatalf("after the removal: %v", x.Reason)
	}
}

func TestEveryLimitThatCountsTheCallerIsAsked(t *testing.T) {
	s := &script{refuse: -1, id: Identity{User: "u", Consumer: "acme"}}
	exchangeOf(t, serverOf(t, s), get("/closed")).Run(time.Now())
	want := []Claim{
		{Key: LimitKey{Tenant: "acme", Kind: reason.RateTenant, Route: "closed"}, Limit: quota.Limit{Rate: 100, Burst: 20, Scope: quota.Cell, Strict: true}},
		{Key: LimitKey{Tenant: "acme", Kind: reason.QuotaConsumer, Caller: "acme"}, Limit: quota.PerDay(86400), Plan: "pro"},
		{Key: LimitKey{Tenant: "acme", Kind: reason.RateConsumer, Caller: "acme"}, Limit: quota.Limit{Rate: 7, Burst: 7, Scope: quota.Region}, Plan: "pro"},
		{Key: LimitKey{Tenant: "acme", Kind: reason.RateUser, Route: "closed", Caller: "u"}, Limit: quota.Limit{Rate: 1.0 / 60, Burst: 1, Scope: quota.Cell, Strict: true}},
	}
	for i := range want {
		want[i].Alone = limit.PerSecond(want[i].Limit.Rate, want[i].Limit.Burst)
	}
	if fmt.Sprint(s.claims) != fmt.Sprint(want) {
		t.Fatalf("%v\nwant\n%v", s.claims, want)
	}
}

func TestATenantHasALimitOfItsOwn(t *testing.T) {
	s := &script{refuse: 0}
	x := exchangeOf(t, serverOf(t, s), strings.Replace(get("/big"), "a.example", "b.example", 1))
	if v := x.Run(time.Now()); v != Reply || x.Reason != reason.RateTenant {
		t.Fatalf("%d %v", v, x.Reason)
	}
	want := []Claim{{Key: LimitKey{Tenant: "big", Kind: reason.RateTenant}, Limit: quota.Limit{Rate: 5000, Burst: 1000}}}
	for i := range want {
		want[i].Alone = limit.PerSecond(want[i].Limit.Rate, want[i].Limit.Burst)
	}
	if fmt.Sprint(s.claims) != fmt.Sprint(want) {
		t.Fatalf("%v\nwant\n%v", s.claims, want)
	}
}

// H1: what all tenants share is asked for first, and so taken last: with it a request has six claims at most.
func TestThePlatformHasALimitOfItsOwn(t *testing.T) {
	s := &script{refuse: 0, id: Identity{User: "u", Consumer: "acme"}}
	srv := serverWith(t, s, strings.Replace(document, "tenants: [", "tenants: [{id: '*', limits: {rate: 9000/second}}, ", 1))
	x := exchangeOf(t, srv, get("/closed"))
	if v := x.Run(time.Now()); v != Reply || x.Reason != reason.RatePlatform || x.Status != 503 {
		t.Fatalf("%d %v", v, x.Reason)
	}
	if first := s.claims[0]; len(s.claims) != 5 || first.Key != (LimitKey{Tenant: "*", Kind: reason.RatePlatform}) || first.Limit.Rate != 9000 {
		t.Fatalf("%+v", s.claims)
	}
}

func TestAnExchangeWaitsForALeaseThatIsDue(t *testing.T) {
	s := &script{refuse: -1, due: make(chan struct{})}
	x := exchangeOf(t, serverOf(t, s), get("/closed"))
	if v := x.Run(time.Now()); v != Park || x.Wait() == nil {
		t.Fatalf("verdict %d", v)
	}
	if v := x.Run(time.Now()); v != Next || fmt.Sprint(s.waits) != "[0 1]" {
		t.Fatalf("after the wait: %d, %v", v, s.waits)
	}
}

// An anonymous caller is its IPv4 address or its IPv6 /64: moving about in the latter gives nobody a fresh bucket (H5).
func TestAnAnonymousCallerIsAnIPv4AddressOrAnIPv6Network(t *testing.T) {
	for address, want := range map[string]string{"192.0.2.1": "192.0.2.1", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64", "2001:db8:1:2::9": "2001:db8:1:2::/64"} {
		s := &script{refuse: -1}
		x := exchangeOf(t, serverOf(t, s), get("/closed"))
		x.Peer, x.PeerText = netip.MustParseAddr(address), address
		x.Run(time.Now())
		if c := s.claims[len(s.claims)-1]; c.Key.Kind != reason.RateUser || c.Key.Caller != want {
			t.Errorf("%s counts as %q", address, c.Key.Caller)
		}
	}
}

func Test429SaysWhenToComeBack(t *testing.T) {
	for i, why := range []reason.Reason{reason.RateTenant, reason.QuotaConsumer, reason.RateConsumer, reason.RateUser} {
		s := &script{refuse: i, id: Identity{User: "u", Consumer: "acme"}}
		x := exchangeOf(t, serverOf(t, s), get("/closed"))
		if x.Run(time.Now()) != Reply || x.Reason != why || x.Status != 429 {
			t.Fatalf("%d: %v %d", i, x.Reason, x.Status)
		}
		head := string(x.AppendFields(nil))
		for _, line := range []string{"Retry-After: 2\r\n", "RateLimit: \"" + why.String() + "\";r=0;t=2\r\n", "X-RateLimit-Remaining: 0\r\n"} {
			if !strings.Contains(head, line) {
				t.Errorf("%q lacks %q", head, line)
			}
		}
	}
}

func TestRefusalsChallenge(t *testing.T) {
	for why, want := range map[reason.Reason]string{
		reason.TokenMissing: "WWW-Authenticate: Bearer\r\n", reason.TokenExpired: `WWW-Authenticate: Bearer error="invalid_token"`,
		reason.ScopeMissing: `WWW-Authenticate: Bearer error="insufficient_scope"`, reason.AuthUnavailable: "Retry-After: 1\r\n",
	} {
		x := exchangeOf(t, serverOf(t, &script{why: why, refuse: -1}), get("/closed"))
		if x.Run(time.Now()) != Reply || x.Reason != why || !strings.Contains(string(x.AppendFields(nil)), want) {
			t.Errorf("%v: %s", x.Reason, x.AppendFields(nil))
		}
	}
}

func TestNoReasonBreaksTheAnswer(t *testing.T) {
	s := serverOf(t, &script{refuse: -1})
	for _, why := range reason.All() {
		x := exchangeOf(t, s, get("/open"))
		x.Run(time.Now())
		x.Fail(why)
		if x.Status != why.Status() || !strings.Contains(string(x.Body()), `"reason":"`+why.String()+`"`) {
			t.Errorf("%v: %d %s", why, x.Status, x.Body())
		}
	}
}

func TestAStickyUserAlwaysGoesTheSameWay(t *testing.T) {
	first := int32(-1)
	for range 20 {
		x := exchangeOf(t, serverOf(t, &script{refuse: -1, id: Identity{User: "u"}}), get("/split"))
		x.Run(time.Now())
		for i, pool := range x.table.pools {
			if pool == x.Pool && first != int32(i) {
				if first >= 0 {
					t.Fatal("one user was sent both ways")
				}
				first = int32(i)
			}
		}
	}
}

func TestClientsDeadlineOnlyNarrows(t *testing.T) {
	s := serverOf(t, &script{refuse: -1})
	for head, want := range map[string]time.Duration{
		get("/closed"): 2 * time.Second,
		get("/closed", "X-Request-Timeout-Ms: 100"):   100 * time.Millisecond,
		get("/closed", "X-Request-Timeout-Ms: 60000"): 2 * time.Second,
		get("/open"): snapshot.DefaultTimeout,
		get("/open", "grpc-timeout: 1S", "X-Request-Timeout-Ms: 3000"): time.Second,
	} {
		x := exchangeOf(t, s, head)
		x.Run(time.Now())
		if got := x.Deadline.Sub(x.Start); got != want {
			t.Errorf("%q: %v, want %v", head, got, want)
		}
	}
}

func TestRunAllocatesNothing(t *testing.T) {
	s := serverOf(t, &script{refuse: -1})
	x := exchangeOf(t, s, get("/open"))
	out := make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(1000, func() {
		x.reset()
		if x.Run(time.Now()) != Next {
			t.Fatal(x.Reason)
		}
		out = x.AppendRequest(out[:0], 0, x.Start)
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
	x = exchangeOf(t, s, get("/none"))
	if n := testing.AllocsPerRun(1000, func() {
		x.reset()
		if x.Run(time.Now()) != Reply {
			t.Fatal(x.Reason)
		}
		out = x.AppendFields(out[:0])
	}); n != 0 {
		t.Fatalf("%v allocations for an own answer", n)
	}
}

// F7: behind proxies that are trusted, the client is whom they name, for limits, log and upstreams.
func TestATrustedProxyIsBelievedAboutItsClient(t *testing.T) {
	var seen Record
	s := &script{refuse: -1}
	srv := serverOf(t, s)
	srv.opts.Trusted = hops.Trusted{netip.MustParsePrefix("10.0.0.0/8")}
	srv.opts.Recorders = []Recorder{recorder(func(r *Record) { seen = *r })}
	for name, c := range map[string]struct {
		peer, forwarded, proto string
		client                 string
		https                  bool
	}{
		"trusted":   {"10.0.0.1", "1.1.1.1, 192.0.2.7, 10.0.0.2", "https", "192.0.2.7", true},
		"IPv6":      {"10.0.0.1", "2001:DB8:0:0::7", "http", "2001:db8::7", false},
		"untrusted": {"192.0.2.1", "192.0.2.7", "https", "192.0.2.1", false},
		"garbage":   {"10.0.0.1", "192.0.2.7, ,x", "https,http", "10.0.0.1", false},
	} {
		x := exchangeOf(t, srv, get("/closed", "X-Forwarded-For: "+c.forwarded, "X-Forwarded-Proto: "+c.proto, "X-Forwarded-Host: evil.example"))
		x.Peer, x.PeerText = netip.MustParseAddr(c.peer), c.peer
		if x.Run(time.Now()) != Next {
			t.Fatalf("%s: %v", name, x.Reason)
		}
		out := string(x.AppendRequest(nil, 0, x.Start))
		proto := map[bool]string{true: "https", false: "http"}[c.https]
		if !strings.Contains(out, "X-Forwarded-For: "+c.client+"\r\nX-Forwarded-Proto: "+proto+"\r\nX-Forwarded-Host: a.example\r\n") || strings.Count(out, "X-Forwarded-") != 3 {
			t.Errorf("%s: the upstream gets %q", name, out)
		}
		if caller := s.claims[len(s.claims)-1].Key.Caller; !strings.HasPrefix(caller, strings.TrimSuffix(c.client, "::7")) {
			t.Errorf("%s: %q was counted", name, caller)
		}
		if got := s.asked[len(s.asked)-1].Peer.String(); got != c.client {
			t.Errorf("%s: a bad signature is charged to %s", name, got)
		}
		x.Finish(time.Now())
		if seen.Peer.String() != c.client || seen.TLS != c.https {
			t.Errorf("%s: the log says %v, TLS %v", name, seen.Peer, seen.TLS)
		}
	}
}

type recorder func(*Record)

func (f recorder) Record(r *Record) { f(r) }
