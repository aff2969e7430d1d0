package fleet_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/regionctl/fleet"
	"github.com/cellgate/cellgate/report"
	"github.com/cellgate/cellgate/trust"
)

// stage is a fleet server on a real socket with real identities.
type stage struct {
	t        *testing.T
	dir      string
	ca       *trust.CA
	roots    *trust.Roots
	addr     string
	board    *fleet.Board
	evidence *fleet.Evidence
}

func (s *stage) signer(role trust.Role, id cells.NodeID) *trust.Signer {
	cert, key, err := s.ca.Issue(trust.Identity{World: "gw.test", Role: role, ID: id}, []netip.Addr{netip.MustParseAddr("127.25.1.1")}, nil, time.Now(), time.Hour)
	if err != nil {
		s.t.Fatal(err)
	}
	signer, err := trust.NewSigner(cert, key)
	if err != nil {
		s.t.Fatal(err)
	}
	return signer
}

func newStage(t *testing.T, blobs map[string][]byte) *stage {
	ca, err := trust.NewCA("gw.test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{t: t, dir: t.TempDir(), ca: ca, board: fleet.NewBoard(), evidence: fleet.NewEvidence("e", time.Now)}
	caFile := filepath.Join(s.dir, "ca.pem")
	if err := os.WriteFile(caFile, ca.CertPEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	if s.roots, err = trust.LoadRoots(caFile); err != nil {
		t.Fatal(err)
	}
	server := fleet.NewServer(fleet.Config{
		World: "gw.test", Region: "e", Board: s.board, Evidence: s.evidence, Leader: func() bool { return true }, Now: time.Now, Log: slog.New(slog.DiscardHandler),
		Blobs: func(_ context.Context, d string) ([]byte, error) {
			if b, ok := blobs[d]; ok {
				return b, nil
			}
			return nil, errors.New("no such blob")
		},
		Identify: func(ctx context.Context) (trust.Identity, error) {
			p, _ := peer.FromContext(ctx)
			return trust.PeerIdentity(p.AuthInfo.(credentials.TLSInfo).State)
		},
	})
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(trust.ServerTLS(s.signer(trust.RoleController, "e/1"), s.roots, trust.RoleProxy, trust.RoleRouter, trust.RoleProber))))
	server.Register(srv)
	l, err := net.Listen("tcp", "127.25.1.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { server.Close(); srv.Stop(); <-done })
	return s
}

// member is a client of one role and what it was told.
type member struct {
	*nodeapi.Client
	mu   sync.Mutex
	told []string
}

func (m *member) heard() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.told, " ")
}

func (s *stage) member(role trust.Role, id cells.NodeID) *member {
	m := &member{}
	m.Client = nodeapi.NewClient(nodeapi.Options{
		Controllers: []string{s.addr}, TLS: trust.ClientTLS(s.signer(role, id), s.roots, trust.RoleController),
		Hello: func() *nodeapi.Hello { return &nodeapi.Hello{Boot: "b"} },
		Receive: func(d *nodeapi.Down) {
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, e := range [][]byte{d.GetTarget().GetEnvelope(), d.GetPlan().GetEnvelope(), d.GetTopology().GetEnvelope(), d.GetOverrides().GetEnvelope()} {
				if e != nil {
					m.told = append(m.told, string(e))
				}
			}
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
	return m
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("did not happen: " + what)
		}
	}
}

// The shared client and the controller's server agree: each role attaches, is told what it needs and no more, and is heard.
func TestEachRoleIsToldWhatItNeedsAndHeard(t *testing.T) {
	blob := []byte("shard")
	sum := sha256.Sum256(blob)
	digest := hex.EncodeToString(sum[:])
	s := newStage(t, map[string][]byte{digest: blob})
	s.board.PostTo("e", fleet.Mail{Kind: fleet.KindTarget, Epoch: 1, Number: 1, Envelope: []byte("target-e")})
	s.board.PostTo("u", fleet.Mail{Kind: fleet.KindTarget, Epoch: 1, Number: 1, Envelope: []byte("target-u")})
	s.board.Post(fleet.Mail{Kind: fleet.KindPlan, Epoch: 1, Number: 1, Envelope: []byte("plan")})
	s.board.Post(fleet.Mail{Kind: fleet.KindTopology, Envelope: []byte("topology")})
	proxy, router, prober := s.member(trust.RoleProxy, "e/a/1"), s.member(trust.RoleRouter, "e/1"), s.member(trust.RoleProber, "e/1")
	for m, want := range map[*member]string{proxy: "target-e topology", router: "plan topology", prober: "topology"} {
		eventually(t, want, func() bool { return m.Connected() && m.heard() == want })
	}

	raw, err := report.EncodeNode(report.Node{ID: "e/a/1", Boot: "b", Seq: 1, Window: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	proxy.Send(&nodeapi.Up{Message: &nodeapi.Up_Report{Report: raw}})
	round, err := report.EncodeProbes([]report.Probe{{From: "e", Cell: "e/a", OK: true}})
	if err != nil {
		t.Fatal(err)
	}
	prober.Send(&nodeapi.Up{Message: &nodeapi.Up_Probes{Probes: round}})
	eventually(t, "evidence", func() bool { return len(s.evidence.Nodes()) == 1 && len(s.evidence.Rounds()) == 1 })

	if got, err := proxy.Fetch(t.Context(), []string{digest}); err != nil || string(got[digest]) != "shard" {
		t.Errorf("a proxy's fetch: %v %v", got, err)
	}
	if _, err := router.Fetch(t.Context(), []string{digest}); err == nil {
		t.Error("a router fetched a shard")
	}

	// A target waits for the answer to the one before; a NACK is an answer.
	s.board.PostTo("e", fleet.Mail{Kind: fleet.KindTarget, Epoch: 1, Number: 2, Envelope: []byte("second")})
	time.Sleep(100 * time.Millisecond)
	if got := proxy.heard(); got != "target-e topology" {
		t.Errorf("two targets are outstanding: %s", got)
	}
	proxy.Send(&nodeapi.Up{Message: &nodeapi.Up_Ack{Ack: &nodeapi.Ack{Epoch: 1, Number: 1, Nack: "no"}}})
	eventually(t, "the next target", func() bool { return proxy.heard() == "target-e topology second" })
}

// What speaks for others is not heard: its stream ends, and nothing of it is believed.
func TestNobodySpeaksForOthers(t *testing.T) {
	s := newStage(t, nil)
	proxy := s.member(trust.RoleProxy, "e/a/1")
	forged, err := report.EncodeNode(report.Node{ID: "e/a/2", Boot: "b", Seq: 1, Window: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	probes, err := report.EncodeProbes([]report.Probe{{From: "u", Cell: "e/a"}})
	if err != nil {
		t.Fatal(err)
	}
	prober := s.member(trust.RoleProber, "e/1")
	eventually(t, "attached", func() bool { return proxy.Connected() && prober.Connected() })
	proxy.Send(&nodeapi.Up{Message: &nodeapi.Up_Report{Report: forged}})
	prober.Send(&nodeapi.Up{Message: &nodeapi.Up_Probes{Probes: probes}})
	eventually(t, "the forged report ends its stream", func() bool { return !proxy.Connected() })
	time.Sleep(200 * time.Millisecond)
	if n, r := len(s.evidence.Nodes()), len(s.evidence.Rounds()); n != 0 || r != 0 {
		t.Fatalf("%d nodes and %d rounds are believed", n, r)
	}
}
