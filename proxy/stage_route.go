package proxy

import (
	"bytes"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/path"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// target brings host and path into their only form; everything after it sees no other (A9).
func target(x *Exchange) Verdict {
	raw, query := x.Request.Target(), []byte(nil)
	if i := bytes.IndexByte(raw, '?'); i >= 0 {
		raw, query = raw[:i], raw[i+1:]
	}
	if len(raw) == 0 { // RFC 9110, section 4.2.3
		raw = []byte{'/'}
	}
	var err error
	if a := x.Request.Authority(); len(a) > 0 {
		if x.host, err = path.Host(text(a)); err != nil {
			return x.refuse(reason.BadRequest)
		}
	}
	if text(raw) == "*" { // OPTIONS asks the node itself (RFC 9110, section 9.3.7)
		return x.simple(204, "Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS", "")
	}
	if x.path, err = path.Normalize(x.room[:0], text(raw)); err != nil {
		return x.refuse(reason.BadRequest)
	}
	x.query = text(query)
	return Next
}

// aim begins the way to route and credentials, ahead of those who will look them up.
func aim(x *Exchange) Verdict {
	x.ahead = x.table.program.Ahead(x.host, x.path)
	x.credentials.Authorization, _ = x.Request.Only(http1.Authorization)
	x.server.opts.Auth.Foresee(&x.credentials)
	return Soon
}

// foresee goes a step further.
func foresee(x *Exchange) Verdict {
	x.ahead.Step()
	x.server.opts.Auth.Foresee(&x.credentials)
	return Soon
}

// matchRoute finds tenant and route and the time that the route gives.
func matchRoute(x *Exchange) Verdict {
	x.lookup = program.Request{Host: x.host, Method: text(x.Request.Method()), Path: x.path, Query: x.query, Headers: (*headers)(x)}
	if !x.preflighted() {
		if why := x.table.program.Lookup(&x.lookup, &x.match); why != reason.None {
			x.doubt()
			return x.refuse(why)
		}
	}
	timeout := x.match.Route.Timeout
	if timeout == 0 {
		timeout = snapshot.DefaultTimeout
	}
	if x.asked > 0 {
		timeout = min(timeout, x.asked)
	}
	x.Deadline = x.Start.Add(timeout)
	return Next
}

// deniedRoute refuses a route that operators have switched off (D6).
func deniedRoute(x *Exchange) Verdict {
	x.denied = x.server.denied.Load()
	if x.denied.Route(x.match.Route.ID) {
		return x.refuse(reason.RouteDenied)
	}
	return Next
}

// Revoked says whether operators have shut out, since the exchange was let in, its caller or its route. It is for exchanges
// that go on for long. The caller is judged as of then: that a token has expired meanwhile is another matter.
func (x *Exchange) Revoked() bool {
	set := x.server.denied.Load()
	if x.handed || set == x.denied {
		return false
	}
	x.denied = set
	if set.Route(x.match.Route.ID) {
		return true
	}
	if x.match.Route.Policy < 0 {
		return false
	}
	var id Identity
	why, _ := x.server.opts.Auth.Authenticate(&x.credentials, &id, x.Start)
	return why == reason.Denied
}
