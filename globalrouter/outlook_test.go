package globalrouter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/view"
	"github.com/cellgate/cellgate/health"
	"github.com/cellgate/cellgate/report"
)

// router is an agent with an outlook under a clock of its own, standing in eu-west.
type router struct {
	t   *testing.T
	now time.Time
	a   *Agent
	o   *Outlook
	log bytes.Buffer
}

func newRouter(t *testing.T, dir string) *router {
	r := &router{t: t, a: testAgent(t, filepath.Join(dir, "plans")), now: time.Unix(1767225600, 0)}
	log := slog.New(slog.NewTextHandler(&r.log, nil))
	r.o = &Outlook{
		Config: view.Config{Region: "eu-west", DownAfter: 3 * time.Second, UpAfter: 3 * time.Second, FlapCap: 20 * time.Second, Ramp: 30 * time.Second}.WithDefaults(),
		File:   filepath.Join(dir, "overrides.json"), Now: func() time.Time { return r.now }, Log: log,
		Verify: func(e []byte, _ time.Time) ([]byte, cells.RegionID, error) {
			by, payload, ok := bytes.Cut(e, []byte(" "))
			if !ok {
				return nil, "", errors.New("not signed")
			}
			return payload, cells.RegionID(by), nil
		},
	}
	r.a.Withdraw, r.a.Served = r.o.Withdraw, r.o.Served
	r.o.Load()
	if err := r.a.Load(); err != nil {
		t.Fatal(err)
	}
	return r
}

// wait lets time pass with one look at every cell each second; dead cells fail it.
func (r *router) wait(d time.Duration, dead ...cells.CellID) {
	for end := r.now.Add(d); r.now.Before(end); {
		r.now = r.now.Add(time.Second)
		var round []report.Probe
		for _, c := range r.a.Held().Plan.Cells {
			round = append(round, report.Probe{From: "eu-west", Cell: c.ID, OK: !slices.Contains(dead, c.ID), Why: "refused"})
		}
		r.o.Saw(round)
		r.a.Review()
	}
}

// answers are what 64 clients of each of two regions are told, byte for byte.
func (r *router) answers() (eu, us []string) {
	for i := range 64 {
		eu = append(eu, told(ask(r.t, r.a.Server.Table(), withECS(query("api.gw.test.", dns.TypeA), 1, 24, 0, 5, 1, byte(i)))))
		us = append(us, told(ask(r.t, r.a.Server.Table(), withECS(query("api.gw.test.", dns.TypeA), 1, 24, 0, 7, 1, byte(i)))))
	}
	return eu, us
}

func (r *router) names(address string) bool {
	eu, us := r.answers()
	return strings.Contains(strings.Join(append(eu, us...), " ")+" ", address+" ")
}

func (r *router) gone(when, address string) {
	r.t.Helper()
	if r.names(address) {
		r.t.Errorf("%s: %s is in answers", when, address)
	}
}

// L7: without a leader a dead cell leaves the answers, bystanders keep theirs byte for byte, and all of it ends as it began.
func TestARouterAloneSubtractsADeadCellAndNothingElse(t *testing.T) {
	r := newRouter(t, t.TempDir())
	if err := r.a.Accept(sealed(numbered(1, 1)), "push", r.now); err != nil {
		t.Fatal(err)
	}
	r.wait(5 * time.Second)
	eu, us := r.answers()
	for _, a := range []string{"192.0.2.1", "192.0.2.2", "198.51.100.1"} {
		if !r.names(a) {
			t.Fatalf("%s is in no answer to begin with", a)
		}
	}
	r.wait(6*time.Second, "eu-west/a")
	r.gone("a cell is dead", "192.0.2.1")
	if _, now := r.answers(); !slices.Equal(now, us) {
		t.Error("answers of bystanders changed")
	}
	if p := r.o.Page(); p.Cells["eu-west/a"].Share != 256 || p.Verdicts["eu-west/a"] != "unhealthy" || p.Blind {
		t.Errorf("%+v", p)
	}
	if err := r.a.Rezone(mustZone(t, shallow(testZone))); err != nil {
		t.Fatal(err)
	}
	r.gone("the zone was read again", "192.0.2.1")
	if err := r.a.Accept(sealed(numbered(1, 2)), "push", r.now); err != nil { // made before the death, as its Created says
		t.Fatal(err)
	}
	r.gone("a newer plan that can't know came", "192.0.2.1")
	r.wait(time.Minute)
	if nowEU, nowUS := r.answers(); !slices.Equal(nowEU, eu) || !slices.Equal(nowUS, us) {
		t.Error("after the return the answers are not as before")
	}
	if !strings.Contains(r.log.String(), "eu-west/a 256/256 (not reached") || strings.Count(r.log.String(), "\n") > 6 {
		t.Error(r.log.String())
	}
}

func TestABlindRouterServesThePlanAndSaysSo(t *testing.T) {
	r := newRouter(t, t.TempDir())
	if err := r.a.Accept(sealed(numbered(1, 1)), "push", r.now); err != nil {
		t.Fatal(err)
	}
	r.wait(5 * time.Second)
	eu, us := r.answers()
	r.wait(20*time.Second, "eu-west/a", "us-east/a")
	if nowEU, nowUS := r.answers(); !slices.Equal(nowEU, eu) || !slices.Equal(nowUS, us) {
		t.Error("a blind router changed answers")
	}
	if !r.o.Page().Blind || !strings.Contains(r.log.String(), "takes itself for blind") {
		t.Error("it does not say that it is blind")
	}
	if m := metricsOf(t, r); !strings.Contains(m, "view_blind 1") {
		t.Error(m)
	}
	// The controllers' quorum sees more: then it is all down, answered as all up, and flagged.
	dead := map[cells.CellID]health.Status{"eu-west/a": health.Unhealthy, "eu-west/b": health.Unhealthy, "us-east/a": health.Unhealthy}
	r.o.Told(health.Verdicts{Form: 1, Cells: dead})
	r.wait(time.Second, "eu-west/a", "eu-west/b", "us-east/a")
	if nowEU, nowUS := r.answers(); !slices.Equal(nowEU, eu) || !slices.Equal(nowUS, us) {
		t.Error("all down is not answered as all up")
	}
	if m := metricsOf(t, r); !strings.Contains(m, "view_all_up_sets 1") || !strings.Contains(m, `view_withdrawn_ratio[eu-west/b] 1`) {
		t.Error(m)
	}
}

func metricsOf(t *testing.T, r *router) string {
	reg := prometheus.NewRegistry()
	reg.MustRegister(Collector{Server: r.a.Server, Outlook: r.o, Now: func() time.Time { return r.now }})
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range families {
		for _, m := range f.Metric {
			label := ""
			if len(m.Label) > 0 {
				label = "[" + m.Label[0].GetValue() + "]"
			}
			out = append(out, fmt.Sprintf("%s%s %v", strings.TrimPrefix(f.GetName(), "cellgate_globalrouter_"), label, m.GetGauge().GetValue()))
		}
	}
	return strings.Join(out, "\n")
}

func signedOrder(by string, list ...cells.Evacuation) []byte {
	raw, _ := json.Marshal(list)
	return append([]byte(by+" "), raw...)
}

// Signed orders take effect without a plan that follows them, outlive the process, and end by themselves.
func TestOrdersTakeEffectWithoutALeaderAndOutliveTheProcess(t *testing.T) {
	dir := t.TempDir()
	r := newRouter(t, dir)
	if err := r.a.Accept(sealed(numbered(1, 1)), "push", r.now); err != nil {
		t.Fatal(err)
	}
	r.wait(5 * time.Second)
	_, us := r.answers()
	order := cells.Evacuation{Form: 1, Cell: "eu-west/b", Reason: "test", Started: r.now, Over: 10 * time.Second, Expires: r.now.Add(time.Hour)}
	if err := r.o.Order(signedOrder("eu-west", order), false); err != nil {
		t.Fatal(err)
	}
	r.wait(5 * time.Second)
	if n := r.o.Page().Cells["eu-west/b"].Share; n < 120 || n > 135 {
		t.Errorf("half way: %d of 256", n)
	}
	r.wait(6 * time.Second)
	r.gone("evacuated", "192.0.2.2")
	if _, now := r.answers(); !slices.Equal(now, us) {
		t.Error("answers of bystanders changed")
	}
	other := cells.Evacuation{Form: 1, Cell: "us-east/a", Reason: "test", Started: r.now, Expires: r.now.Add(time.Minute)}
	for range 3 {
		if err := r.o.Order(signedOrder("us-east", other), false); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{"", "eu-west {", `eu-west [{"form":9}]`} {
		if r.o.Order([]byte(bad), false) == nil {
			t.Errorf("%q was taken", bad)
		}
	}

	again := newRouter(t, dir)
	again.now = r.now
	again.a.Review()
	if o := again.o.Page().Orders; len(o) != 2 {
		t.Fatalf("orders after a restart: %+v", o)
	}
	again.wait(time.Second)
	again.gone("after a restart", "192.0.2.2")
	again.gone("after a restart", "198.51.100.1")
	if err := again.o.Order(signedOrder("eu-west"), true); err != nil || len(again.o.Page().Orders) != 2 { // said before it has read its store
		t.Errorf("%v, %+v", err, again.o.Page().Orders)
	}
	if err := again.o.Order(signedOrder("eu-west"), false); err != nil || len(again.o.Page().Orders) != 0 { // the own region's list is complete
		t.Errorf("%v, %+v", err, again.o.Page().Orders)
	}
	again.wait(40 * time.Second)
	if _, now := again.answers(); !slices.Equal(now, us) {
		t.Error("after the end the answers are not as before")
	}
	if err := os.WriteFile(again.o.File, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if last := newRouter(t, dir); !strings.Contains(last.log.String(), "not usable") {
		t.Error("a spoilt file is not told")
	}
}
