package program

import (
	"unsafe"

	"github.com/cellgate/cellgate/proxy/path"
	"github.com/cellgate/cellgate/proxy/prefetch"
	"github.com/cellgate/cellgate/proxy/route"
)

// Ahead goes the likely way of a look-up in advance of it, to the route's name. The zero value goes nowhere.
type Ahead struct {
	way    route.Ahead
	routes []Route
	route  *Route
}

// Ahead begins the way of a request.
func (p *Program) Ahead(host string, path path.Clean) Ahead {
	way, table := p.index.Ahead(host, string(path))
	if len(p.shards) == 0 {
		return Ahead{}
	}
	return Ahead{way: way, routes: p.shards[table].routes}
}

// Step asks the memory for what comes next on the way.
func (a *Ahead) Step() {
	if a.route != nil {
		prefetch.Line(unsafe.Pointer(unsafe.StringData(a.route.ID)))
		prefetch.Lines(unsafe.Pointer(a.route.Terms), unsafe.Sizeof(termsOfOne{}))
		a.route = nil
		return
	}
	if n, ok := a.way.Step(); ok {
		a.route = &a.routes[n]
		prefetch.Line(unsafe.Pointer(a.route))
	}
}
