package http1

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
	GRPCTimeout // Grpc-Timeout
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
		{"x-request-id", RequestID, true}, {"authorization", Authorization, false}, {"x-api-key", APIKey, false},
		{"x-request-timeout-ms", TimeoutMS, true}, {"grpc-timeout", GRPCTimeout, true},
	} {
		t[len(k.name)] = append(t[len(k.name)], k)
	}
	return t
}()

const forwardedFamily = "x-forwarded-"

// classify finds the kind of a name. An underscore is read as a hyphen, because upstreams that put fields into
// environment variables can't tell them apart: such a name of a known field is dropped.
func classify(name []byte) (Kind, bool) {
	n := len(name)
	if n > len(forwardedFamily) && foldUnder(name[:len(forwardedFamily)], forwardedFamily) {
		return Forwarding, true
	}
	if n < len(knownByLength) {
		for i := range knownByLength[n] {
			if k := &knownByLength[n][i]; foldUnder(name, k.name) {
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

func foldUnder(b []byte, s string) bool {
	for i := range len(s) {
		c := b[i]
		if c != s[i] && (c < 'A' || c > 'Z' || c|0x20 != s[i]) && (c != '_' || s[i] != '-') {
			return false
		}
	}
	return true
}

func isTokenBytes(b []byte) bool {
	for _, c := range b {
		if class[c]&isToken == 0 {
			return false
		}
	}
	return len(b) > 0
}
