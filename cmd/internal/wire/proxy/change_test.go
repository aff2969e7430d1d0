package proxy

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/meter"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/program/programtest"
	"github.com/cellgate/cellgate/report"
)

func routesOf(t *testing.T, number uint64, routes string) *program.Program {
	t.Helper()
	return programtest.Compile(t, number, "version: v1\nroutes:\n"+routes+"upstreams: [{id: up, endpoints: [\"127.0.0.1:1\"]}]\n")
}

func route(id, match string) string {
	return fmt.Sprintf("  - {id: %s, match: {host: a.example, %s}, upstream: up}\n", id, match)
}

func TestAChangeTellsWhatChangedRoutesWereAskedAndWhichWitnessesAreLost(t *testing.T) {
	m := meter.New()
	ask := func(id, method, path string, status, times int) {
		for range times {
			m.Record(&proxy.Record{Start: time.Now(), Tenant: "t", Route: id, Host: "a.example", Method: method, Path: path, Status: status, Service: "up"})
		}
	}
	old := routesOf(t, 1, route("all", "path_prefix: /v1")+route("busy", "path: /busy")+route("idle", "path: /idle")+route("junk", "path_prefix: /junk")+route("left", "path: /left"))
	ask("all", "GET", "/v1/orders", 200, 7)
	ask("busy", "GET", "/busy", 200, 5)
	ask("junk", "GET", "/junk/404", 404, 5)
	ask("left", "GET", "/left", 200, 5)
	var c change
	if c.swap(nil, old, m.Routes(), m.Witnesses()); c.observe(m.Routes, nil) != nil {
		t.Error("the first program has none before it")
	}
	// The route of everything has no GET any more; busy and idle differ; junk is narrower; left is gone by name.
	now := routesOf(t, 2, route("all", "path_prefix: /v1, methods: [POST]")+route("busy", "path: /busy, methods: [GET]")+
		route("idle", "path: /idle, methods: [GET]")+route("junk", "path: /junk/1"))
	c.swap(old, now, m.Routes(), m.Witnesses())
	ask("busy", "GET", "/busy", 200, 3)
	got := c.observe(m.Routes, map[string]uint64{"all": 2})
	if got == nil || got.Version != 2 || !slices.Equal(got.Lost, []string{"all"}) || !maps.Equal(got.Asked, map[string]uint64{"all": 0, "busy": 3, "junk": 0}) || got.Refused["all"] != 2 {
		t.Fatalf("%+v", got)
	}
	// Counts that went back are none; the same contents under another number are no change.
	again := routesOf(t, 3, route("all", "path_prefix: /v1, methods: [POST]")+route("busy", "path: /busy, methods: [GET]")+
		route("idle", "path: /idle, methods: [GET]")+route("junk", "path: /junk/1"))
	c.swap(now, again, m.Routes(), m.Witnesses())
	if got := c.observe(func() map[string]uint64 { return nil }, nil); got.Version != 3 || got.Asked["busy"] != 0 || len(got.Lost) != 1 {
		t.Errorf("%+v", got)
	}
}

func TestAChangeOfManyRoutesIsBounded(t *testing.T) {
	var before, after string
	asked := map[string]uint64{}
	for i := range 3 * report.MaxChanged {
		id := fmt.Sprintf("r%03d", i)
		before, after = before+route(id, "path: /"+id), after+route(id, "path: /x/"+id)
		asked[id] = uint64(i)
	}
	var c change
	c.swap(routesOf(t, 1, before), routesOf(t, 2, after), asked, nil)
	got := c.observe(func() map[string]uint64 { return asked }, nil)
	if _, most := got.Asked[fmt.Sprintf("r%03d", 3*report.MaxChanged-1)]; len(got.Asked) != report.MaxChanged || !most {
		t.Errorf("%d routes", len(got.Asked))
	}
	raw, err := report.EncodeNode(report.Node{ID: "a/b/1", Change: got})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := report.DecodeNode(raw); err != nil {
		t.Error(err)
	}
	got.Asked["one more"] = 1
	if raw, err = report.EncodeNode(report.Node{ID: "a/b/1", Change: got}); err != nil {
		t.Fatal(err)
	}
	if _, err := report.DecodeNode(raw); err == nil {
		t.Error("a report beyond the bound was read")
	}
}
