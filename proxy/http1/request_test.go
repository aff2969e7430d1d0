package http1

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func parse(s string) (*Request, int, error) {
	var r Request
	n, err := r.Parse([]byte(s))
	return &r, n, err
}

const host = "Host: a.example\r\n"

func TestRefusedHeads(t *testing.T) {
	long := strings.Repeat("x", MaxTarget)
	for name, c := range map[string]struct {
		head string
		want error
	}{
		"bare LF":                           {"GET / HTTP/1.1\nHost: a\n\n", ErrSyntax},
		"bare LF in one field":              {"GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", ErrSyntax},
		"bare CR":                           {"GET / HTTP/1.1\r\nHost: a\rX: y\r\n\r\n", ErrSyntax},
		"long method":                       {strings.Repeat("G", MaxMethod+1) + " / HTTP/1.1\r\n" + host + "\r\n", ErrSyntax},
		"empty line ahead":                  {"\r\nGET / HTTP/1.1\r\n" + host + "\r\n", ErrSyntax},
		"folded field":                      {"GET / HTTP/1.1\r\n" + host + "X: a\r\n b\r\n\r\n", ErrSyntax},
		"blank before colon":                {"GET / HTTP/1.1\r\n" + host + "Content-Length : 3\r\n\r\n", ErrSyntax},
		"no name":                           {"GET / HTTP/1.1\r\n" + host + ": 3\r\n\r\n", ErrSyntax},
		"no colon":                          {"GET / HTTP/1.1\r\n" + host + "X\r\n\r\n", ErrSyntax},
		"NUL in a value":                    {"GET / HTTP/1.1\r\n" + host + "X: a\x00b\r\n\r\n", ErrSyntax},
		"DEL in a value":                    {"GET / HTTP/1.1\r\n" + host + "X: a\x7fb\r\n\r\n", ErrSyntax},
		"non-ASCII name":                    {"GET / HTTP/1.1\r\n" + host + "X\xff: a\r\n\r\n", ErrSyntax},
		"no host":                           {"GET / HTTP/1.1\r\n\r\n", ErrSyntax},
		"two hosts":                         {"GET / HTTP/1.1\r\n" + host + host + "\r\n", ErrSyntax},
		"empty host":                        {"GET / HTTP/1.1\r\nHost:\r\n\r\n", ErrSyntax},
		"host with user":                    {"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", ErrSyntax},
		"host with slash":                   {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", ErrSyntax},
		"host with list":                    {"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", ErrSyntax},
		"host with bad port":                {"GET / HTTP/1.1\r\nHost: a:99999\r\n\r\n", ErrSyntax},
		"host with port 0":                  {"GET / HTTP/1.1\r\nHost: a:0\r\n\r\n", ErrSyntax},
		"nothing but an empty port":         {"GET / HTTP/1.1\r\nHost: :\r\n\r\n", ErrSyntax},
		"two empty ports":                   {"GET / HTTP/1.1\r\nHost: a::\r\n\r\n", ErrSyntax},
		"target and host differ":            {"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", ErrSyntax},
		"no HTTP at all":                    {"INVALID CONNECTION PREFACE\r\n\r\n", ErrForeign},
		"other protocol":                    {"GET a FTP/1.1\r\n" + host + "\r\n", ErrSyntax},
		"relative target":                   {"GET a HTTP/1.1\r\n" + host + "\r\n", ErrSyntax},
		"other scheme":                      {"GET ftp://a/ HTTP/1.1\r\n" + host + "\r\n", ErrSyntax},
		"fragment":                          {"GET /#x HTTP/1.1\r\n" + host + "\r\n", ErrSyntax},
		"asterisk with GET":                 {"GET * HTTP/1.1\r\n" + host + "\r\n", ErrSyntax},
		"control in the target":             {"GET /\x01 HTTP/1.1\r\n" + host + "\r\n", ErrSyntax},
		"non-ASCII in the target":           {"GET /\xc3\xa4 HTTP/1.1\r\n" + host + "\r\n", ErrSyntax},
		"two blanks":                        {"GET  / HTTP/1.1\r\n" + host + "\r\n", ErrSyntax},
		"tab":                               {"GET\t/ HTTP/1.1\r\n" + host + "\r\n", ErrSyntax},
		"blank behind the version":          {"GET / HTTP/1.1 \r\n" + host + "\r\n", ErrSyntax},
		"HTTP/0.9":                          {"GET /\r\n\r\n", ErrSyntax},
		"HTTP/1.2":                          {"GET / HTTP/1.2\r\n" + host + "\r\n", ErrSyntax},
		"HTTP/2.0":                          {"GET / HTTP/2.0\r\n" + host + "\r\n", ErrSyntax},
		"lower-case version":                {"GET / http/1.1\r\n" + host + "\r\n", ErrSyntax},
		"method with a bracket":             {"G[T / HTTP/1.1\r\n" + host + "\r\n", ErrSyntax},
		"empty length (G29)":                {"POST / HTTP/1.1\r\n" + host + "Content-Length:\r\n\r\n", ErrFraming},
		"length with a sign (G29)":          {"POST / HTTP/1.1\r\n" + host + "Content-Length: +5\r\n\r\n", ErrFraming},
		"negative length":                   {"POST / HTTP/1.1\r\n" + host + "Content-Length: -5\r\n\r\n", ErrFraming},
		"hexadecimal length (G29)":          {"POST / HTTP/1.1\r\n" + host + "Content-Length: 0x5\r\n\r\n", ErrFraming},
		"list of lengths (G29)":             {"POST / HTTP/1.1\r\n" + host + "Content-Length: 5,5\r\n\r\n", ErrFraming},
		"two lengths":                       {"POST / HTTP/1.1\r\n" + host + "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", ErrFraming},
		"length too large to count":         {"POST / HTTP/1.1\r\n" + host + "Content-Length: 9999999999999999999\r\n\r\n", ErrFraming},
		"length and chunked":                {"POST / HTTP/1.1\r\n" + host + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", ErrFraming},
		"chunked and length":                {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", ErrFraming},
		"chunked twice (G31)":               {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", ErrFraming},
		"list of codings (G31)":             {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n", ErrFraming},
		"chunked not last":                  {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked, identity\r\n\r\n", ErrFraming},
		"identity":                          {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: identity\r\n\r\n", ErrFraming},
		"empty coding":                      {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding:\r\n\r\n", ErrFraming},
		"quoted coding":                     {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: \"chunked\"\r\n\r\n", ErrFraming},
		"vertical tab before chunked":       {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: \x0bchunked\r\n\r\n", ErrSyntax},
		"chunked with HTTP/1.0":             {"POST / HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n", ErrFraming},
		"Connection that is no list":        {"GET / HTTP/1.1\r\n" + host + "Connection: a b\r\n\r\n", ErrSyntax},
		"expectation that nobody can meet":  {"GET / HTTP/1.1\r\n" + host + "Expect: 200-maybe\r\n\r\n", ErrSyntax},
		"101 fields":                        {"GET / HTTP/1.1\r\n" + host + strings.Repeat("X: y\r\n", 100) + "\r\n", ErrTooMany},
		"target over 8 KiB":                 {"GET /" + long + " HTTP/1.1\r\n" + host + "\r\n", ErrURL},
		"target over 8 KiB without an end":  {"GET /" + long + long, ErrURL},
		"fields over 64 KiB":                {"GET / HTTP/1.1\r\n" + host + "X: " + strings.Repeat("y", MaxHead) + "\r\n\r\n", ErrTooLarge},
		"fields over 64 KiB without an end": {"GET / HTTP/1.1\r\n" + host + "X: " + strings.Repeat("y", MaxHead), ErrTooLarge},
	} {
		if _, n, err := parse(c.head); !errors.Is(err, c.want) {
			t.Errorf("%s: %d %v, want %v", name, n, err, c.want)
		}
	}
}

func TestAcceptedHeads(t *testing.T) {
	for name, c := range map[string]struct{ head, method, target, authority string }{
		"origin form":       {"GET /a?b HTTP/1.1\r\n" + host + "\r\n", "GET", "/a?b", "a.example"},
		"absolute form":     {"GET http://A.example:80/a?b HTTP/1.1\r\nHost: a.example:80\r\n\r\n", "GET", "/a?b", "A.example:80"},
		"no path":           {"GET http://a.example HTTP/1.1\r\n" + host + "\r\n", "GET", "", "a.example"},
		"no path, a query":  {"GET http://a.example?b/c HTTP/1.1\r\n" + host + "\r\n", "GET", "?b/c", "a.example"},
		"asterisk form":     {"OPTIONS * HTTP/1.1\r\n" + host + "\r\n", "OPTIONS", "*", "a.example"},
		"IPv6 host":         {"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "GET", "/", "[::1]:80"},
		"HTTP/1.0, no host": {"GET / HTTP/1.0\r\n\r\n", "GET", "/", ""},
		"blank value":       {"GET / HTTP/1.1\r\n" + host + "X: \t \r\n\r\n", "GET", "/", "a.example"},
		"obs-text":          {"GET / HTTP/1.1\r\n" + host + "X: \xe4\r\n\r\n", "GET", "/", "a.example"},
		"100 fields":        {"GET / HTTP/1.1\r\n" + host + strings.Repeat("X: y\r\n", 99) + "\r\n", "GET", "/", "a.example"},
	} {
		r, n, err := parse(c.head)
		if err != nil || n != len(c.head) {
			t.Errorf("%s: %d %v", name, n, err)
			continue
		}
		if string(r.Method()) != c.method || string(r.Target()) != c.target || string(r.Authority()) != c.authority {
			t.Errorf("%s: %q %q %q", name, r.Method(), r.Target(), r.Authority())
		}
	}
}

// A head that arrives byte by byte is read as one that arrives whole, and refused no later.
func TestHeadInPieces(t *testing.T) {
	whole := "POST /x HTTP/1.1\r\n" + host + "Content-Length: 3\r\nX-A: b\r\n\r\nabc"
	var r Request
	for i := range len(whole) {
		n, err := r.Parse([]byte(whole[:i+1]))
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			if n != len(whole)-3 || i != n-1 {
				t.Fatalf("ended at %d with %d bytes", n, i+1)
			}
			return
		}
	}
	t.Fatal("never ended")
}

func TestHopByHopAndNamedFieldsAreDropped(t *testing.T) {
	r, _, err := parse("GET / HTTP/1.1\r\n" + host +
		"Connection:\r\nConnection: X-Named, close,, TE\r\nX-Named: 1\r\nKeep-Alive: 1\r\nTE: trailers\r\nProxy-Connection: x\r\n" +
		"Upgrade: h2c\r\nHTTP2-Settings: x\r\nX-Forwarded-For: 1\r\nX_Forwarded_For: 2\r\nX-Forwarded-Prefix: /a\r\nForwarded: for=1\r\n" +
		"X-Forwarded-: 1\r\nX-Forwarded: for=1\r\nClient-IP: 1\r\nX-Original-Host: b\r\nX-Remote-User: root\r\nProxy: http://b\r\n" +
		"X-SSL-Client-S-DN: CN=root\r\nSSL_Client_Cert: x\r\nX-Client_Cert: x\r\nX-Auth-Request-Email: root\r\nRemote_User: root\r\nX-WebAuth-User: root\r\nX-Authenticated-UserId: root\r\n" +
		"X-Real-Ip: 1\r\nX-Caller: root\r\nx_caller: root\r\nTransfer_Encoding: chunked\r\nX-Request-Id: 1\r\nX-Stays: 1\r\nAuthorization: a\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	if got := string(r.AppendFields(nil)); got != "X-Stays: 1\r\nAuthorization: a\r\n" {
		t.Fatalf("left: %q", got)
	}
	if !r.Close {
		t.Fatal("close was not seen behind an empty Connection field")
	}
}

func TestUpgradeIsSeenOnlyWithItsConnectionOption(t *testing.T) {
	for head, want := range map[string]bool{
		"Connection: Upgrade\r\nUpgrade: websocket\r\n":                           true,
		"Connection: keep-alive\r\nUpgrade: websocket\r\n":                        false,
		"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n":                 false,
		"Upgrade: websocket\r\nConnection: keep-alive\r\nConnection: UPGRADE\r\n": true,
	} {
		r, _, err := parse("GET / HTTP/1.1\r\n" + host + head + "\r\n")
		if err != nil || r.Upgrade != want {
			t.Errorf("%q: %v %v", head, r.Upgrade, err)
		}
	}
}

func TestParseAllocatesNothing(t *testing.T) {
	b := []byte("GET /v1/orders/7 HTTP/1.1\r\n" + host + "User-Agent: x\r\nAccept: */*\r\nConnection: X-A\r\nX-A: 1\r\n\r\n")
	var r Request
	out := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(1000, func() {
		if k, err := r.Parse(b); k != len(b) || err != nil {
			t.Fatal(k, err)
		}
		out = r.AppendFields(out[:0])
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func BenchmarkParseRequest(b *testing.B) {
	head := []byte("GET /v1/orders/7 HTTP/1.1\r\n" + host + "User-Agent: bench/1.0\r\nAccept: */*\r\nAccept-Encoding: gzip\r\nAuthorization: Bearer abcdefgh\r\n\r\n")
	var r Request
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Parse(head); err != nil {
			b.Fatal(err)
		}
	}
}

func TestPlainBytesAreCountedUpToTheFirstOther(t *testing.T) {
	for at := range 40 {
		for c := range 256 {
			b := bytes.Repeat([]byte("x"), 40)
			b[at] = byte(c)
			n := plain(b)
			if ok := c >= 0x20 && c < 0x7f; ok && n != 40 || !ok && n != at/8*8 {
				t.Fatalf("%#x at %d: %d", c, at, n)
			}
		}
	}
	if n := plain([]byte("seven b")); n != 0 {
		t.Fatal(n)
	}
}

// RFC 3986, section 3.2.3: a port may be empty, and is none then (section 6.2.3).
func TestAnEmptyPortIsNone(t *testing.T) {
	for head, want := range map[string]string{
		"GET / HTTP/1.1\r\nHost: a.example:\r\n\r\n":                    "a.example",
		"GET / HTTP/1.1\r\nHost: [::1]:\r\n\r\n":                        "[::1]",
		"GET http://a.example:/ HTTP/1.1\r\nHost: a.example\r\n\r\n":    "a.example",
		"GET http://a.example/ HTTP/1.1\r\nHost: a.example:\r\n\r\n":    "a.example",
		"GET http://a.example:80/ HTTP/1.1\r\nHost: a.example:\r\n\r\n": "",
	} {
		var r Request
		if _, err := r.Parse([]byte(head)); (err == nil) != (want != "") || err == nil && string(r.Authority()) != want {
			t.Errorf("%q: %q %v", head, r.Authority(), err)
		}
	}
}
