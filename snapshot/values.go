package snapshot

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Duration writes a duration as documents do: one number and the largest unit that keeps it whole.
func Duration(d time.Duration) string {
	for _, u := range []struct {
		size time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}, {time.Microsecond, "us"}} {
		if d >= u.size && d%u.size == 0 {
			return strconv.FormatInt(int64(d/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(d), 10) + "ns"
}

// maxRate bounds the number of a Rate.
const maxRate = 1_000_000_000

// ParseRate reads "1000/second", "…/minute" or "…/hour".
func ParseRate(s string) (Rate, error) {
	number, unit, _ := strings.Cut(s, "/")
	n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 64)
	per, ok := map[string]time.Duration{"second": time.Second, "minute": time.Minute, "hour": time.Hour}[strings.TrimSpace(unit)]
	if err != nil || !ok || n == 0 || n > maxRate {
		return Rate{}, fmt.Errorf("snapshot: %q is not a rate", s)
	}
	return Rate{n, per}, nil
}

// String is the form that ParseRate reads; empty for the zero Rate.
func (r Rate) String() string {
	unit := map[time.Duration]string{time.Second: "second", time.Minute: "minute", time.Hour: "hour"}[r.Per]
	if r.Requests == 0 || unit == "" {
		return ""
	}
	return strconv.FormatUint(r.Requests, 10) + "/" + unit
}

// hostPattern gives the routing form of a host pattern: lower case, without port and trailing dot, "*." first for one
// label of wildcard, address literals in their shortest form without brackets.
func hostPattern(s string) (clean, fault, hint string) {
	if literal, ok := addressLiteral(s); ok {
		return literal, "", ""
	}
	if s == "*" {
		return "", "takes every host", "leave host out and set allow_catch_all: true"
	}
	host := strings.ToLower(s)
	if h, port, found := strings.Cut(host, ":"); found {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return "", "is not a host name", "write api.example.com"
		}
		host = h
	}
	host = strings.TrimSuffix(host, ".")
	name, _ := strings.CutPrefix(host, "*.")
	if strings.Contains(name, "*") {
		return "", "has a wildcard that is not its whole first label", "write *.example.com"
	}
	if !validHostname(name) {
		return "", "is not a host name", "write api.example.com, *.example.com or an address"
	}
	return host, "", ""
}

// addressLiteral reads 10.0.0.1, 10.0.0.1:8080, ::1, [::1] and [::1]:8080.
func addressLiteral(s string) (string, bool) {
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil && a.Zone() == "" {
		return a.String(), true
	}
	if ap, err := netip.ParseAddrPort(s); err == nil && ap.Addr().Zone() == "" {
		return ap.Addr().String(), true
	}
	return "", false
}

// validHostname is letters, digits, '-' and '_' in labels of at most 63, 253 in all, the last label not a number:
// such names would be taken for addresses.
func validHostname(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	last := ""
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for i := range len(label) {
			c := label[i]
			if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
				return false
			}
		}
		last = label
	}
	return !looksNumeric(last)
}

// looksNumeric is the WHATWG URL rule for hosts that end in a number: all digits, or 0x and hex digits.
func looksNumeric(label string) bool {
	if _, err := strconv.ParseUint(label, 10, 64); err == nil {
		return true
	}
	rest, ok := strings.CutPrefix(strings.ToLower(label), "0x")
	return ok && strings.Trim(rest, "0123456789abcdef") == ""
}

// pathPattern checks a path or prefix: bounds (A8), whole-segment parameters of distinct names, and the normal form that
// proxy/path gives to requests, since a pattern in another form would never match.
func pathPattern(s string) (fault, hint string) {
	if !strings.HasPrefix(s, "/") {
		return "does not start with a slash", "such as /v1/orders"
	}
	if len(s) > maxPattern || strings.Count(s, "/") > maxSegments {
		return fmt.Sprintf("is longer than %d bytes or %d segments", maxPattern, maxSegments), "shorten it, or use path_prefix"
	}
	segments := strings.Split(s[1:], "/")
	var names []string
	for i, segment := range segments {
		switch {
		case segment == "" && i < len(segments)-1:
			return "has an empty segment", "requests are routed with // made /"
		case segment == "." || segment == "..":
			return "has a dot segment", "requests are routed with dot segments resolved"
		case segment == "*" || segment == "**":
			return "has a wildcard", "use {name} for one segment, path_prefix for the rest of the path"
		case strings.ContainsAny(segment, "{}"):
			name, ok := parameterName(segment)
			if !ok {
				return "has a parameter that is not {name} as a whole segment", "such as /v1/orders/{id}"
			}
			if strings.Contains("/"+strings.Join(names, "/")+"/", "/"+name+"/") {
				return "names the parameter " + name + " twice", "give each parameter its own name"
			}
			names = append(names, name)
		default:
			if fault, hint := literalSegment(segment); fault != "" {
				return fault, hint
			}
		}
	}
	if len(names) > maxParameters {
		return fmt.Sprintf("has more than %d parameters", maxParameters), "use path_prefix for the rest of the path"
	}
	return "", ""
}

func parameterName(segment string) (string, bool) {
	name := strings.TrimSuffix(strings.TrimPrefix(segment, "{"), "}")
	if len(name) != len(segment)-2 || name == "" || '0' <= name[0] && name[0] <= '9' {
		return "", false
	}
	for i := range len(name) {
		if c := name[i]; !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-') {
			return "", false
		}
	}
	return name, true
}

// literalSegment checks that a request can have the segment after normalisation (package proxy/path).
func literalSegment(s string) (fault, hint string) {
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~!$&'()*+,=:@", c) >= 0:
		case c == '%':
			if fault := escapeFault(s[i:]); fault != "" {
				return fault, "only what must be encoded is, in upper case"
			}
			i += 2
		default:
			return "holds " + strconv.Quote(string(rune(c))), "percent-encode it, in upper case"
		}
	}
	if plain, err := url.PathUnescape(s); err != nil || !utf8.ValidString(plain) {
		return "percent-encodes bytes that are not UTF-8", "requests with such paths are refused"
	}
	return "", ""
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func escapeFault(s string) string {
	if len(s) < 3 {
		return "has an incomplete percent-encoding"
	}
	v, err := strconv.ParseUint(s[1:3], 16, 8)
	c := byte(v)
	switch {
	case c == '%' && len(s) >= 5 && isHex(s[3]) && isHex(s[4]):
		return "is percent-encoded twice"
	case err != nil || !isHex(s[1]):
		return "has an invalid percent-encoding"
	case s[1:3] != strings.ToUpper(s[1:3]):
		return "has a percent-encoding in lower case"
	case c == '/' || c == '\\' || c < 0x20 || c == 0x7f:
		return "has a percent-encoding that requests are refused for"
	case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0:
		return "percent-encodes what needs no encoding"
	}
	return ""
}
