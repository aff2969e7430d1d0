// Package identity says to upstreams who calls: in fields of the X-Caller family, which no client can send (proxy/http1 drops
// them), or in a token that the gateway signs.
//
//	dst = identity.Told{User: "alice", Consumer: "acme", Facts: facts}.AppendFields(dst)
package identity

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/snapshot"
)

// Told is a verified caller, as upstreams are told of it. The zero value is anonymous.
type Told struct {
	User     string         // the token's subject, the certificate's name; empty for an API key
	Consumer string         // id of the consumer by the token's consumer_claim, the API key or the certificate; empty when it has none
	Issuer   string         // who says so
	Facts    *auth.Identity // what else its credentials say; nil = nothing
}

// Voucher signs tokens. It is called on the request path, from many goroutines, and never waits.
type Voucher interface {
	// Vouch appends the field X-Caller-Token with the caller's token for an upstream, as a line; nothing if there is no key.
	Vouch(dst []byte, keys []snapshot.IdentityKey, to *snapshot.Upstream, tenant string, t Told, now time.Time) []byte
	// KeySet is the JWK set of the public keys.
	KeySet(keys []snapshot.IdentityKey) string
}

// Known says whether there is anything to tell.
func (t Told) Known() bool { return t.User != "" || t.Consumer != "" }

// AppendFields appends the fields as lines: X-Caller, the user or else the consumer; X-Caller-User, -Issuer, -Consumer, -Client
// and -Scopes as far as they are known. What a field can't hold as it is, and "%", is percent-encoded (RFC 3986, section 2.1), byte by
// byte, so that no two callers look alike.
func (t Told) AppendFields(dst []byte) []byte {
	dst = appendKnown(dst, "X-Caller", cmp.Or(t.User, t.Consumer))
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
		dst = appendPlain(dst, s)
	}
	return append(dst, "\r\n"...)
}

func appendKnown(dst []byte, name, value string) []byte {
	if value == "" {
		return dst
	}
	dst = append(append(dst, name...), ": "...)
	return append(appendPlain(dst, value), "\r\n"...)
}

// appendPlain appends s without what could break a field line, be trimmed, or make two values one.
func appendPlain(dst []byte, s string) []byte {
	const hex = "0123456789ABCDEF"
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '%' || c == ' ' && (i == 0 || i == len(s)-1) {
			dst = append(dst, '%', hex[c>>4], hex[c&15])
		} else {
			dst = append(dst, c)
		}
	}
	return dst
}

// Counted is whom a limit counts: the verified user, else the consumer, else the address (H5).
func (t *Told) Counted(client netip.Addr, text string) string {
	if id := cmp.Or(t.User, t.Consumer); id != "" {
		return id
	}
	return Address(client, text)
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
