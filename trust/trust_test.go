package trust

import (
	"bytes"
	"crypto/tls"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newCA(t testing.TB, world string, now time.Time) (*CA, *Roots) {
	t.Helper()
	ca, err := NewCA(world, now)
	if err != nil {
		t.Fatal(err)
	}
	roots, err := NewRoots(ca.CertPEM())
	if err != nil {
		t.Fatal(err)
	}
	return ca, roots
}

func issue(t testing.TB, ca *CA, role Role, id cells.NodeID, now time.Time, life time.Duration) *Signer {
	t.Helper()
	ips := []netip.Addr{netip.MustParseAddr("127.24.0.1")}
	cert, key, err := ca.Issue(Identity{World: ca.World(), Role: role, ID: id}, ips, []string{"localhost"}, now, life)
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSigner(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestIdentitySurvivesItsCertificate(t *testing.T) {
	ca, _ := newCA(t, "gw.test", start)
	for _, id := range []cells.NodeID{"eu-west/a/1", "eu-west/1", "operator", "ü b"} {
		s := issue(t, ca, RoleProxy, id, start, time.Hour)
		if got := s.Identity(); got != (Identity{World: "gw.test", Role: RoleProxy, ID: id}) {
			t.Errorf("certificate of %q names %+v", id, got)
		}
	}
}

func TestBrokenIdentitiesAreNotIssued(t *testing.T) {
	ca, _ := newCA(t, "gw.test", start)
	for _, id := range []Identity{
		{World: "other.test", Role: RoleProxy, ID: "a"},
		{World: "gw.test", ID: "a"},
		{World: "gw.test", Role: RoleProxy},
		{World: "gw.test", Role: "a/b", ID: "c"},
	} {
		if _, _, err := ca.Issue(id, nil, nil, start, time.Hour); err == nil {
			t.Errorf("%+v was issued a certificate", id)
		}
	}
	for _, world := range []string{"", "a b", "gw.test/x", "gw.test:1", "user@gw.test"} {
		if _, err := NewCA(world, start); err == nil {
			t.Errorf("a CA for world %q was made", world)
		}
	}
}

func TestEnvelopeGivesBackWhatTheSignerPutIn(t *testing.T) {
	ca, roots := newCA(t, "gw.test", start)
	s := issue(t, ca, RoleController, "eu-west/1", start, time.Hour)
	for _, payload := range [][]byte{nil, []byte("{}"), bytes.Repeat([]byte("x"), 1<<20)} {
		env, err := s.Sign(KindPlan, payload)
		if err != nil {
			t.Fatal(err)
		}
		got, by, err := roots.Verify(KindPlan, env, start.Add(time.Minute), RoleOperator, RoleController)
		if err != nil || !bytes.Equal(got, payload) || by != s.Identity() {
			t.Fatalf("%d bytes by %s: %v", len(got), by, err)
		}
		if got, err := Payload(KindPlan, env); err != nil || !bytes.Equal(got, payload) {
			t.Fatalf("unverified payload: %v", err)
		}
	}
	if _, err := s.Sign(KindPlan, make([]byte, MaxPayload+1)); err == nil {
		t.Fatal("a payload above the bound was signed")
	}
}

func TestEnvelopesOfOthersAreRefused(t *testing.T) {
	ca, roots := newCA(t, "gw.test", start)
	// An impostor with the same world's name but another CA, and an honest CA of another world.
	impostor, _ := newCA(t, "gw.test", start)
	foreign, _ := newCA(t, "other.test", start)
	cases := []struct {
		name, want string
		signer     *Signer
		now        time.Time
	}{
		{"wrong role", "none of the roles", issue(t, ca, RoleProxy, "eu-west/a/1", start, time.Hour), start},
		{"another CA of the same name", "unknown authority", issue(t, impostor, RoleController, "eu-west/1", start, time.Hour), start},
		{"another world", "unknown authority", issue(t, foreign, RoleController, "eu-west/1", start, time.Hour), start},
		{"expired", "expired", issue(t, ca, RoleController, "eu-west/1", start, time.Hour), start.Add(2 * time.Hour)},
		{"not valid yet", "not yet valid", issue(t, ca, RoleController, "eu-west/1", start.Add(24*time.Hour), time.Hour), start},
	}
	for _, c := range cases {
		env, err := c.signer.Sign(KindTarget, []byte("payload"))
		if err != nil {
			t.Fatal(err)
		}
		if p, _, err := roots.Verify(KindTarget, env, c.now, RoleController); err == nil || p != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: payload %q, error %v", c.name, p, err)
		}
	}
}

func TestRootsOfAForeignWorldInOneFileAreRefused(t *testing.T) {
	a, _ := newCA(t, "gw.test", start)
	b, _ := newCA(t, "other.test", start)
	c, _ := newCA(t, "gw.test", start)
	if _, err := NewRoots(append(a.CertPEM(), b.CertPEM()...)); err == nil {
		t.Error("roots of two worlds were taken")
	}
	both, err := NewRoots(append(a.CertPEM(), c.CertPEM()...))
	if err != nil {
		t.Fatal(err)
	}
	for _, ca := range []*CA{a, c} { // both CAs count while one is replaced by the other
		env, _ := issue(t, ca, RoleController, "eu-west/1", start, time.Hour).Sign(KindPlan, nil)
		if _, _, err := both.Verify(KindPlan, env, start, RoleController); err != nil {
			t.Error(err)
		}
	}
	leaf, _, _ := a.Issue(Identity{"gw.test", RoleProxy, "x"}, nil, nil, start, time.Hour)
	for _, raw := range [][]byte{nil, []byte("junk"), leaf, append(a.CertPEM(), "junk"...)} {
		if _, err := NewRoots(raw); err == nil {
			t.Errorf("roots taken from %.40q", raw)
		}
	}
}

func TestChangedEnvelopesAreRefused(t *testing.T) {
	ca, roots := newCA(t, "gw.test", start)
	s := issue(t, ca, RoleController, "eu-west/1", start, time.Hour)
	env, err := s.Sign(KindTarget, []byte("the payload"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := roots.Verify(KindPlan, env, start, RoleController); err == nil {
		t.Error("a target passed for a plan")
	}
	if _, err := Payload(KindPlan, env); err == nil {
		t.Error("a target was read as a plan")
	}
	for i := range env {
		for _, flip := range []byte{1, 0x80} {
			bad := bytes.Clone(env)
			bad[i] ^= flip
			if p, _, err := roots.Verify(KindTarget, bad, start, RoleController); err == nil && !bytes.Equal(p, []byte("the payload")) {
				t.Fatalf("byte %d changed, and %q was taken", i, p)
			} else if err == nil {
				t.Fatalf("byte %d changed unnoticed", i)
			}
		}
		if _, _, err := roots.Verify(KindTarget, env[:i], start, RoleController); err == nil {
			t.Fatalf("an envelope cut at %d was taken", i)
		}
	}
	if _, _, err := roots.Verify(KindTarget, append(bytes.Clone(env), 0), start, RoleController); err == nil {
		t.Error("an envelope with something after it was taken")
	}
	// A kind swapped together with its length: the signature covers it.
	swapped := bytes.Replace(bytes.Clone(env), []byte("\x00\x00\x00\x06target"), []byte("\x00\x00\x00\x04plan"), 1)
	if _, _, err := roots.Verify(KindPlan, swapped, start, RoleController); err == nil || !strings.Contains(err.Error(), "signature") {
		t.Errorf("kind swapped: %v", err)
	}
}

func TestFilesOnDiskLoad(t *testing.T) {
	ca, _ := newCA(t, "gw.test", start)
	key, err := ca.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	again, err := LoadCA(ca.CertPEM(), key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM, keyPEM, err := again.Issue(Identity{"gw.test", RoleProber, "eu-west/1"}, nil, nil, start, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string, b []byte) string {
		p := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	roots, err := LoadRoots(file("ca.pem", ca.CertPEM()))
	if err != nil {
		t.Fatal(err)
	}
	s, err := LoadSigner(file("cert.pem", certPEM), file("key.pem", keyPEM))
	if err != nil {
		t.Fatal(err)
	}
	env, _ := s.Sign(KindPlan, nil)
	if _, _, err := roots.Verify(KindPlan, env, start, RoleProber); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadSigner(file("cert.pem", certPEM), file("other.pem", key)); err == nil {
		t.Error("a key that belongs to another certificate was taken")
	}
	if _, err := LoadSigner("/does/not/exist", "/neither"); err == nil {
		t.Error("missing files were taken")
	}
	if _, err := LoadCA(certPEM, keyPEM); err == nil {
		t.Error("a leaf was taken for a CA")
	}
}

// shake runs one TLS handshake and gives both ends' errors and what the server saw of the client.
func shake(t *testing.T, server, client *tls.Config) (Identity, error, error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.24.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	type seen struct {
		id  Identity
		err error
	}
	done := make(chan seen, 1)
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			done <- seen{err: err}
			return
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(5 * time.Second))
		tc := tls.Server(conn, server)
		if err := tc.Handshake(); err != nil {
			done <- seen{err: err}
			return
		}
		id, err := PeerIdentity(tc.ConnectionState())
		done <- seen{id, err}
	}()
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	cerr := tls.Client(conn, client).Handshake()
	if cerr != nil {
		conn.Close()
	}
	s := <-done
	return s.id, s.err, cerr
}

func TestMutualTLSGoesByRole(t *testing.T) {
	now := time.Now()
	ca, roots := newCA(t, "gw.test", now)
	other, otherRoots := newCA(t, "gw.test", now)
	controller := issue(t, ca, RoleController, "eu-west/1", now, time.Hour)
	node := issue(t, ca, RoleProxy, "eu-west/a/1", now, time.Hour)
	server := ServerTLS(controller, roots, RoleProxy, RoleRouter)

	if id, serr, cerr := shake(t, server, ClientTLS(node, roots, RoleController)); serr != nil || cerr != nil || id != node.Identity() {
		t.Fatalf("honest handshake: %v, server %v, client %v", id, serr, cerr)
	}
	refusedByServer := map[string]*Signer{
		"a prober":       issue(t, ca, RoleProber, "eu-west/1", now, time.Hour),
		"another CA":     issue(t, other, RoleProxy, "eu-west/a/1", now, time.Hour),
		"an expired one": issue(t, ca, RoleProxy, "eu-west/a/1", now.Add(-3*time.Hour), time.Hour),
	}
	for name, s := range refusedByServer {
		if _, serr, _ := shake(t, server, ClientTLS(s, roots, RoleController)); serr == nil {
			t.Errorf("%s was let in", name)
		}
	}
	if _, serr, _ := shake(t, server, &tls.Config{InsecureSkipVerify: true}); serr == nil {
		t.Error("a client without a certificate was let in")
	}
	if _, _, cerr := shake(t, server, ClientTLS(node, roots, RoleEtcd)); cerr == nil {
		t.Error("the client took a controller for an etcd")
	}
	if _, _, cerr := shake(t, server, ClientTLS(node, otherRoots, RoleController)); cerr == nil {
		t.Error("the client took a server of another CA")
	}
	old := ClientTLS(node, roots, RoleController)
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if _, serr, _ := shake(t, server, old); serr == nil {
		t.Error("TLS 1.2 was spoken")
	}
}

func TestSessionsAreNotResumed(t *testing.T) {
	now := time.Now()
	ca, roots := newCA(t, "gw.test", now)
	server := ServerTLS(issue(t, ca, RoleController, "eu-west/1", now, time.Hour), roots, RoleProxy)
	client := ClientTLS(issue(t, ca, RoleProxy, "eu-west/a/1", now, time.Hour), roots, RoleController)
	client.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	client.ServerName = "controller"
	ln, err := tls.Listen("tcp", "127.24.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			conn.Write([]byte("x"))
			conn.Close()
		}
	}()
	for range 2 {
		conn, err := tls.Dial("tcp", ln.Addr().String(), client)
		if err != nil {
			t.Fatal(err)
		}
		conn.Read(make([]byte, 1))
		if conn.ConnectionState().DidResume {
			t.Error("a session was resumed")
		}
		conn.Close()
	}
}

func FuzzVerify(f *testing.F) {
	ca, roots := newCA(f, "gw.test", start)
	s := issue(f, ca, RoleController, "eu-west/1", start, time.Hour)
	good, err := s.Sign(KindPlan, []byte("payload"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte("CGE\x01\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		payload, by, err := roots.Verify(KindPlan, b, start, RoleController)
		if err == nil && (string(payload) != "payload" || by != s.Identity()) {
			t.Fatalf("%q of %s was never signed", payload, by)
		}
	})
}
