package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/report"
	"github.com/cellgate/cellgate/trust"
)

func who(role trust.Role, id cells.NodeID) trust.Identity {
	return trust.Identity{World: "gw.test", Role: role, ID: id}
}

func kindsOf(ms []Mail) string {
	s := ""
	for _, m := range ms {
		s += fmt.Sprintf("%d(%d.%d) ", m.Kind, m.Epoch, m.Number)
	}
	return s
}

func full() *Board {
	b := NewBoard()
	b.PostTo("eu-west", Mail{Kind: KindTarget, Epoch: 3, Number: 7, Envelope: []byte("t-eu")})
	b.PostTo("us-east", Mail{Kind: KindTarget, Epoch: 3, Number: 8, Envelope: []byte("t-us")})
	b.Post(Mail{Kind: KindPlan, Epoch: 3, Number: 2, Envelope: []byte("p")})
	b.Post(Mail{Kind: KindTopology, Envelope: []byte("y")})
	b.Post(Mail{Kind: KindOverrides, Envelope: []byte("o")})
	return b
}

// A process gets what its role needs, of its own region, and nothing else.
func TestRoleAndRegionOfTheCertificateDecideWhatAProcessGets(t *testing.T) {
	now := time.Now()
	evacuated := full()
	evacuated.Leave(map[cells.CellID]bool{"eu-west/a": true})
	for id, want := range map[trust.Identity]string{
		who(trust.RoleProxy, "eu-west/a/1"):    "0(3.7) 3(0.0) 2(0.0) ",
		who(trust.RoleProxy, "us-east/b/2"):    "0(3.8) 3(0.0) 2(0.0) ",
		who(trust.RoleProxy, "mars/a/1"):       "3(0.0) 2(0.0) ",
		who(trust.RoleRouter, "eu-west/1"):     "1(3.2) 2(0.0) 3(0.0) ",
		who(trust.RoleProber, "eu-west/1"):     "2(0.0) ",
		who(trust.RolePlanner, "world/1"):      "",
		who(trust.RoleController, "eu-west/1"): "",
	} {
		if got := kindsOf(newSession(id, &nodeapi.Hello{}, full()).due(now)); got != want {
			t.Errorf("%s gets %q, want %q", id, got, want)
		}
	}
	for id, want := range map[cells.NodeID]string{"eu-west/a/1": "0(3.7) 3(0.0) 2(0.0) 1(3.2) ", "eu-west/b/1": "0(3.7) 3(0.0) 2(0.0) "} {
		if got := kindsOf(newSession(who(trust.RoleProxy, id), &nodeapi.Hello{}, evacuated).due(now)); got != want {
			t.Errorf("%s of a world with eu-west/a evacuated gets %q, want %q", id, got, want)
		}
	}
}

func TestOneTargetIsOutstandingAndTheNewestFollows(t *testing.T) {
	b, now := full(), time.Now()
	s := newSession(who(trust.RoleProxy, "eu-west/a/1"), &nodeapi.Hello{}, b)
	s.wake = make(chan struct{}, 1)
	s.due(now)
	for n := uint64(8); n <= 20; n++ {
		b.PostTo("eu-west", Mail{Kind: KindTarget, Epoch: 3, Number: n, Envelope: []byte{byte(n)}})
		if got := kindsOf(s.due(now)); got != "" {
			t.Fatalf("before the ACK it is sent %q", got)
		}
	}
	s.answered(&nodeapi.Ack{Epoch: 3, Number: 6}) // of an older one
	if got := kindsOf(s.due(now)); got != "" {
		t.Errorf("after the ACK of another target: %q", got)
	}
	s.answered(&nodeapi.Ack{Epoch: 3, Number: 7, Nack: "no"})
	if got := kindsOf(s.due(now)); got != "0(3.20) " {
		t.Errorf("after the answer: %q", got)
	}
	b.PostTo("eu-west", Mail{Kind: KindTarget, Epoch: 4, Number: 1, Envelope: []byte("x")})
	if got := kindsOf(s.due(now.Add(ackPatience))); got != "0(4.1) " {
		t.Errorf("a node that never answers: %q", got)
	}
}

func TestOlderMessagesNeverReplaceNewerOnes(t *testing.T) {
	b := full()
	b.Post(Mail{Kind: KindPlan, Epoch: 2, Number: 99, Envelope: []byte("old")})
	b.Post(Mail{Kind: KindPlan, Epoch: 3, Number: 1, Envelope: []byte("old")})
	if m, _ := b.read(KindPlan, ""); string(m.Envelope) != "p" {
		t.Errorf("plan %s", m.Envelope)
	}
	b.PostTo("eu-west", Mail{Kind: KindTarget, Epoch: 2, Number: 99, Envelope: []byte("old")})
	if m, _ := b.read(KindTarget, "eu-west"); string(m.Envelope) != "t-eu" {
		t.Errorf("target %s", m.Envelope)
	}
}

// A process that has the list of keys is not sent it again; a new signature under the same number is.
func TestKeysAreSentToProxiesThatDontHaveThem(t *testing.T) {
	b := NewBoard()
	keys := func(role trust.Role, has uint64) string {
		return kindsOf(newSession(who(role, "eu-west/a/1"), &nodeapi.Hello{KeysNumber: has}, b).due(time.Now()))
	}
	b.Post(Mail{Kind: KindKeys, Number: 7, Envelope: []byte("k")})
	b.Post(Mail{Kind: KindKeys, Number: 6, Envelope: []byte("older")})
	if none, old, same, router := keys(trust.RoleProxy, 0), keys(trust.RoleProxy, 6), keys(trust.RoleProxy, 7), keys(trust.RoleRouter, 0); none != "7(0.7) " || old != none || same != "" || router != "" {
		t.Errorf("%q, %q, %q, a router %q", none, old, same, router)
	}
	if m, _ := b.read(KindKeys, "eu-west"); string(m.Envelope) != "k" {
		t.Errorf("an older list replaces: %s", m.Envelope)
	}
	b.Post(Mail{Kind: KindKeys, Number: 7, Envelope: []byte("signed anew")})
	if m, _ := b.read(KindKeys, "eu-west"); string(m.Envelope) != "signed anew" {
		t.Errorf("%s is shown", m.Envelope)
	}
}

// What says the same under another signature replaces it when it can be verified for longer, and never the other way round:
// two places that show one each don't take turns.
func TestWhatWasSignedAnewReplacesWhatSaysTheSame(t *testing.T) {
	b, now := NewBoard(), time.Now()
	for _, kind := range []Kind{KindTarget, KindPlan} {
		show := func(envelope string, until time.Duration) (string, uint64) {
			b.Post(Mail{Kind: kind, Epoch: 3, Number: 4, Envelope: []byte(envelope), Until: now.Add(until)})
			m, _ := b.read(kind, "eu-west")
			return string(m.Envelope), m.stamp
		}
		_, first := show("old", time.Hour)
		got, anew := show("new", 2*time.Hour)
		if got != "new" || anew == first {
			t.Errorf("kind %d: %s is shown", kind, got)
		}
		for _, e := range []string{"old", "new", "third"} {
			if got, stamp := show(e, time.Hour); got != "new" || stamp != anew {
				t.Errorf("kind %d: %s replaced it", kind, e)
			}
		}
	}
}

func TestWhatAProcessHasAlreadyIsNotSentAgain(t *testing.T) {
	hello := &nodeapi.Hello{TargetEpoch: 3, TargetNumber: 7}
	if got := kindsOf(newSession(who(trust.RoleProxy, "eu-west/a/1"), hello, full()).due(time.Now())); got != "3(0.0) 2(0.0) " {
		t.Errorf("a node that has the target gets %q", got)
	}
	hello = &nodeapi.Hello{PlanEpoch: 3, PlanNumber: 1}
	if got := kindsOf(newSession(who(trust.RoleRouter, "eu-west/1"), hello, full()).due(time.Now())); got != "1(3.2) 2(0.0) 3(0.0) " {
		t.Errorf("a router that has an older plan gets %q", got)
	}
}

func server(id trust.Identity) *Server {
	return NewServer(Config{
		World: "gw.test", Region: "eu-west", Board: full(), Evidence: NewEvidence("eu-west", time.Now),
		Blobs:    func(context.Context, string) ([]byte, error) { return []byte("b"), nil },
		Identify: func(context.Context) (trust.Identity, error) { return id, nil },
		Leader:   func() bool { return false }, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
}

type blobStream struct {
	ctx  context.Context
	sent int
}

func (s *blobStream) Send(*nodeapi.Chunk) error    { s.sent++; return nil }
func (s *blobStream) Context() context.Context     { return s.ctx }
func (s *blobStream) SetHeader(metadata.MD) error  { return nil }
func (s *blobStream) SendHeader(metadata.MD) error { return nil }
func (s *blobStream) SetTrailer(metadata.MD)       {}
func (s *blobStream) SendMsg(any) error            { return nil }
func (s *blobStream) RecvMsg(any) error            { return nil }

func TestOnlyProxiesFetchAndOnlyOurWorldPolls(t *testing.T) {
	for _, role := range []trust.Role{trust.RoleRouter, trust.RoleProber, trust.RoleOperator, trust.RoleProxy} {
		s := &blobStream{ctx: t.Context()}
		err := server(who(role, "eu-west/1")).Fetch(&nodeapi.FetchRequest{Digests: []string{"d"}}, s)
		if ok := err == nil && s.sent > 0; ok != (role == trust.RoleProxy) {
			t.Errorf("%s fetches: %v", role, err)
		}
	}
	stranger := trust.Identity{World: "other.test", Role: trust.RoleProxy, ID: "eu-west/a/1"}
	if _, err := server(stranger).Poll(t.Context(), &nodeapi.Hello{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a node of another world: %v", err)
	}
}

func TestNobodyReportsForAnother(t *testing.T) {
	encode := func(id cells.NodeID) []byte {
		raw, err := report.EncodeNode(report.Node{ID: id, Boot: "b", Seq: 1})
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	probes := func(from cells.RegionID) []byte {
		raw, err := report.EncodeProbes([]report.Probe{{From: from, Cell: "eu-west/a", OK: true}})
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	for name, c := range map[string]struct {
		id trust.Identity
		up *nodeapi.Up
		ok bool
	}{
		"its own report":    {who(trust.RoleProxy, "eu-west/a/1"), &nodeapi.Up{Message: &nodeapi.Up_Report{Report: encode("eu-west/a/1")}}, true},
		"another's report":  {who(trust.RoleProxy, "eu-west/a/1"), &nodeapi.Up{Message: &nodeapi.Up_Report{Report: encode("eu-west/a/2")}}, false},
		"a router's report": {who(trust.RoleRouter, "eu-west/1"), &nodeapi.Up{Message: &nodeapi.Up_Report{Report: encode("eu-west/1")}}, false},
		"garbage":           {who(trust.RoleProxy, "eu-west/a/1"), &nodeapi.Up{Message: &nodeapi.Up_Report{Report: []byte("{")}}, false},
		"a prober's probes": {who(trust.RoleProber, "eu-west/1"), &nodeapi.Up{Message: &nodeapi.Up_Probes{Probes: probes("eu-west")}}, true},
		"a foreign vantage": {who(trust.RoleProber, "eu-west/1"), &nodeapi.Up{Message: &nodeapi.Up_Probes{Probes: probes("us-east")}}, false},
		"a proxy's probes":  {who(trust.RoleProxy, "eu-west/a/1"), &nodeapi.Up{Message: &nodeapi.Up_Probes{Probes: probes("eu-west")}}, false},
		"something unknown": {who(trust.RoleProxy, "eu-west/a/1"), &nodeapi.Up{}, true},
	} {
		if err := server(c.id).hear(&session{id: c.id}, c.up); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEvidenceIsBoundedAndCountsRestarts(t *testing.T) {
	now := time.Now()
	e := NewEvidence("eu-west", func() time.Time { now = now.Add(time.Microsecond); return now })
	for i := range MaxNodes + 10 {
		e.Hear(report.Node{ID: cells.NodeID(fmt.Sprintf("eu-west/a/%d", i)), Boot: "a", Seq: 1}, nil)
	}
	if n := len(e.Nodes()); n != MaxNodes {
		t.Errorf("%d nodes are remembered", n)
	}
	e = NewEvidence("eu-west", time.Now)
	for _, w := range []report.Node{{Boot: "a", Seq: 2}, {Boot: "a", Seq: 1}, {Boot: "a", Seq: 2}, {Boot: "b", Seq: 1}, {Boot: "c", Seq: 1}} {
		w.ID = "eu-west/a/1"
		e.Hear(w, nil)
	}
	if n := e.Nodes()[0]; n.Boots != 3 || n.Report.Boot != "c" {
		t.Errorf("%+v", n)
	}
}

// A node's window that a peer tells again is not news: its age goes on growing. Rounds of probes are told once.
func TestRepeatedRollupsDoNotMakeEvidenceYoung(t *testing.T) {
	now := time.Now()
	there := NewEvidence("us-east", func() time.Time { return now })
	here := NewEvidence("eu-west", func() time.Time { return now })
	raw, err := report.EncodeNode(report.Node{ID: "us-east/a/1", Boot: "b", Seq: 5})
	if err != nil {
		t.Fatal(err)
	}
	ps := []report.Probe{{From: "us-east", Cell: "us-east/a", OK: true}}
	probes, err := report.EncodeProbes(ps)
	if err != nil {
		t.Fatal(err)
	}
	there.Hear(report.Node{ID: "us-east/a/1", Boot: "b", Seq: 5}, raw)
	there.HearProbes("us-east", ps, probes)
	first := now
	sent := map[cells.RegionID]time.Time{}
	for range 5 {
		if err := here.hearPeer("us-east", there.rollup(sent)); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Second)
	}
	if n := here.Nodes()[0]; !n.Arrived.Equal(first) || n.Via != "us-east" {
		t.Errorf("node: %s after the first, via %s", n.Arrived.Sub(first), n.Via)
	}
	if r := here.Rounds()[0]; !r.Arrived.Equal(first) {
		t.Errorf("probes: %s after the first", r.Arrived.Sub(first))
	}
	there.HearProbes("us-east", ps, probes) // the same content, seen again
	if err := here.hearPeer("us-east", there.rollup(sent)); err != nil || !here.Rounds()[0].Arrived.Equal(now) {
		t.Errorf("a new round of the same content is not heard: %v", err)
	}
	if r := here.rollup(map[cells.RegionID]time.Time{}); len(r.Reports) != 0 || r.Probes != nil {
		t.Errorf("what came from a peer is passed on: %v", r)
	}
	if err := here.hearPeer("us-east", &nodeapi.Rollup{Region: "us-east", Reports: [][]byte{[]byte("{")}}); err == nil {
		t.Error("a broken roll-up is taken")
	}
}
