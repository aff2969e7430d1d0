package http1

import "encoding/binary"

// The character classes of RFC 9110, section 5.6.2 and 5.5, and of RFC 3986.
const (
	isToken  = 1 << iota // field names and methods
	isValue              // field values: VCHAR, obs-text, blanks
	isTarget             // request targets: visible ASCII but '#'
	isHost               // registered names and addresses, without brackets and port
	isHex
	isLower // field names of HTTP/2: tokens without upper case
)

var class = func() (t [256]uint8) {
	mark := func(s string, m uint8) {
		for i := range len(s) {
			t[s[i]] |= m
		}
	}
	const alnum = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	mark(alnum, isToken|isHost)
	mark("!#$%&'*+-.^_`|~", isToken)
	mark("abcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~", isLower)
	mark("-._", isHost)
	mark("0123456789abcdefABCDEF", isHex)
	for c := 0x21; c < 0x7f; c++ {
		t[c] |= isTarget
	}
	t['#'] &^= isTarget
	for c := 0x20; c < 0x100; c++ {
		t[c] |= isValue
	}
	t['\t'] |= isValue
	t[0x7f] &^= isValue
	return t
}()

// Kind is what the gateway knows a field by. Other is everything that only passes.
type Kind uint8

// The kinds. Forwarding covers the whole family that says who called and through whom.
const (
	Other Kind = iota
	Host
	ContentLength
	TransferEncoding
	Connection
	Upgrade
	TE
	Trailer
	Expect
	Hop        // other hop-by-hop fields
	Forwarding // X-Forwarded-*, Forwarded, X-Real-IP, X-Caller and kin: deleted and rebuilt
	RequestID
	Authorization
	APIKey
	TimeoutMS   // X-Request-Timeout-Ms
	Traceparent // and Tracestate: taken from trusted proxies alone, and rebuilt
	Tracestate
	GRPCTimeout // Grpc-Timeout
	Internal    // tells what runs behind: passes in requests only, unless an answer's route keeps it
	Spoof       // a name that equals a known one once '_' is read as '-'
)

type known struct {
	name string
	kind Kind
	drop bool
}

// knownByLength lists the names that matter, lower case, by their length.
var knownByLength = func() (t [32][]known) {
	for _, k := range []known{
		{"te", TE, true}, {"host", Host, true}, {"content-length", ContentLength, true},
		{"transfer-encoding", TransferEncoding, true}, {"connection", Connection, true}, {"upgrade", Upgrade, true},
		{"trailer", Trailer, false}, {"expect", Expect, true}, {"keep-alive", Hop, true}, {"proxy-connection", Hop, true},
		{"http2-settings", Hop, true}, {"alt-svc", Hop, true}, {"proxy-authorization", Hop, true}, {"proxy-authenticate", Hop, true},
		{"forwarded", Forwarding, true}, {"x-real-ip", Forwarding, true}, {"x-caller", Forwarding, true},
		{"x-client-ip", Forwarding, true}, {"x-cluster-client-ip", Forwarding, true}, {"true-client-ip", Forwarding, true},
		{"x-original-url", Forwarding, true}, {"x-rewrite-url", Forwarding, true}, {"x-cellgate-reason", Forwarding, true},
		{"x-forwarded", Forwarding, true}, {"forwarded-for", Forwarding, true}, {"client-ip", Forwarding, true}, {"x-original-host", Forwarding, true},
		{"x-original-forwarded-for", Forwarding, true}, {"x-originating-ip", Forwarding, true}, {"x-remote-ip", Forwarding, true},
		{"x-remote-addr", Forwarding, true}, {"x-remote-user", Forwarding, true}, {"x-host", Forwarding, true}, {"x-real-port", Forwarding, true},
		{"x-scheme", Forwarding, true}, {"x-url-scheme", Forwarding, true}, {"front-end-https", Forwarding, true},
		{"cf-connecting-ip", Forwarding, true}, {"fastly-client-ip", Forwarding, true},
		{"client-cert", Forwarding, true}, {"client-cert-chain", Forwarding, true}, // RFC 9440, of a proxy that has seen one
		{"x-client-cert", Forwarding, true}, {"x-client-verify", Forwarding, true}, {"x-client-dn", Forwarding, true},
		{"remote-user", Forwarding, true}, {"x-webauth-user", Forwarding, true}, {"x-authenticated-user", Forwarding, true}, {"x-authenticated-userid", Forwarding, true},
		{"proxy", Hop, true}, // upstreams of CGI's kind would take it for their own proxy's address (CVE-2016-5385)
		{"x-request-id", RequestID, true}, {"authorization", Authorization, false}, {"x-api-key", APIKey, false},
		{"x-request-timeout-ms", TimeoutMS, true}, {"grpc-timeout", GRPCTimeout, true},
		{"server", Internal, false}, {"x-powered-by", Internal, false}, {"x-aspnet-version", Internal, false}, {"x-aspnetmvc-version", Internal, false},
		{"x-backend", Internal, false}, {"x-backend-server", Internal, false}, {"x-debug-token", Internal, false}, {"x-debug-token-link", Internal, false},
		{"x-envoy-decorator-operation", Internal, false}, {"x-envoy-upstream-service-time", Internal, false}, {"x-generator", Internal, false},
		{"x-runtime", Internal, false}, {"x-upstream", Internal, false},
		{"traceparent", Traceparent, true}, {"tracestate", Tracestate, true},
	} {
		t[len(k.name)] = append(t[len(k.name)], k)
	}
	return t
}()

// Known lists the names that mean something to the gateway, in lower case; for each of the families one of it.
func Known() (names []string) {
	for _, of := range knownByLength {
		for _, k := range of {
			names = append(names, k.name)
		}
	}
	for _, f := range families {
		names = append(names, f+"x")
	}
	return names
}

// families begin names that are all Forwarding: of proxies, of who calls, and by which proxies tell of a login or of a certificate.
var families = [...]string{"x-forwarded-", "x-caller-", "x-auth-request-", "x-ssl-client-", "ssl-client-"}

// classify finds the kind of a name. An underscore is read as a hyphen, because upstreams that put fields into
// environment variables can't tell them apart: such a name of a known field is dropped.
func classify(name []byte) (Kind, bool) {
	n, first := len(name), name[0]|0x20
	for _, f := range families {
		if n >= len(f) && first == f[0] && foldUnder(name[:len(f)], f) {
			return Forwarding, true
		}
	}
	if n < len(knownByLength) {
		for i := range knownByLength[n] {
			if k := &knownByLength[n][i]; first == k.name[0] && foldUnder(name, k.name) {
				if !equalFold(name, k.name) {
					return Spoof, true
				}
				return k.kind, k.drop
			}
		}
	}
	return Other, false
}

// equalFold compares b with an all lower-case ASCII s.
func equalFold(b []byte, s string) bool {
	if len(b) != len(s) {
		return false
	}
	for i := range len(s) {
		if c := b[i]; c != s[i] && (c < 'A' || c > 'Z' || c|0x20 != s[i]) {
			return false
		}
	}
	return true
}

// foldUnder compares b with as long an all lower-case s, as Alike does.
func foldUnder(b []byte, s string) bool {
	for i := range len(s) {
		c := b[i]
		if c != s[i] && (c < 'A' || c > 'Z' || c|0x20 != s[i]) && (c != '_' || s[i] != '-') && (c != '-' || s[i] != '_') {
			return false
		}
	}
	return true
}

// Alike says whether a name is this one, which is in lower case, to whoever can't tell an underscore from a hyphen.
func Alike(name []byte, lower string) bool { return len(name) == len(lower) && foldUnder(name, lower) }

// plain is how many bytes from the head of b, in steps of eight, are surely visible ASCII or spaces. Most of a head is the
// values of cookies and tokens, which are nothing else.
func plain(b []byte) (n int) {
	const ones = 0x0101010101010101
	for ; len(b)-n >= 8; n += 8 {
		// A byte's highest bit becomes set if it is below 0x20, or above 0x7e; or, by a borrow or carry, next to one that is.
		if w := binary.LittleEndian.Uint64(b[n:]); ((w-0x20*ones)|(w+ones)|w)&(0x80*ones) != 0 {
			break
		}
	}
	return n
}

func isTokenBytes(b []byte) bool {
	for _, c := range b {
		if class[c]&isToken == 0 {
			return false
		}
	}
	return len(b) > 0
}
