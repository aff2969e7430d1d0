package session

import (
	"bytes"
	"slices"
	"strings"

	"github.com/cellgate/cellgate/proxy/http1"
)

// Shown is what a request shows of a session. The bytes belong to the request.
type Shown struct {
	Cookie []byte // nil = none
	Twice  bool   // there are two cookies of the name: which of them an upstream would take is unknown
	// CrossSite: a browser made the request for a page of another site that isn't named among the origins, and it may change
	// something. Browsers send cookies along with such requests, whoever has written the page (CSRF).
	CrossSite bool
}

// Read finds the cookie of that name and says where the request comes from. Sec-Fetch-Site decides where a browser sends it,
// else Origin, whose host must be the request's; a request with neither comes from no page. GET, HEAD and OPTIONS change nothing,
// but for a WebSocket's handshake.
func Read(r *http1.Request, name string, origins []string) (s Shown) {
	var site, origin []byte
	sites := 0
	for i := range r.Fields() {
		f := &r.Fields()[i]
		switch field := r.Name(f); {
		case is(field, "cookie"):
			s.take(r.Value(f), name)
		case is(field, "sec-fetch-site"):
			site = r.Value(f)
			sites++
		case is(field, "origin"):
			if origin != nil {
				sites += 2
			}
			origin = r.Value(f)
		}
	}
	s.CrossSite = unsafe(r) && (sites > 1 || !own(r, site, origin) && !slices.Contains(origins, string(origin)))
	return s
}

// take looks for the cookie in a field (RFC 6265, section 5.4).
func (s *Shown) take(value []byte, name string) {
	for rest := value; len(rest) > 0; {
		var one []byte
		one, rest, _ = bytes.Cut(rest, []byte{';'})
		if k, v, ok := bytes.Cut(bytes.Trim(one, " \t"), []byte{'='}); ok && string(k) == name {
			s.Twice = s.Twice || s.Cookie != nil
			if s.Cookie = bytes.Trim(v, `"`); s.Cookie == nil {
				s.Cookie = v[:0] // there is one, and it is empty
			}
		}
	}
}

func unsafe(r *http1.Request) bool {
	if r.Upgrade || len(r.Protocol()) > 0 {
		return true
	}
	switch string(r.Method()) {
	case "GET", "HEAD", "OPTIONS":
		return false
	}
	return true
}

// own says whether no page of another site made the request.
func own(r *http1.Request, site, origin []byte) bool {
	switch {
	case site != nil:
		return string(site) == "same-origin" || string(site) == "none"
	case origin != nil:
		_, host, ok := strings.Cut(string(origin), "://")
		return ok && strings.EqualFold(host, string(r.Authority()))
	}
	return true
}

func is(name []byte, want string) bool { return strings.EqualFold(string(name), want) }
