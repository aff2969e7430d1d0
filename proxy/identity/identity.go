// Package identity says to upstreams who calls: in fields of the X-Caller family, which no client can send (proxy/http1 drops
// them), or in a token that the gateway signs.
//
//	dst = identity.Told{Name: "alice", User: "alice", Consumer: "acme", Facts: facts}.AppendFields(dst)
package identity

import (
	"net/netip"

	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/http1"
)

// Told is what an upstream is told of a verified caller.
type Told struct {
	User     string // the token's subject
	Consumer string
	Issuer   string         // who says so
	Facts    *auth.Identity // what else its credentials say; nil = nothing
}

// Known says whether there is anything to tell.
func (t Told) Known() bool { return t.User != "" || t.Consumer != "" }

// AppendFields appends the fields as lines: X-Caller, the user or else the consumer; X-Caller-User, -Issuer, -Consumer, -Client
// and -Scopes as far as they are known. What doesn't fit into a field is "-", so that it can't be taken for absent.
func (t Told) AppendFields(dst []byte) []byte {
	name := t.User
	if name == "" {
		name = t.Consumer
	}
	dst = http1.AppendLine(dst, "X-Caller", safe(name))
	dst = appendKnown(dst, "X-Caller-User", t.User)
	dst = appendKnown(dst, "X-Caller-Issuer", t.Issuer)
	dst = appendKnown(dst, "X-Caller-Consumer", t.Consumer)
	if t.Facts == nil {
		return dst
	}
	dst = appendKnown(dst, "X-Caller-Client", t.Facts.ClientID)
	if len(t.Facts.Scopes) == 0 {
		return dst
	}
	dst = append(dst, "X-Caller-Scopes: "...)
	for i, s := range t.Facts.Scopes {
		if i > 0 {
			dst = append(dst, ' ')
		}
		dst = append(dst, safe(s)...)
	}
	return append(dst, "\r\n"...)
}

func appendKnown(dst []byte, name, value string) []byte {
	if value == "" {
		return dst
	}
	return http1.AppendLine(dst, name, safe(value))
}

// safe keeps what could break a field line, or look like another value, out of it.
func safe(s string) string {
	if s == "" || s[0] == ' ' || s[len(s)-1] == ' ' {
		return "-"
	}
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return "-"
		}
	}
	return s
}

// Address is the caller that an address stands for, where nobody says who calls. Whoever has one IPv6 address has its whole
// /64, so all of that is one caller.
func Address(client netip.Addr, text string) string {
	if client.Is6() {
		if p, err := client.WithZone("").Prefix(64); err == nil {
			return p.String()
		}
	}
	return text
}
