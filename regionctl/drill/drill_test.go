package drill

import (
	"context"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/regionctl"
	"github.com/cellgate/cellgate/snapshot"
)

// paper is a world that only remembers what it was ordered.
type paper struct {
	World
	status regionctl.Status
	pids   map[string]int
	orders []string
	nodes  []Node
	err    error // of orders
}

func (p *paper) Layout() Layout {
	return Layout{Host: "api.gw.test", Roots: x509.NewCertPool(), Regions: []Region{{ID: "eu", Cells: []Cell{{ID: "eu/a", Nodes: p.nodes}}}}}
}
func (p *paper) Processes(context.Context) (map[string]int, error) { return p.pids, nil }
func (p *paper) Status(context.Context) (regionctl.Status, error)  { return p.status, nil }
func (p *paper) Order(ctx context.Context, op string, names ...string) error {
	p.orders = append(p.orders, op+" "+strings.Join(names, " "))
	return errors.Join(p.err, ctx.Err())
}

func goodPaper() *paper {
	healthy := true
	return &paper{
		pids:  map[string]int{"proxy/eu/a/1": 7},
		nodes: []Node{{ID: "eu/a/1"}},
		status: regionctl.Status{
			Version: 3, Nodes: []regionctl.NodeStatus{{ID: "eu/a/1", Served: 3, Ready: true}},
			Cells: []regionctl.CellStatus{{ID: "eu/a", State: cells.Active, Healthy: &healthy}},
		},
	}
}

func options(dir string, said *[]string) Options {
	return Options{Say: func(l string) { *said = append(*said, l) }, Record: func(r Result) error { return Save(dir, r) }}
}

func TestADrillIsRefusedInAWorldThatIsNotInOrder(t *testing.T) {
	for name, spoil := range map[string]func(*paper){
		"proxy/eu/a/1 is down":      func(p *paper) { p.pids["proxy/eu/a/1"] = 0 },
		"version 4 is being rolled": func(p *paper) { p.status.Rollout = &regionctl.RolloutStatus{Version: 4, State: "baking"} },
		"serves version 2 of 3":     func(p *paper) { p.status.Nodes[0].Served = 2 },
		"eu/a is evacuating":        func(p *paper) { p.status.Cells[0].State = cells.Evacuating },
		"not known to be healthy":   func(p *paper) { p.status.Cells[0].Healthy = nil },
		"0 of 1 nodes":              func(p *paper) { p.status.Nodes = nil },
	} {
		w, dir := goodPaper(), t.TempDir()
		spoil(w)
		var said []string
		ran := false
		d := Drill{Name: "x", run: func(context.Context, *session) error { ran = true; return nil }}
		_, err := Run(t.Context(), w, d, options(dir, &said))
		var refused *Refused
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "--force") {
			t.Errorf("%s: %v", name, err)
		}
		if past, _ := List(dir); ran || len(past) > 0 {
			t.Errorf("%s: the drill ran: %v, %v", name, ran, past)
		}
	}
	if why := Check(t.Context(), goodPaper()); len(why) > 0 {
		t.Errorf("a world in order: %v", why)
	}
}

// Broken off in the middle, a drill puts back what it did, the last first, and goes on when one step fails.
func TestABrokenOffDrillPutsEverythingBack(t *testing.T) {
	w, dir := goodPaper(), t.TempDir()
	release, err := Claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	var said []string
	d := Drill{Name: "x", run: func(ctx context.Context, s *session) error {
		if past, err := List(dir); err != nil || len(past) != 1 || past[0].Outcome != Running {
			t.Errorf("on record before anything is broken: %v %v", past, err)
		}
		if err := s.stopFor(ctx, "the first", "proxy/eu/a/1"); err != nil {
			return err
		}
		s.later("the second", func(context.Context) error { return errors.New("stuck") })
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}}
	r, err := Run(ctx, w, d, options(dir, &said))
	if err == nil || r.Outcome != BrokenOff || !strings.Contains(r.Why, "stuck") {
		t.Errorf("%v: %+v", err, r)
	}
	if want := []string{"stop proxy/eu/a/1", "start proxy/eu/a/1"}; !reflect.DeepEqual(w.orders, want) {
		t.Errorf("orders %v, want %v", w.orders, want)
	}
	if want := []string{"FAILED: the second: stuck", "the first is started again"}; !reflect.DeepEqual(r.Undone, want) {
		t.Errorf("put back %q, want %q", r.Undone, want)
	}
	past, err := List(dir)
	if err != nil || len(past) != 1 || !reflect.DeepEqual(past[0], r) {
		t.Errorf("record %+v %v, want %+v", past, err, r)
	}
}

func TestOutcomeGoesByTheFigures(t *testing.T) {
	for _, c := range []struct {
		figures []Figure
		err     error
		want    Outcome
	}{
		{[]Figure{most("a", "s", 2, 2), least("b", "", 1, 1)}, nil, Passed},
		{[]Figure{most("a", "s", 2, 2.01), least("b", "", 1, 1)}, nil, Failed},
		{[]Figure{most("a", "s", 2, 1), least("b", "", 1, 0)}, nil, Failed},
		{[]Figure{most("a", "s", 2, 1)}, errors.New("no look"), Unproved},
	} {
		var said []string
		d := Drill{Name: "x", run: func(_ context.Context, s *session) error { s.result.Figures = c.figures; return c.err }}
		r, err := Run(t.Context(), goodPaper(), d, options(t.TempDir(), &said))
		if r.Outcome != c.want || (err == nil) != (c.err == nil) {
			t.Errorf("%v: %s %v", c.figures, r.Outcome, err)
		}
	}
}

func TestRecordsAreBoundedListedNewestFirstAndOneDrillRunsAtATime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "drills")
	release, err := Claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Claim(dir); err == nil {
		t.Error("a second drill may run")
	}
	release()
	if again, err := Claim(dir); err != nil {
		t.Error(err)
	} else {
		again()
	}
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for i := range maxRecords { // cheap stand-ins for old ones
		if err := os.WriteFile(filepath.Join(dir, at.Add(-time.Duration(i+1)*time.Hour).Format("20060102T150405Z")+"-cell.json"), []byte(`{"form":1}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range []string{"cell", "region"} {
		began := at.Add(time.Duration(i) * time.Minute)
		if err := Save(dir, Result{Form: Form, ID: began.Format("20060102T150405Z") + "-" + name, Drill: name, Began: began}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := List(dir)
	if err != nil || len(all) != maxRecords || all[0].Drill != "region" || all[1].Drill != "cell" {
		t.Errorf("%d records, %v, first %+v", len(all), err, all[:min(2, len(all))])
	}
	if err := os.WriteFile(filepath.Join(dir, "20990101T000000Z-cell.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err = List(dir)
	if err != nil || len(all) != maxRecords+1 || all[0].Outcome != Unreadable || all[0].ID != "20990101T000000Z-cell" || all[0].Drill != "cell" || all[0].Began.Year() != 2099 || all[0].Why == "" || all[1].Drill != "region" {
		t.Errorf("a damaged record hides the others: %v, %+v", err, all[:min(2, len(all))])
	}
	if none, err := List(filepath.Join(dir, "none")); err != nil || none != nil {
		t.Errorf("no directory: %v %v", none, err)
	}
}

// A drill that was killed has put nothing back: its record must not say for ever that it runs.
func TestARunWhoseProcessWasKilledSaysSo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "drills")
	release, err := Claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := Save(dir, Result{Form: Form, ID: "20260301T120000Z-cell", Drill: "cell", Outcome: Running}); err != nil {
		t.Fatal(err)
	}
	if all, err := List(dir); err != nil || all[0].Outcome != Running {
		t.Errorf("while it runs: %+v, %v", all, err)
	}
	release()
	if all, err := List(dir); err != nil || all[0].Outcome != Killed || !strings.Contains(all[0].Why, "cellgate status") {
		t.Errorf("once its process is gone: %+v, %v", all, err)
	}
}

func TestWhatADrillCannotHitIsRefusedBeforeItBegins(t *testing.T) {
	w := goodPaper()
	at := w.Layout()
	for _, c := range []struct {
		drill, target string
		ok            bool
	}{
		{"cell", "", true}, {"cell", string(at.cells()[0].ID), true}, {"cell", string(at.Regions[0].ID), false}, {"cell", "../../etc", false},
		{"region", string(at.Regions[0].ID), true}, {"region", string(at.cells()[0].ID), false}, {"gateway-process", string(at.nodes()[0].ID), true},
		{"gateway-process", "x", false}, {"control-plane", "", true}, {"control-plane", "x", false},
	} {
		d, _ := Find(c.drill)
		if err := d.Aim(at, c.target); (err == nil) != c.ok {
			t.Errorf("%s at %q: %v", c.drill, c.target, err)
		}
		if c.ok {
			continue
		}
		r, err := Run(t.Context(), w, d, Options{Target: c.target, Say: func(string) {}, Record: func(Result) error { t.Error("it is on record"); return nil }})
		if err == nil || r.ID != "" {
			t.Errorf("%s at %q began: %+v, %v", c.drill, c.target, r, err)
		}
	}
}

func TestEveryDrillIsNamedOnceAndSaysWhatItProves(t *testing.T) {
	want := []string{"gateway-process", "cell", "region", "control-plane", "quota-store", "bad-config", "identity-provider", "leaked-key", "slow-upstream", "backend", "discovery", "key-rotation", "hot-key", "handshake-storm"}
	var got []string
	for _, d := range All() {
		if got = append(got, d.Name); d.Short == "" || d.Proves == "" || d.run == nil {
			t.Errorf("%+v", d)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if _, ok := Find("flood"); ok {
		t.Error("an unknown drill is found")
	}
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func told(pairs ...string) map[question]netip.Addr {
	m := map[question]netip.Addr{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[question{"r1", netip.MustParsePrefix(pairs[i])}] = addr(pairs[i+1])
	}
	return m
}

func TestOnlyBystandersCountAsChangedAndHomeIsAnyLostCell(t *testing.T) {
	const lost1, lost2, other, third = "127.0.1.1", "127.0.1.2", "127.0.2.1", "127.0.2.2"
	a, b := "5.1.1.0/24", "5.2.1.0/24"
	at := time.Unix(1000, 0)
	w := &watch{samples: []sample{
		{at, told(a, lost1, b, other)},
		{at.Add(2 * time.Second), told(a, third, b, other)},
		{at.Add(3 * time.Second), told(a, third, b, third)},
		{at.Add(9 * time.Second), told(a, lost2, b, other)},
	}}
	killed := at.Add(time.Second)
	if n := w.changed(killed, at.Add(2500*time.Millisecond), addr(lost1), addr(lost2)); n != 0 {
		t.Errorf("%d bystanders moved before any did", n)
	}
	if n := w.changed(killed, at.Add(5*time.Second), addr(lost1), addr(lost2)); n != 1 {
		t.Errorf("%d bystanders moved, want 1", n)
	}
	lost := []netip.Addr{addr(lost1), addr(lost2)}
	if took, ok := w.await(t.Context(), killed, time.Second, without(lost)); !ok || took != time.Second {
		t.Errorf("gone after %v %v", took, ok)
	}
	if took, ok := w.await(t.Context(), killed, time.Second, home(w.before(killed).told, lost)); !ok || took != 8*time.Second {
		t.Errorf("home after %v %v", took, ok)
	}
	if _, ok := w.await(t.Context(), killed, 0, func(sample) bool { return false }); ok {
		t.Error("what never comes has come")
	}
	if without(lost)(sample{}) {
		t.Error("silence of all routers counts as an answer without the cell")
	}
}

func TestRequestsUnderWayAtTheKillAreTakenForThoseOnly(t *testing.T) {
	at := time.Unix(1000, 0)
	q := func(from, took time.Duration) load.Request {
		return load.Request{Start: at.Add(from), Took: took, Status: http.StatusBadGateway}
	}
	all := []load.Request{q(-time.Second, 2*time.Second), q(50*time.Millisecond, time.Millisecond), q(-time.Second, time.Millisecond), q(time.Second, time.Millisecond)}
	if n := failed(all, func(q load.Request) bool { return inFlight(q, at) }); n != 2 {
		t.Errorf("%d in flight, want 2", n)
	}
	if len(since(all, at)) != 2 || all[2].Status == 0 || all[3].Status == 0 {
		t.Error("looking at a part changes the whole")
	}
}

func TestProcessesOfARegionAreItsOwn(t *testing.T) {
	for name, want := range map[string]bool{
		"proxy/eu/a/1": true, "regionctl/eu/1": true, "etcd/eu": true, "etcd/global/eu": true, "globalrouter/eu/1": true,
		"proxy/eu-west/a/1": false, "etcd/global/us": false, "backend/eu": false, "idp/idp": false, "capacityd/world/1": false,
	} {
		if stands(name, "eu") != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func TestCanaryNodesAreReadFromTheRollout(t *testing.T) {
	x := &sightings{canaries: map[cells.NodeID]bool{}}
	nodes := []Node{{ID: "eu/a/1"}, {ID: "eu/a/11"}, {ID: "us/a/1"}}
	x.note(regionctl.RolloutStatus{State: "baking", Ring: "canary node [eu/a/11]"}, nodes)
	x.note(regionctl.RolloutStatus{State: "rolled_back", Ring: "rest of eu [eu/a]", History: []string{"2026 releasing canary node [us/a/1]: begun", "2026 baking canary cell [eu/a]: x"}}, nodes)
	if want := map[cells.NodeID]bool{"eu/a/11": true, "us/a/1": true}; !reflect.DeepEqual(x.canaries, want) || !x.ended {
		t.Errorf("%v, ended %v", x.canaries, x.ended)
	}
}

func TestWhatADrillNeedsIsFoundInThePublishedDocument(t *testing.T) {
	cfg := &snapshot.Config{
		Routes: []snapshot.Route{
			{ID: "post", Match: snapshot.Match{Host: "h", Path: "/p", Methods: []string{"POST"}}, Upstream: "b"},
			{ID: "same", Match: snapshot.Match{Host: "h", PathPrefix: "/s"}, Upstream: "a"},
			{ID: "open", Match: snapshot.Match{Host: "h", PathPrefix: "/o/"}, Upstream: "b"},
			{ID: "keyed", Match: snapshot.Match{Host: "k", Path: "/r/{id}/x"}, Upstream: "b", Auth: "key"},
		},
		Policies:  []snapshot.Policy{{ID: "key", APIKey: &snapshot.APIKey{}}},
		Consumers: []snapshot.Consumer{{ID: "c", APIKeyHashes: []string{auth.HashKey("cg_x")}}},
	}
	if host, path, err := keyed(cfg, "cg_x"); host != "k" || path != "/r/7/x" || err != nil {
		t.Errorf("%s %s %v", host, path, err)
	}
	for _, key := range []string{"", "cg_y"} {
		if _, _, err := keyed(cfg, key); err == nil {
			t.Errorf("key %q is nobody's", key)
		}
	}
	if path, err := public(cfg, "h", "a"); path != "/o/7" || err != nil {
		t.Errorf("%s %v", path, err)
	}
	if _, err := public(cfg, "k", "a"); err == nil {
		t.Error("a route with a policy is not public")
	}
}

func TestAForgedTokenDiffersInItsSignatureOnly(t *testing.T) {
	const token = "eyJh.eyJi.AAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	got, err := forge(token)
	if err != nil || got == token || got[:strings.LastIndexByte(got, '.')] != "eyJh.eyJi" {
		t.Errorf("%s %v", got, err)
	}
	if _, err := forge("opaque"); err == nil {
		t.Error("what is no JWT was forged")
	}
}

func TestTheAgeIsReadFromTheNodesMetric(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer admin" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = w.Write([]byte("# HELP x\ncellgate_proxy_config_age_seconds_other 9\ncellgate_proxy_config_age_seconds 12.5\n"))
	}))
	defer srv.Close()
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	s := &session{at: Layout{Admin: "admin", Roots: pool}}
	defer s.doors.close()
	n := Node{Admin: netip.MustParseAddrPort(srv.Listener.Addr().String())}
	if age := s.age(t.Context(), n); age != 12.5 {
		t.Errorf("age %v", age)
	}
	s.at.Admin = "wrong"
	if age := s.age(t.Context(), n); age != 0 {
		t.Errorf("age %v although the node refused", age)
	}
}
