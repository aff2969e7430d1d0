package route

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/proxy/path"
	"github.com/cellgate/cellgate/snapshot"
)

// ahead goes the whole way, and gives the route at its end.
func ahead(x *Index, host, path string) (route uint32, ok bool) {
	a, _ := x.Ahead(host, path)
	for range 2*MaxSegments + 2 {
		if route, ok := a.Step(); ok {
			return route, true
		}
	}
	return 0, false
}

func TestTheWayAheadLeadsToTheRouteOfTheLookup(t *testing.T) {
	var routes []snapshot.Route
	for i := range 1000 {
		routes = append(routes, route(fmt.Sprint("r", i), "a.test", fmt.Sprintf("/v1/s%d/items/{id}", i), "GET"))
	}
	x := build(t, routes)
	led := 0
	for i := range 1000 {
		p := fmt.Sprintf("/v1/s%d/items/7", i)
		var hit Hit
		if x.Lookup(&Request{Host: "a.test", Method: "GET", Path: path.Clean(p)}, &hit) != Found {
			t.Fatal(p, "is not found")
		}
		switch got, ok := ahead(x, "a.test", p); {
		case ok && got != hit.Route:
			t.Errorf("%s: %d instead of %d", p, got, hit.Route)
		case ok:
			led++
		}
	}
	if led < 900 { // an edge may lie beyond those that are looked at
		t.Errorf("it led to a route %d times out of 1000", led)
	}
}

func TestTheWayAheadGoesNowhereWithoutAHost(t *testing.T) {
	x := build(t, []snapshot.Route{route("r", "a.test", "/v1")})
	if _, ok := ahead(x, "other.test", "/v1"); ok {
		t.Error("it led to a route of another host")
	}
	if _, ok := ahead(x, "a.test", ""); ok {
		t.Error("it led to a route for no path")
	}
	var none Ahead
	if _, ok := none.Step(); ok {
		t.Error("nothing led to a route")
	}
}

// Whatever the table and the path are, the way ends, and reads nothing that isn't there.
func TestTheWayAheadEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var routes []snapshot.Route
		for i, m := range rapid.SliceOfN(rapid.Custom(genMatch), 0, 30).Draw(t, "routes") {
			routes = append(routes, snapshot.Route{ID: fmt.Sprint(i), Match: m})
		}
		b := NewBuilder()
		for i := range routes {
			if b.Add(&routes[i]) != nil {
				t.Skip()
			}
		}
		x, err := NewIndex([]*Table{b.Table()}, nil)
		if err != nil {
			t.Skip()
		}
		p := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"/", "/a", "/b", "/ab", "/" + strings.Repeat("long", 20)}), 0, 70).Draw(t, "path"), "")
		a, _ := x.Ahead(rapid.SampledFrom([]string{"a.test", "b.test", "x.b.test", ""}).Draw(t, "host"), p)
		for range 2*MaxSegments + 2 {
			a.Step()
		}
		if a.ref != 0 {
			t.Fatalf("it stands at %d with %q to go", a.ref, a.rest)
		}
	})
}
