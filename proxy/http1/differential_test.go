package http1

import (
	"bufio"
	"bytes"
	"net/http"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Fragments that a message is put together from, with every kind of fault; the first of each is sound.
var (
	methods  = []string{"GET", "POST", "HEAD", "OPTIONS", "PUT", "get", "G T", "", "M-SEARCH", "A\x00"}
	targets  = []string{"/", "/a?b=c", "/a//b/../c", "http://a/x", "https://a:8443/", "*", "a", "/%zz", "/\"<>", "//a/b", "http://a", "/a b", "/\xff"}
	versions = []string{"HTTP/1.1", "HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "http/1.1", "HTTP/1.1 ", "HTTP/01.1"}
	names    = []string{"Content-Length", "Transfer-Encoding", "Connection", "Host", "X", "x_y", "TE", "Trailer", "Upgrade", "Expect", "Content-Length ", " X", "", "X\x80", "content-length"}
	values   = []string{"3", "0", "+3", "3, 3", "chunked", "Chunked", "gzip, chunked", "close", "keep-alive, X", "a", "a:80", "", "  b\t ", "trailers", "x\x7f", "\xe4", "100-continue", "\x0bchunked", "identity", "[::1]", "a\x00"}
	ends     = []string{"\r\n", "\n", "\r", "\r\n ", "\r\r\n"}
	bodies   = []string{"", "abc", "3\r\nabc\r\n0\r\n\r\n", "3;a=b\r\nabc\r\n0\r\nX: y\r\n\r\n", "3 \r\nabc\r\n0\r\n\r\n", "3\nabc\n0\n\n", "0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "03\r\nabc\r\n00\r\n\r\n"}
)

func TestNeverLaxerThanNetHTTP(t *testing.T) {
	taken := 0
	rapid.Check(t, func(t *rapid.T) {
		of := func(name string, all []string) string { return rapid.SampledFrom(all).Draw(t, name) }
		mostlySound := func(name string, all []string) string { // the first of all, four times out of five
			if rapid.IntRange(0, 4).Draw(t, "odd "+name) < 4 {
				return all[0]
			}
			return of(name, all)
		}
		end := func() string { return mostlySound("end", ends) }
		var b strings.Builder
		b.WriteString(mostlySound("method", methods) + " " + mostlySound("target", targets) + " " + mostlySound("version", versions) + end())
		b.WriteString("Host: a" + end())
		for range rapid.IntRange(0, 3).Draw(t, "fields") {
			b.WriteString(of("name", names) + mostlySound("colon", []string{":", ": ", " :", ":\t"}) + of("value", values) + end())
		}
		b.WriteString("\r\n" + of("body", bodies))
		wire := []byte(b.String())
		var r Request
		n, err := r.Parse(wire)
		if err != nil || n == 0 {
			return
		}
		taken++
		theirs, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(wire)))
		if err != nil {
			t.Fatalf("net/http refuses %q: %v", wire[:n], err)
		}
		if theirs.Method != string(r.Method()) || theirs.Host != string(r.Authority()) {
			t.Fatalf("%q: %s %s", wire[:n], theirs.Method, theirs.Host)
		}
		compareFields(t, &r.Head, theirs.Header)
		compareBodies(t, &r, wire[n:], theirs)
	})
	if taken == 0 {
		t.Fatal("no message was taken at all")
	}
}
