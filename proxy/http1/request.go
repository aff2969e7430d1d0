package http1

import "bytes"

// Request is one request head.
type Request struct {
	Head
	method    Span
	target    Span // path and query, or "*"
	authority Span // host[:port] of the target or of the Host field; empty with HTTP/1.0 without Host
	protocol  Span // of an extended CONNECT
	// Expect is set by a 100-continue expectation of an HTTP/1.1 client.
	Expect bool
	// Upgrade is set when the client offers another protocol on this connection (RFC 9110, section 7.8).
	Upgrade bool
}

// Method is the method as it came; methods are case-sensitive.
func (r *Request) Method() []byte { return r.buf[r.method.Start:r.method.End] }

// Target is path and query as they came, or "*". The path is empty where an absolute target has none; else it begins with '/'.
func (r *Request) Target() []byte { return r.buf[r.target.Start:r.target.End] }

// Authority is host and optional port as they came. Only characters of names, addresses and ports are in it.
func (r *Request) Authority() []byte { return r.buf[r.authority.Start:r.authority.End] }

// Protocol is what an extended CONNECT (RFC 8441) asks for; empty for every other request, and always in HTTP/1.
func (r *Request) Protocol() []byte { return r.buf[r.protocol.Start:r.protocol.End] }

// Preface says whether this is the beginning of an HTTP/2 connection with prior knowledge (RFC 9113, section 3.4).
func Preface(b []byte) bool { return bytes.HasPrefix(b, []byte("PRI * HTTP/2.0\r\n")) }

// Parse reads a head at the start of b and returns its length, or 0 when b ends before the head does. Call it again
// with the same bytes and more; Restart before a new message.
func (r *Request) Parse(b []byte) (int, error) {
	n, err := r.end(b)
	if n == 0 {
		if err == nil || err == ErrTooLarge {
			if e := tooLongTarget(b); e != nil {
				return 0, e
			}
		}
		return 0, err
	}
	b = b[:n]
	r.reset(b)
	i, err := r.parseLine(b)
	if err != nil {
		return 0, err
	}
	if err := r.parseFields(b, i); err != nil {
		return 0, err
	}
	if err := r.check(); err != nil {
		return 0, err
	}
	r.Restart()
	return n, nil
}

// tooLongTarget tells a head that can't end because its first line is too long from one with too many fields.
func tooLongTarget(b []byte) error {
	if len(b) > MaxTarget+64 && bytes.IndexByte(b[:MaxTarget+64], '\n') < 0 {
		return ErrURL
	}
	return nil
}

func (r *Request) parseLine(b []byte) (int, error) {
	i := 0
	for class[b[i]]&isToken != 0 {
		i++
	}
	if i == 0 || i > MaxMethod || b[i] != ' ' {
		return 0, ErrSyntax
	}
	r.method = Span{0, uint32(i)}
	i++
	t0 := i
	for class[b[i]]&isTarget != 0 {
		i++
	}
	if i-t0 > MaxTarget {
		return 0, ErrURL
	}
	r.target, r.authority, r.protocol = Span{uint32(t0), uint32(i)}, Span{}, Span{}
	if foreign(b[t0:i], b[i:]) {
		return 0, ErrForeign
	}
	if i == t0 || len(b)-i < 11 || string(b[i:i+8]) != " HTTP/1." || b[i+9] != '\r' || b[i+10] != '\n' {
		return 0, ErrSyntax
	}
	if b[i+8] != '0' && b[i+8] != '1' {
		return 0, ErrSyntax
	}
	r.Minor = b[i+8] - '0'
	if !validEscapes(b[t0:i]) {
		return 0, ErrSyntax
	}
	return i + 11, r.splitTarget(b[t0:i], t0)
}

// foreign says whether a target and what follows it are of no HTTP version: no form of a target but that of CONNECT, which
// anything looks like, and no version. The preface of another protocol is such a line (RFC 9113, section 3.4).
func foreign(target, rest []byte) bool {
	if len(target) == 0 || target[0] == '/' || target[0] == '*' || bytes.IndexByte(target, ':') >= 0 || rest[0] != ' ' {
		return false
	}
	i := 1
	for class[rest[i]]&isToken != 0 {
		i++
	}
	return i > 1 && rest[i] != '/'
}

// validEscapes refuses a '%' without two hex digits ahead of the query.
func validEscapes(t []byte) bool {
	if q := bytes.IndexByte(t, '?'); q >= 0 {
		t = t[:q]
	}
	for {
		i := bytes.IndexByte(t, '%')
		if i < 0 {
			return true
		}
		if i+2 >= len(t) || class[t[i+1]]&class[t[i+2]]&isHex == 0 {
			return false
		}
		t = t[i+3:]
	}
}

// splitTarget takes the four forms of RFC 9112, section 3.2, apart.
func (r *Request) splitTarget(t []byte, at int) error {
	method := r.Method()
	switch {
	case string(method) == "CONNECT":
		if !validAuthority(t) {
			return ErrSyntax
		}
		r.authority = r.target
		return nil
	case t[0] == '/':
		return nil
	case len(t) == 1 && t[0] == '*':
		if string(method) != "OPTIONS" {
			return ErrSyntax
		}
		return nil
	}
	return r.splitAbsolute(t, at)
}

func (r *Request) splitAbsolute(t []byte, at int) error {
	i := 0
	switch {
	case len(t) > 7 && equalFold(t[:7], "http://"):
		i = 7
	case len(t) > 8 && equalFold(t[:8], "https://"):
		i = 8
	default:
		return ErrSyntax
	}
	n := bytes.IndexAny(t[i:], "/?")
	if n < 0 {
		n = len(t) - i
	}
	if !validAuthority(t[i : i+n]) {
		return ErrSyntax
	}
	r.authority = Span{uint32(at + i), uint32(at + i + n)}
	r.target.Start = uint32(at + i + n)
	return nil
}

// check holds the rules that need the whole head.
func (r *Request) check() error {
	if r.Chunked && (r.Length >= 0 || r.Minor == 0) {
		return ErrFraming
	}
	hosts, err := r.checkHost()
	if err != nil || hosts == 0 && r.Minor > 0 {
		return ErrSyntax
	}
	if r.Minor == 0 {
		r.Close = r.Close || !r.keep
	}
	return r.checkExpect()
}

// checkHost says how many Host fields there are: one at most, and what an authority elsewhere says. An empty port is no part
// of either from here on (RFC 3986, section 6.2.3).
func (r *Request) checkHost() (hosts int, err error) {
	r.authority = r.withoutEmptyPort(r.authority)
	for i := range r.fields[:r.n] {
		f := &r.fields[i]
		if f.Kind != Host {
			continue
		}
		if hosts++; !validAuthority(r.Value(f)) {
			return hosts, ErrSyntax
		}
		host := r.withoutEmptyPort(f.value)
		if r.authority.End == 0 {
			r.authority = host
		} else if hosts == 1 && !r.plainConnect() && !bytes.EqualFold(r.buf[host.Start:host.End], r.Authority()) {
			return hosts, ErrSyntax
		}
	}
	if hosts > 1 {
		return hosts, ErrSyntax
	}
	return hosts, nil
}

func (r *Request) withoutEmptyPort(s Span) Span {
	if s.End > s.Start && r.buf[s.End-1] == ':' {
		s.End--
	}
	return s
}

// plainConnect: the authority of such a request is its target, and no host.
func (r *Request) plainConnect() bool {
	return string(r.Method()) == "CONNECT" && r.protocol.End == r.protocol.Start
}

func (r *Request) checkExpect() error {
	r.Expect, r.Upgrade = false, false
	for i := range r.fields[:r.n] {
		f := &r.fields[i]
		switch f.Kind {
		case Expect:
			if !equalFold(r.Value(f), "100-continue") {
				return ErrSyntax
			}
			r.Expect = r.Minor > 0
		case Upgrade:
			// An offer of cleartext HTTP/2 is ignored as RFC 9113, section 3.1, allows: plain clients send it always.
			r.Upgrade = r.Upgrade || r.upgrade && !equalFold(r.Value(f), "h2c")
		}
	}
	return nil
}

// HasBody says whether body bytes follow the head. Without a length a request has none (RFC 9112, section 6.3).
func (r *Request) HasBody() bool { return r.Chunked || r.Length > 0 }

// Persistent10 says whether an HTTP/1.0 client asked to keep the connection.
func (r *Request) Persistent10() bool { return r.Minor == 0 && r.keep && !r.Close }

// validAuthority takes a registered name, an IPv4 address or a bracketed IPv6 address with an optional port, which may be
// empty (RFC 3986, section 3.2.3), no user.
func validAuthority(v []byte) bool {
	i := 0
	if len(v) > 0 && v[0] == '[' {
		for i = 1; i < len(v) && (class[v[i]]&isHex != 0 || v[i] == ':' || v[i] == '.'); i++ {
		}
		if i < 4 || i == len(v) || v[i] != ']' {
			return false
		}
		i++
	} else {
		for i < len(v) && class[v[i]]&isHost != 0 {
			i++
		}
	}
	if i == 0 || i > 255 {
		return false
	}
	return i == len(v) || v[i] == ':' && validPort(v[i+1:])
}

func validPort(v []byte) bool {
	if len(v) > 5 {
		return false
	}
	n := 0
	for _, c := range v {
		if c < '0' || c > '9' {
			return false
		}
		n = n*10 + int(c-'0')
	}
	return n < 1<<16 && (n > 0 || len(v) == 0)
}
