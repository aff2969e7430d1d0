// Package cors judges what scripts of other origins ask, and says it as browsers understand it (Fetch standard, section 3.2).
//
//	p := cors.Compile(policy)
//	ask := cors.Read(&request)
//	if ask.Preflight && p.Preflight(&ask) == cors.Allowed { p.PutPreflight(&reply, &ask) }
//	p.Share(&reply, answer, ask)             // every other answer
package cors

import (
	"strconv"
	"strings"
	"time"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/reply"
	"github.com/cellgate/cellgate/snapshot"
)

// Policy is a compiled snapshot.CORS. It is immutable.
type Policy struct {
	any         bool
	exact       map[string]struct{}
	wild        []wildcard
	methods     map[string]struct{} // nil = all that the route takes
	headers     []string
	anyHeader   bool
	credentials bool
	private     bool

	methodList, headerList, exposeList, maxAge string // as answers give them; empty = not
}

// wildcard takes origins of one label between the two.
type wildcard struct{ scheme, domain string }

// Verdict is what became of a request's origin.
type Verdict uint8

// The verdicts. Same: the request names no origin.
const (
	Same Verdict = iota
	Allowed
	Origin // refused: the origin, the method, a header
	Method
	Header
	verdicts
)

var words = [verdicts]string{"same", "allowed", "origin", "method", "header"}

func (v Verdict) String() string { return words[v] }

// Refused says whether a browser keeps the answer from the script.
func (v Verdict) Refused() bool { return v > Allowed }

// maxAsked bounds the list of headers that a preflight may ask for, in bytes.
const maxAsked = 4 << 10

// Compile makes the policy of a valid document.
func Compile(c *snapshot.CORS) *Policy {
	p := &Policy{exact: map[string]struct{}{}, credentials: c.Credentials, private: c.PrivateNetwork, headers: c.Headers}
	for _, o := range c.Origins {
		scheme, domain, wild := strings.Cut(o, "://*.")
		switch {
		case o == snapshot.AnyOrigin:
			p.any = true
		case wild:
			p.wild = append(p.wild, wildcard{scheme + "://", "." + domain})
		default:
			p.exact[o] = struct{}{}
		}
	}
	for _, m := range c.Methods {
		if p.methods == nil {
			p.methods = map[string]struct{}{}
		}
		p.methods[m] = struct{}{}
	}
	for _, h := range c.Headers {
		p.anyHeader = p.anyHeader || h == snapshot.AnyOrigin
	}
	p.methodList, p.headerList, p.exposeList = strings.Join(c.Methods, ", "), strings.Join(c.Headers, ", "), strings.Join(c.Expose, ", ")
	if c.MaxAge > 0 {
		p.maxAge = strconv.FormatInt(int64(c.MaxAge/time.Second), 10)
	}
	return p
}

// Ask is what a request says of the script behind it.
type Ask struct {
	Origin, Method, Headers []byte // the latter two of the request that is to come, in a preflight
	Private                 bool   // a preflight for a more private network
	// Preflight: the browser asks whether its script may ask.
	Preflight bool
	doubled   bool // a field stands there twice, and none of them counts
}

// Read reads the request; what it gives points into it.
func Read(r *http1.Request) (a Ask) {
	fields := r.Fields()
	private := []byte(nil)
	for i := range fields {
		f := &fields[i]
		if f.Kind != http1.Other {
			continue
		}
		switch name := r.Name(f); len(name) {
		case len("origin"):
			a.take(&a.Origin, r, f, "origin")
		case len("access-control-request-method"):
			a.take(&a.Method, r, f, "access-control-request-method")
		case len("access-control-request-headers"):
			a.take(&a.Headers, r, f, "access-control-request-headers")
		case len("access-control-request-private-network"):
			a.take(&private, r, f, "access-control-request-private-network")
		}
	}
	a.Private = string(private) == "true"
	a.Preflight = string(r.Method()) == "OPTIONS" && len(a.Origin) > 0 && len(a.Method) > 0
	return a
}

// Asks reads a preflight; ok is false for every other request, which is not looked at further.
func Asks(r *http1.Request) (a Ask, ok bool) {
	if string(r.Method()) != "OPTIONS" {
		return a, false
	}
	a = Read(r)
	return a, a.Preflight
}

func (a *Ask) take(into *[]byte, r *http1.Request, f *http1.Field, name string) {
	if !http1.Is(r.Name(f), name) {
		return
	}
	a.doubled = a.doubled || *into != nil
	*into = r.Value(f)
}

// Judge is the verdict on the origin of a request.
func (p *Policy) Judge(a *Ask) Verdict {
	switch {
	case a.doubled:
		return Origin
	case len(a.Origin) == 0:
		return Same
	case p.any:
		return Allowed
	}
	if _, ok := p.exact[string(a.Origin)]; ok {
		return Allowed
	}
	for _, w := range p.wild {
		if w.takes(a.Origin) {
			return Allowed
		}
	}
	return Origin
}

// takes says whether exactly one label stands between scheme and domain. Browsers write it in lower case.
func (w *wildcard) takes(origin []byte) bool {
	n := len(origin) - len(w.domain)
	if n <= len(w.scheme) || string(origin[:len(w.scheme)]) != w.scheme || string(origin[n:]) != w.domain {
		return false
	}
	for _, c := range origin[len(w.scheme):n] {
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return true
}

// Preflight is the verdict on the request that the browser is going to make.
func (p *Policy) Preflight(a *Ask) Verdict {
	if v := p.Judge(a); v != Allowed {
		return Origin
	}
	if _, named := p.methods[string(a.Method)]; p.methods != nil && !named {
		if _, all := p.methods[snapshot.AnyOrigin]; !all {
			return Method
		}
	}
	if len(a.Headers) > maxAsked {
		return Header
	}
	for rest := a.Headers; len(rest) > 0; {
		var name []byte
		if name, rest = cut(rest); len(name) > 0 && !p.takesHeader(name) {
			return Header
		}
	}
	return Allowed
}

// takesHeader: the wildcard doesn't cover Authorization, which has to be named (Fetch standard, section 4.8).
func (p *Policy) takesHeader(name []byte) bool {
	for _, h := range p.headers {
		if http1.Is(name, h) {
			return true
		}
	}
	return p.anyHeader && !http1.Is(name, "authorization")
}

// Share adds what an answer says to the script's browser, which is nothing if the origin is refused, and what the answer goes by.
// answer is an upstream's, whose own word on it doesn't count; nil = the gateway's own.
func (p *Policy) Share(r *reply.Reply, answer *http1.Response, ask Ask) {
	a := &ask
	if answer != nil {
		for i := range answer.Fields() {
			if f := &answer.Fields()[i]; own(answer.Name(f)) {
				f.Drop = true
			}
		}
	}
	if p.origin(r, a) && p.exposeList != "" {
		reply.Add(r, "Access-Control-Expose-Headers", p.exposeList)
	}
	if !p.any {
		reply.Add(r, "Vary", "Origin")
	}
}

// PutPreflight adds what the answer to a preflight says that is allowed.
func (p *Policy) PutPreflight(r *reply.Reply, a *Ask) {
	p.origin(r, a)
	if p.methodList == "" {
		reply.Add(r, "Access-Control-Allow-Methods", a.Method)
	} else {
		reply.Add(r, "Access-Control-Allow-Methods", p.methodList)
	}
	if p.headerList != "" {
		reply.Add(r, "Access-Control-Allow-Headers", p.headerList)
	}
	if p.maxAge != "" {
		reply.Add(r, "Access-Control-Max-Age", p.maxAge)
	}
	if a.Private && p.private {
		reply.Add(r, "Access-Control-Allow-Private-Network", "true")
	}
	reply.Add(r, "Vary", "Origin, Access-Control-Request-Method, Access-Control-Request-Headers, Access-Control-Request-Private-Network")
}

// origin says whose answer this is; false = nobody's. Where every origin is allowed, the answer is the same for all.
func (p *Policy) origin(r *reply.Reply, a *Ask) bool {
	if p.any {
		reply.Add(r, "Access-Control-Allow-Origin", snapshot.AnyOrigin)
		return true
	}
	if p.Judge(a) != Allowed {
		return false
	}
	reply.Add(r, "Access-Control-Allow-Origin", a.Origin)
	if p.credentials {
		reply.Add(r, "Access-Control-Allow-Credentials", "true")
	}
	return true
}

// own says whether a field is of this protocol, and so the gateway's to give.
func own(name []byte) bool {
	const family = "access-control-"
	return len(name) > len(family) && http1.Is(name[:len(family)], family)
}

// cut splits off the first element of a list, without its surrounding blanks.
func cut(v []byte) (item, rest []byte) {
	i := 0
	for i < len(v) && v[i] != ',' {
		i++
	}
	item = v[:i]
	if i < len(v) {
		rest = v[i+1:]
	}
	for len(item) > 0 && (item[0] == ' ' || item[0] == '\t') {
		item = item[1:]
	}
	for len(item) > 0 && (item[len(item)-1] == ' ' || item[len(item)-1] == '\t') {
		item = item[:len(item)-1]
	}
	return item, rest
}
