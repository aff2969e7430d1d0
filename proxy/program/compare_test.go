package program

import (
	"maps"
	"strings"
	"testing"
)

func TestCompareNamesChangedAndRemovedRoutes(t *testing.T) {
	old := compile(t, text(), nil)
	for name, c := range map[string]struct {
		change           []string
		changed, removed string
	}{
		"nothing":          {[]string{"team-a", "team-a"}, "", ""},
		"a timeout":        {[]string{"timeout: 800ms", "timeout: 900ms"}, "write", ""},
		"a path":           {[]string{`"/v1/orders/{id}"`, `"/v2/orders/{id}"`}, "read", ""},
		"another host":     {[]string{`host: "*.shop.example.com", path`, `host: "*.store.example.com", path`}, "tenants", ""},
		"another name":     {[]string{"{id: tenants", "{id: renters"}, "", "tenants"},
		"another upstream": {[]string{"path: /}, upstream: one}", "path: /}, upstream: two}"}, "tenants", ""},
	} {
		now := compile(t, strings.Replace(text(), c.change[0], c.change[1], 1), old)
		d := Compare(old, now)
		only := func(id string) map[string]bool {
			if id == "" {
				return map[string]bool{}
			}
			return map[string]bool{id: true}
		}
		if !maps.Equal(d.Changed, only(c.changed)) || !maps.Equal(d.Removed, only(c.removed)) {
			t.Errorf("%s: %+v", name, d)
		}
		if own := old.Own(now); (own == 0) != (c.changed+c.removed == "") {
			t.Errorf("%s: %d bytes are the old one's own", name, own)
		}
	}
}
