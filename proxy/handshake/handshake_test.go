package handshake

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cellgate/cellgate/internal/testpki"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/program/programtest"
)

// compile makes a program with a host for each list of authorities; an empty one asks for nothing.
func compile(t *testing.T, hosts map[string][]*testpki.Authority) *program.Program {
	t.Helper()
	var routes, policies []string
	for host, list := range hosts {
		match := fmt.Sprintf("host: %q", host)
		if host == "" {
			match = "allow_catch_all: true"
		}
		routes = append(routes, fmt.Sprintf(`{"id": "r%d", "match": {%s, "path": "/public"}, "upstream": "u"}`, len(routes), match))
		for _, ca := range list {
			policies = append(policies, fmt.Sprintf(`{"id": "p%d", "mtls": {"ca": %q, "names": [{"dns": "client.example"}]}}`, len(policies), ca.PEM))
			routes = append(routes, fmt.Sprintf(`{"id": "r%d", "match": {%s, "path": "/%d"}, "upstream": "u", "auth": "p%d"}`, len(routes), match, len(routes), len(policies)-1))
		}
	}
	return programtest.Compile(t, 1, fmt.Sprintf("routes: [%s]\npolicies: [%s]\nupstreams: [{id: u, endpoints: ['10.0.0.1:80']}]\n", strings.Join(routes, ", "), strings.Join(policies, ", ")))
}

// tried makes one whose host has a policy in shadow mode.
func tried(t *testing.T, ca *testpki.Authority) *program.Program {
	return programtest.Compile(t, 1, fmt.Sprintf(`routes: [{id: r, host: a.example, path: /r, upstream: u, policies: [p]}]
policies: [{id: p, mode: shadow, mtls: {ca: %q, names: [{dns: client.example}]}}]
upstreams: [{id: u, endpoints: ['10.0.0.1:80']}]
`, ca.PEM))
}

// server shakes hands by a program that can be swapped.
type server struct {
	t       *testing.T
	program atomic.Pointer[program.Program]
	cfg     *tls.Config
	roots   *testpki.Authority
}

func newServer(t *testing.T, p *program.Program) *server {
	s := &server{t: t, roots: testpki.New(t, "Servers")}
	s.program.Store(p)
	pair := s.roots.Issue(t, testpki.Leaf{DNS: []string{"a.example", "b.example", "x.w.example", "open.example"}, Server: true})
	s.cfg = Asking(&tls.Config{Certificates: []tls.Certificate{*pair}, MinVersion: tls.VersionTLS12}, s.program.Load, nil)
	return s
}

// outcome is how a handshake went.
type outcome struct {
	err            error // of the server
	asked, resumed bool
	trust          string
	shown          int
}

// meet shakes hands with a client, which reads a byte so that tickets arrive.
func (s *server) meet(client *tls.Config, host string, pair *tls.Certificate) (o outcome) {
	s.t.Helper()
	client = client.Clone()
	client.RootCAs, client.ServerName = s.roots.Pool(), host
	client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if o.asked = true; pair == nil {
			return &tls.Certificate{}, nil
		}
		return pair, nil
	}
	l, err := net.Listen("tcp", "127.71.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		nc, err := l.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		tc := tls.Server(nc, s.cfg)
		if o.err = tc.Handshake(); o.err == nil {
			shown := Shown(tc.ConnectionState(), tc, s.program.Load())
			o.trust, o.shown, o.resumed = shown.Trust, len(tc.ConnectionState().PeerCertificates), tc.ConnectionState().DidResume
			_, _ = tc.Write([]byte("x"))
		}
	}()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	defer nc.Close()
	tc := tls.Client(nc, client)
	_, _ = io.ReadAll(tc)
	<-done
	return o
}

func TestOnlyHostsWhoseRoutesNeedACertificateAskForOne(t *testing.T) {
	one, two := testpki.New(t, "One"), testpki.New(t, "Two")
	s := newServer(t, compile(t, map[string][]*testpki.Authority{"a.example": {one}, "*.w.example": {one, two}, "open.example": nil}))
	pair := one.Issue(t, testpki.Leaf{DNS: []string{"client.example"}})
	for host, asks := range map[string]bool{"a.example": true, "x.w.example": true, "open.example": false, "b.example": false, "": false} {
		client := &tls.Config{InsecureSkipVerify: host == ""}
		if o := s.meet(client, host, pair); o.err != nil || o.asked != asks || (o.trust != "") != asks || (o.shown == 1) != asks {
			t.Errorf("%q: %+v", host, o)
		}
	}
	s.program.Store(compile(t, map[string][]*testpki.Authority{"127.71.0.1": {one}}))
	if o := s.meet(&tls.Config{InsecureSkipVerify: true}, "", pair); !o.asked {
		t.Error("a client that names no host is not asked for what the address needs")
	}
	s.program.Store(compile(t, map[string][]*testpki.Authority{"": {two}, "a.example": {one}}))
	for host := range map[string]bool{"b.example": true, "a.example": true} {
		if o := s.meet(&tls.Config{}, host, nil); !o.asked || o.err != nil || o.shown != 0 {
			t.Errorf("routes of any host: %q: %+v", host, o)
		}
	}
	if p := s.program.Load(); p.Trust("a.example").Digest == p.Trust("b.example").Digest {
		t.Error("one's own and everybody's are one set")
	}
	s.program.Store(tried(t, one))
	if o := s.meet(&tls.Config{}, "a.example", pair); !o.asked || o.shown != 1 {
		t.Errorf("a policy that is only tried: %+v", o)
	}
	s.program.Store(nil)
	if o := s.meet(&tls.Config{}, "a.example", pair); o.asked || o.err != nil {
		t.Errorf("without a program: %+v", o)
	}
}

// F2, G75: a ticket is good for the set of authorities that it was given for.
func TestTicketsStayWithinTheirSetOfAuthorities(t *testing.T) {
	one, two := testpki.New(t, "One"), testpki.New(t, "Two")
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		s := newServer(t, compile(t, map[string][]*testpki.Authority{"a.example": {one}, "x.w.example": {one}, "b.example": {two}}))
		pair := one.Issue(t, testpki.Leaf{DNS: []string{"client.example"}})
		sessions := &shared{}
		client := &tls.Config{MaxVersion: version, ClientSessionCache: sessions}
		meets := func(what, host string, pair *tls.Certificate, resumed bool, shown int) {
			t.Helper()
			if o := s.meet(client, host, pair); o.err != nil || o.resumed != resumed || o.shown != shown {
				t.Errorf("TLS %x: %s: %+v", version, what, o)
			}
		}
		meets("the first time", "a.example", pair, false, 1)
		meets("again", "a.example", pair, true, 1)
		meets("another host of the same authorities", "x.w.example", pair, true, 1)
		meets("a host of others", "b.example", pair, false, 1)
		meets("and back", "a.example", pair, false, 1)
		meets("a host that asks for nothing", "open.example", nil, false, 0)
		meets("again there", "open.example", nil, true, 0)
		meets("with a ticket of that", "a.example", pair, false, 1)
		meets("again", "a.example", pair, true, 1)
		s.program.Store(compile(t, map[string][]*testpki.Authority{"a.example": {one, two}}))
		meets("when others are trusted", "a.example", pair, false, 1)
		sessions.last = nil
		meets("without a certificate", "a.example", nil, false, 0)
		meets("which has come since", "a.example", pair, false, 1)
	}
}

// shared gives every host the last ticket of any.
type shared struct{ last *tls.ClientSessionState }

func (s *shared) Get(string) (*tls.ClientSessionState, bool)  { return s.last, s.last != nil }
func (s *shared) Put(_ string, state *tls.ClientSessionState) { s.last = state }

func TestWhatIsTooLargeEndsTheHandshake(t *testing.T) {
	ca := testpki.New(t, "One")
	s := newServer(t, compile(t, map[string][]*testpki.Authority{"a.example": {ca}}))
	var names []string
	for i := range 10_000 {
		names = append(names, fmt.Sprintf("n%d.example", i))
	}
	if o := s.meet(&tls.Config{}, "a.example", ca.Issue(t, testpki.Leaf{DNS: names})); o.err == nil || !o.asked {
		t.Errorf("%+v", o)
	}
	if o := s.meet(&tls.Config{}, "a.example", ca.Issue(t, testpki.Leaf{DNS: names[:500]})); o.err != nil || o.shown != 1 {
		t.Errorf("%+v", o)
	}
}

func TestTheHintLeavesOutWhatAHandshakeCarriesBadly(t *testing.T) {
	var all []*testpki.Authority
	for range 150 {
		all = append(all, testpki.New(t, strings.Repeat("x", 60)))
	}
	if p := compile(t, map[string][]*testpki.Authority{"a.example": all[:50], "b.example": all}); p.Trust("a.example").Hint == nil || p.Trust("b.example").Hint != nil {
		t.Error("the bound of hints is another one")
	}
}
