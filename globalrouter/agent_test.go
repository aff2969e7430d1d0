package globalrouter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/cellgate/cellgate/globalrouter/steer"
)

// sealed stands for a signed envelope: the payload behind a word.
func sealed(p *steer.Plan) []byte {
	raw, _ := json.Marshal(p)
	return append([]byte("signed:"), raw...)
}

func testAgent(t *testing.T, dir string) *Agent {
	return &Agent{
		Dir: dir, Zone: mustZone(t, shallow(testZone)), Server: &Server{}, Log: slog.New(slog.DiscardHandler),
		Verify: func(e []byte, now time.Time) ([]byte, error) {
			payload, ok := bytes.CutPrefix(e, []byte("signed:"))
			if !ok || bytes.Contains(payload, []byte(ended)) && !now.IsZero() {
				return nil, errors.New("not signed, or its signer's certificate has ended")
			}
			return payload, nil
		},
	}
}

// ended is the id of a set in plans whose signer's certificate has ended by now.
const ended = "of an ended signer"

func numbered(epoch, number uint64) *steer.Plan {
	p := testPlan()
	p.Epoch, p.Number = epoch, number
	return p
}

// L6, P9: only a newer plan replaces the served one, whatever else is wrong with the other.
func TestOlderForgedAndBrokenPlansAreRefused(t *testing.T) {
	a := testAgent(t, filepath.Join(t.TempDir(), "plans"))
	if err := a.Load(); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if err := a.Accept(sealed(numbered(5, 7)), "push", now); err != nil {
		t.Fatal(err)
	}
	broken := numbered(9, 9)
	broken.Rows[0][1][3] = 77
	for name, e := range map[string][]byte{
		"the same": sealed(numbered(5, 7)), "older number": sealed(numbered(5, 6)), "older epoch": sealed(numbered(4, 900)),
		"forged": sealed(numbered(6, 8))[1:], "broken": sealed(broken), "nothing": nil, "not a plan": []byte("signed:{}"),
	} {
		if err := a.Accept(e, "push", now); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if h := a.Held(); h.Plan.Epoch != 5 || h.Plan.Number != 7 || a.Server.Table().Plan() != h.Plan {
			t.Fatalf("%s: serving (%d, %d)", name, h.Plan.Epoch, h.Plan.Number)
		}
	}
	if err := a.Accept(sealed(numbered(6, 8)), "poll", now); err != nil || a.Held().Source != "poll" {
		t.Errorf("newer epoch: %v", err)
	}
}

// A plan of a store that was restored from a backup is refused under whatever epoch, also after a restart, until numbers
// have gone on above what was seen.
func TestAPlanOfAStoreThatWentBackIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plans")
	a := testAgent(t, dir)
	if err := a.Load(); err != nil {
		t.Fatal(err)
	}
	of := func(epoch, number, head uint64) []byte {
		p := numbered(epoch, number)
		p.Head = head
		return sealed(p)
	}
	if err := a.Accept(of(5, 7, 40), "push", time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, life := range []string{"first", "second"} {
		if err := a.Accept(of(9, 8, 39), "push", time.Now()); err == nil || errors.Is(err, ErrOlder) || !strings.Contains(err.Error(), "went back") || a.Held().Plan.Head != 40 {
			t.Errorf("%s life: %v, %+v", life, err, a.Held().Plan)
		}
		a = testAgent(t, dir)
		if err := a.Load(); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Accept(of(10, 9, 40), "push", time.Now()); err != nil {
		t.Errorf("after the recovery: %v", err)
	}
	if err := a.Accept(of(10, 10, 0), "push", time.Now()); err != nil {
		t.Errorf("of a leader that tells no head: %v", err)
	}
}

// L7: with no controller the newest readable plan on disk is served; a spoilt file costs one plan, not the service.
func TestPlansOnDiskOutliveTheProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plans")
	a := testAgent(t, dir)
	if err := a.Load(); err != nil {
		t.Fatal(err)
	}
	if got := told(ask(t, a.Server.Table(), query("api.gw.test.", dns.TypeA))); got != "servfail" {
		t.Errorf("without any plan: %s", got)
	}
	for n := range uint64(12) {
		if err := a.Accept(sealed(numbered(1, n+1)), "push", time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	files, _ := os.ReadDir(dir)
	if len(files) != 3 {
		t.Errorf("%d files, not the last 3", len(files))
	}
	b := testAgent(t, dir)
	if err := b.Load(); err != nil || b.Held().Plan.Number != 12 || b.Held().Source != "disk" {
		t.Fatalf("%v %+v", err, b.Held())
	}
	if got := told(ask(t, b.Server.Table(), withECS(query("api.gw.test.", dns.TypeA), 1, 24, 0, 6, 1, 7))); got != "noerror aa 198.51.100.1" {
		t.Error(got)
	}
	newest := filepath.Join(dir, fmt.Sprintf("%020d-%020d.plan", 1, 12))
	if err := os.WriteFile(newest, []byte("signed:{"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := testAgent(t, dir)
	if err := c.Load(); err != nil || c.Held().Plan.Number != 11 {
		t.Errorf("after the newest was spoilt: %v %+v", err, c.Held())
	}
}

// A stored plan outlives its signer's certificate, whatever the file's time says; a pushed one doesn't.
func TestAStoredPlanOutlivesItsSignersCertificate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plans")
	a := testAgent(t, dir)
	if err := a.Load(); err != nil {
		t.Fatal(err)
	}
	p := numbered(1, 1)
	p.Sets[0].ID = ended
	if err := a.Accept(sealed(p), "push", time.Now()); err == nil {
		t.Fatal("accepted from a controller")
	}
	file := a.path(p)
	if err := os.WriteFile(file, sealed(p), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, at := range []time.Time{time.Unix(0, 0), time.Now().Add(50 * 365 * 24 * time.Hour)} {
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
		b := testAgent(t, dir)
		if err := b.Load(); err != nil || b.Held().Plan == nil {
			t.Errorf("stored %v: %v", at, err)
		}
	}
}

func TestAPlanThatCannotBeStoredIsNotServed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plans")
	a := testAgent(t, dir)
	if err := a.Load(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := a.Accept(sealed(numbered(1, 1)), "push", time.Now()); err == nil || a.Held().Plan != nil {
		t.Errorf("%v, %+v", err, a.Held())
	}
}

func TestNamesThatDoNotFitTheZoneAreTold(t *testing.T) {
	a := testAgent(t, filepath.Join(t.TempDir(), "plans"))
	var log bytes.Buffer
	a.Log = slog.New(slog.NewTextHandler(&log, nil))
	if err := a.Load(); err != nil {
		t.Fatal(err)
	}
	if err := a.Accept(sealed(testPlan("shop.example.com", "www.gw.test")), "push", time.Now()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "shop.example.com") {
		t.Error("not told")
	}
	for _, qtype := range []uint16{dns.TypeCNAME, dns.TypeTXT} { // a steered name is no alias, whatever the zone file says
		if got := told(ask(t, a.Server.Table(), query("www.gw.test.", qtype))); got != "noerror aa SOA@gw.test." {
			t.Error(got)
		}
	}
	if got := told(ask(t, a.Server.Table(), withECS(query("www.gw.test.", dns.TypeA), 1, 24, 0, 6, 1, 7))); got != "noerror aa 198.51.100.1" {
		t.Error(got)
	}
	if got := told(ask(t, a.Server.Table(), query("shop.example.com.", dns.TypeA))); got != "refused" {
		t.Error(got)
	}
}

func TestAZoneIsReplacedUnderTheSamePlan(t *testing.T) {
	a := testAgent(t, filepath.Join(t.TempDir(), "plans"))
	if err := a.Load(); err != nil {
		t.Fatal(err)
	}
	if err := a.Rezone(mustZone(t, shallow(testZone)+"new IN A 192.0.2.7\n")); err != nil {
		t.Fatal(err)
	}
	for _, plan := range []bool{false, true} {
		if got := told(ask(t, a.Server.Table(), query("new.gw.test.", dns.TypeA))); got != "noerror aa 192.0.2.7" {
			t.Error(got)
		}
		if got := told(ask(t, a.Server.Table(), query("nope.gw.test.", dns.TypeA))); strings.HasPrefix(got, "servfail") == plan {
			t.Errorf("with a plan %v: %s", plan, got)
		}
		if err := a.Accept(sealed(numbered(1, 1)), "push", time.Now()); err != nil && !plan {
			t.Fatal(err)
		}
	}
	if err := a.Rezone(mustZone(t, "other.test. IN SOA a b 1 2 3 4 5\n")); err == nil {
		t.Error("the zone became another one")
	}
}
