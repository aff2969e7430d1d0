package path

import (
	"errors"
	"net/netip"
	"strings"
)

// ErrHost is a Host header or authority that names no host.
var ErrHost = errors.New("host refused")

// Host gives the routing form of a Host header or :authority: lower case, without port and trailing dot, an IPv6 literal
// without brackets and in RFC 5952 form. Labels are letters, digits, '-' and '_'; at most 253 bytes.
// A host in routing form is returned as it is, without allocation.
func Host(raw string) (string, error) {
	if strings.HasPrefix(raw, "[") {
		return hostLiteral6(raw)
	}
	host := raw
	if i := strings.IndexByte(raw, ':'); i >= 0 {
		if !port(raw[i+1:]) {
			return "", ErrHost
		}
		host = raw[:i]
	}
	host = strings.TrimSuffix(host, ".")
	if len(host) == 0 || len(host) > 253 {
		return "", ErrHost
	}
	return lowerLabels(host)
}

func lowerLabels(host string) (string, error) {
	label, upper := 0, false
	for i := 0; i < len(host); i++ {
		c := host[i]
		switch {
		case 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_':
			label++
		case 'A' <= c && c <= 'Z':
			upper = true
			label++
		case c == '.' && label > 0:
			label = 0
			continue
		default:
			return "", ErrHost
		}
		if label > 63 {
			return "", ErrHost
		}
	}
	if label == 0 {
		return "", ErrHost
	}
	if upper {
		return strings.ToLower(host), nil
	}
	return host, nil
}

func hostLiteral6(raw string) (string, error) {
	end := strings.IndexByte(raw, ']')
	if end < 0 || (end+1 < len(raw) && (raw[end+1] != ':' || !port(raw[end+2:]))) {
		return "", ErrHost
	}
	addr, err := netip.ParseAddr(raw[1:end])
	if err != nil || !addr.Is6() || addr.Zone() != "" {
		return "", ErrHost
	}
	return addr.String(), nil
}

// port accepts the digits after the colon; RFC 3986 allows none.
func port(s string) bool {
	if len(s) > 5 {
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}
