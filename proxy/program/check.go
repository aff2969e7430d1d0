package program

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cellgate/cellgate/problem"
	"github.com/cellgate/cellgate/proxy/path"
	"github.com/cellgate/cellgate/proxy/route"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// Validate decodes documents and checks them: everything that publication asks of them, all problems at once, sorted.
func Validate(files []snapshot.File, allow snapshot.Allow) (*snapshot.Config, problem.List) {
	cfg, problems := snapshot.Decode(files, allow)
	problems = append(problems, Check(cfg)...)
	problems.Sort()
	return cfg, problems
}

// Check compiles the routes of a configuration as a dry run and replays its samples (B4): every miss is a problem. It also
// takes a Config that Decode found faults in; samples that expect a route which was left out are passed over then.
func Check(cfg *snapshot.Config) problem.List {
	b := route.NewBuilder()
	for i := range cfg.Routes {
		if err := b.Add(&cfg.Routes[i]); err != nil {
			return problem.List{{Path: "routes", Message: err.Error(), Hint: "this is a fault of the compiler; please report it"}}
		}
	}
	problems := dear(cfg, b)
	index, err := route.NewIndex([]*route.Table{b.Table()}, nil)
	if err != nil {
		return problem.List{{Path: "routes", Message: err.Error(), Hint: "this is a fault of the compiler; please report it"}}
	}
	for i := range cfg.Samples {
		s := &cfg.Samples[i]
		if cfg.Faulty(s.Expect.Route) {
			continue
		}
		if miss := replay(cfg, index, s); miss != "" {
			p := problem.Problem{File: s.At.File, Line: s.At.Line, Path: s.At.Path, Message: miss}
			p.Hint = "regionctl config explain " + s.Request.Method + " " + s.Request.URL + " shows why"
			problems = append(problems, p)
		}
	}
	return problems
}

// dear reports the hosts whose routes would make some look-up too long.
func dear(cfg *snapshot.Config, b *route.Builder) (problems problem.List) {
	for _, d := range b.Dear() {
		id := cfg.Routes[d.Route].ID
		at, host := cfg.RouteAt(id), d.Host
		if host == "" {
			host = "any host"
		}
		problems = append(problems, problem.Problem{File: at.File, Line: at.Line, Path: at.Path,
			Message: fmt.Sprintf("the routes of %s, route %q among them, let one look-up cost %d steps, more than %d", host, id, d.Cost, route.MaxCost),
			Hint:    "don't mix literals and parameters in the same positions again and again, and use fewer predicates on one path"})
	}
	return problems
}

// replay says how the sample misses; empty = it hits.
func replay(cfg *snapshot.Config, index *route.Index, s *snapshot.Sample) string {
	got := snapshot.SampleExpect{Status: reason.BadRequest.Status()}
	var taken *snapshot.Route
	if req, err := ParseRequest(s.Request.Method, s.Request.URL, s.Request.Headers); err == nil {
		var hit route.Hit
		switch index.Lookup(req, &hit) {
		case route.Found:
			taken = &cfg.Routes[hit.Route]
			got = snapshot.SampleExpect{Route: taken.ID, Upstream: taken.Upstream}
		case route.MethodNotAllowed:
			got.Status = reason.MethodNotAllowed.Status()
		default:
			got.Status = reason.NoRoute.Status()
		}
	} else if s.Expect.Status == 0 {
		return "sample cannot be replayed: " + err.Error()
	}
	if meets(s.Expect, got, taken) {
		return ""
	}
	return fmt.Sprintf("sample %s %s comes to %s, not to %s", s.Request.Method, s.Request.URL, outcome(got, taken), outcome(s.Expect, nil))
}

func meets(want, got snapshot.SampleExpect, taken *snapshot.Route) bool {
	if want.Status != got.Status || want.Route != "" && want.Route != got.Route {
		return false
	}
	if want.Upstream == "" || want.Upstream == got.Upstream {
		return true
	}
	if taken != nil {
		for _, b := range taken.Split {
			if b.Upstream == want.Upstream && b.Weight > 0 {
				return true
			}
		}
	}
	return false
}

func outcome(e snapshot.SampleExpect, taken *snapshot.Route) string {
	var parts []string
	if e.Status != 0 {
		parts = append(parts, fmt.Sprintf("status %d", e.Status))
	}
	if e.Route != "" {
		parts = append(parts, fmt.Sprintf("route %q", e.Route))
	}
	if e.Upstream != "" {
		parts = append(parts, fmt.Sprintf("upstream %q", e.Upstream))
	}
	if taken != nil {
		for _, b := range taken.Split {
			parts = append(parts, fmt.Sprintf("upstream %q (weight %d)", b.Upstream, b.Weight))
		}
	}
	return strings.Join(parts, ", ")
}

// headerMap is a request's headers by lower-case name.
type headerMap map[string]string

func (h headerMap) Get(name string) (string, bool) {
	v, ok := h[name]
	return v, ok
}

var errURL = errors.New("program: not an absolute http or https URL")

// ParseRequest makes the request that routing would see for a method, an absolute URL and headers by lower-case name.
// A host or path that the proxy would refuse is an error.
func ParseRequest(method, url string, headers map[string]string) (*Request, error) {
	rest, ok := strings.CutPrefix(url, "https://")
	if !ok {
		if rest, ok = strings.CutPrefix(url, "http://"); !ok {
			return nil, errURL
		}
	}
	rest, _, _ = strings.Cut(rest, "#")
	rest, query, _ := strings.Cut(rest, "?")
	authority, raw := rest, "/"
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		authority, raw = rest[:i], rest[i:]
	}
	host, err := path.Host(authority)
	if err != nil {
		return nil, err
	}
	clean, err := path.Normalize(nil, raw)
	if err != nil {
		return nil, err
	}
	return &Request{Host: host, Method: method, Path: clean, Query: query, Headers: headerMap(headers)}, nil
}
