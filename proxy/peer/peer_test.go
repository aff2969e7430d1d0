package peer_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/proxy/peer"
	"github.com/cellgate/cellgate/trust"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// realm is a CA and what it makes.
type realm struct {
	t     *testing.T
	ca    *trust.CA
	roots *trust.Roots
}

func newRealm(t *testing.T) *realm {
	ca, err := trust.NewCA("gw.test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	roots, err := trust.NewRoots(ca.CertPEM())
	if err != nil {
		t.Fatal(err)
	}
	return &realm{t, ca, roots}
}

func (r *realm) signer(role trust.Role, id cells.NodeID) *trust.Signer {
	cert, key, err := r.ca.Issue(trust.Identity{World: "gw.test", Role: role, ID: id}, []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil, time.Now(), time.Hour)
	if err != nil {
		r.t.Fatal(err)
	}
	s, err := trust.NewSigner(cert, key)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *realm) as(role trust.Role, id cells.NodeID) *tls.Config {
	return trust.ClientTLS(r.signer(role, id), r.roots, trust.RoleProxy)
}

// shelf is a node's copy.
type shelf struct {
	target    []byte
	denylists [][]byte
	blobs     map[string][]byte
}

func (s shelf) Target() []byte      { return s.target }
func (s shelf) Denylists() [][]byte { return s.denylists }
func (s shelf) Blob(d string) ([]byte, error) {
	if b, ok := s.blobs[d]; ok {
		return b, nil
	}
	return nil, errors.New("not here")
}

func (s *shelf) add(data string) (digest string) {
	sum := sha256.Sum256([]byte(data))
	digest = hex.EncodeToString(sum[:])
	if s.blobs == nil {
		s.blobs = map[string][]byte{}
	}
	s.blobs[digest] = []byte(data)
	return digest
}

// serve runs a node's service behind a listener as the engine would.
func (r *realm) serve(id cells.NodeID, s peer.Shelf) (address string) {
	service := peer.NewService(id.Cell(), s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	cfg := trust.ServerTLS(r.signer(trust.RoleProxy, id), r.roots, trust.RoleProxy)
	cfg.NextProtos = []string{"h2", "http/1.1"}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := service.Run(ctx); err != nil {
			r.t.Error(err)
		}
	})
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				tc := tls.Server(c, cfg)
				if tc.Handshake() == nil {
					service.Take(tc)
				}
			})
		}
	})
	r.t.Cleanup(func() { l.Close(); cancel(); wg.Wait() })
	return l.Addr().String()
}

// stalled accepts and says nothing.
func stalled(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

func TestPeersOfTheCellGiveWhatTheyServe(t *testing.T) {
	r := newRealm(t)
	full := &shelf{target: []byte("signed target"), denylists: [][]byte{[]byte("denylist"), make([]byte, 9<<20), []byte("beyond the bound")}}
	want := []string{full.add("manifest"), full.add(strings.Repeat("shard", 200_000))}
	addresses := []string{stalled(t), r.serve("e/a/2", shelf{}), r.serve("e/a/3", full), "127.0.0.1:1"}
	c := &peer.Cell{Peers: addresses, TLS: r.as(trust.RoleProxy, "e/a/1")}
	begin := time.Now()
	if got, denied := c.Ask(t.Context()); len(got) != 1 || string(got[0]) != "signed target" || len(denied) != 1 || string(denied[0]) != "denylist" {
		t.Fatalf("targets %q, %d denylists", got, len(denied))
	}
	blobs, err := c.Fetch(t.Context(), want)
	if err != nil || len(blobs) != 2 || string(blobs[want[0]]) != "manifest" || len(blobs[want[1]]) != 1_000_000 {
		t.Fatalf("%d blobs, %v", len(blobs), err)
	}
	if took := time.Since(begin); took > 8*time.Second {
		t.Errorf("one silent, one dead and one empty peer made it take %v", took)
	}
}

func TestACellsConfigurationIsForItsOwnProxiesAlone(t *testing.T) {
	r := newRealm(t)
	s := &shelf{target: []byte("signed target")}
	d := s.add("shard")
	at := r.serve("e/a/2", s)
	other := newRealm(t)
	for name, cfg := range map[string]*tls.Config{
		"another cell":  r.as(trust.RoleProxy, "e/b/1"),
		"another role":  r.as(trust.RoleRouter, "e/a/1"),
		"another world": trust.ClientTLS(other.signer(trust.RoleProxy, "e/a/1"), r.roots, trust.RoleProxy),
	} {
		c := &peer.Cell{Peers: []string{at}, TLS: cfg}
		if got, _ := c.Ask(t.Context()); len(got) != 0 {
			t.Errorf("%s was given a target", name)
		}
		if _, err := c.Fetch(t.Context(), []string{d}); err == nil {
			t.Errorf("%s was given a shard", name)
		}
	}
	mine := &peer.Cell{Peers: []string{at}, TLS: other.as(trust.RoleProxy, "e/a/1")}
	if got, _ := mine.Ask(t.Context()); len(got) != 0 {
		t.Error("a peer of another world was listened to")
	}
}

// However many peers hang, a look takes as long as for one of them, and who answered is asked for the rest.
func TestPeersThatHangCostALookOnce(t *testing.T) {
	r := newRealm(t)
	full := &shelf{target: []byte("signed target")}
	d := full.add("manifest")
	c := &peer.Cell{TLS: r.as(trust.RoleProxy, "e/a/1")}
	for range 15 {
		c.Peers = append(c.Peers, stalled(t))
	}
	c.Peers = append(c.Peers, r.serve("e/a/3", full))
	begin := time.Now()
	if got, _ := c.Ask(t.Context()); len(got) != 1 {
		t.Fatalf("targets %q", got)
	}
	for range 3 {
		if _, err := c.Fetch(t.Context(), []string{d}); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(begin); took > 6*time.Second { // of the 10 s in which an empty node must be ready
		t.Errorf("it took %v", took)
	}
}

// Connections that do nothing, and those of other cells, keep nobody out.
func TestIdleAndForeignPeersKeepNobodyOut(t *testing.T) {
	r := newRealm(t)
	at := r.serve("e/a/2", &shelf{target: []byte("signed target")})
	hold := func(cfg *tls.Config) {
		cfg.NextProtos = []string{"h2"}
		c, err := tls.Dial("tcp", at, cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_, _ = c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
	}
	own, foreign := r.as(trust.RoleProxy, "e/a/9"), r.as(trust.RoleProxy, "e/b/1")
	asked := &peer.Cell{Peers: []string{at}, TLS: r.as(trust.RoleProxy, "e/a/1")}
	for range 200 {
		hold(foreign)
	}
	if got, _ := asked.Ask(t.Context()); len(got) != 1 {
		t.Error("peers of another cell take all places")
	}
	for range 100 {
		hold(own)
	}
	for end := time.Now().Add(20 * time.Second); ; {
		if got, _ := asked.Ask(t.Context()); len(got) > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("peers that do nothing hold all places")
		}
	}
}

func TestAPeerThatGivesOtherBytesIsPassedOver(t *testing.T) {
	r := newRealm(t)
	good := &shelf{target: []byte("t")}
	d := good.add("the shard")
	liar := &shelf{blobs: map[string][]byte{d: []byte("another shard")}}
	c := &peer.Cell{Peers: []string{r.serve("e/a/2", liar), r.serve("e/a/3", good)}, TLS: r.as(trust.RoleProxy, "e/a/1")}
	for range 5 { // whichever is asked first
		if blobs, err := c.Fetch(t.Context(), []string{d}); err != nil || string(blobs[d]) != "the shard" {
			t.Fatalf("%q, %v", blobs[d], err)
		}
	}
	c.Peers = c.Peers[:1]
	if _, err := c.Fetch(t.Context(), []string{d}); err == nil || !strings.Contains(err.Error(), "another content") {
		t.Errorf("a lie was taken: %v", err)
	}
}

func TestAnObjectStoreIsReadAndNotBelieved(t *testing.T) {
	s := &shelf{}
	d := s.add("shard")
	lie := s.add("x")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/copy/targets/eu-west":
			_, _ = w.Write([]byte("signed target"))
		case "/copy/blobs/" + d:
			_, _ = w.Write([]byte("shard"))
		case "/copy/blobs/" + lie:
			_, _ = w.Write([]byte("another"))
		case "/copy/blobs/moved":
			http.Redirect(w, r, "/copy/blobs/"+d, http.StatusFound)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer srv.Close()
	store := &peer.Store{Prefix: srv.URL + "/copy/", Region: "eu-west"}
	if got, _ := store.Ask(t.Context()); len(got) != 1 || string(got[0]) != "signed target" {
		t.Errorf("targets %q", got)
	}
	if got, err := store.Fetch(t.Context(), []string{d}); err != nil || string(got[d]) != "shard" {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{lie, "moved", "missing"} {
		if _, err := store.Fetch(t.Context(), []string{d, bad}); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
	if got, _ := (&peer.Store{Prefix: srv.URL, Region: "mars"}).Ask(t.Context()); len(got) != 0 {
		t.Errorf("targets %q", got)
	}
}
