package http1

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
)

func seeds(f *testing.F) {
	for _, s := range []string{
		"GET /a?b=c HTTP/1.1\r\nHost: a\r\n\r\n",
		"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
		"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nX-T: 1\r\n\r\nGET / HTTP/1.1\r\n",
		"GET http://a:80/ HTTP/1.1\r\nHost: a:80\r\nConnection: close, x\r\nX: y\r\n\r\n",
		"OPTIONS * HTTP/1.0\r\n\r\n",
		"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
		"GET / HTTP/1.1\nHost: a\n\n",
	} {
		f.Add([]byte(s))
	}
}

// What this codec takes, net/http takes too, and both understand the same: ours is never laxer.
func FuzzNeverLaxerThanNetHTTP(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Request
		n, err := r.Parse(b)
		if err != nil || n == 0 || string(r.Method()) == "CONNECT" {
			return
		}
		theirs, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			t.Fatalf("net/http refuses %q: %v", b[:n], err)
		}
		if theirs.Method != string(r.Method()) || theirs.Host != string(r.Authority()) || !strings.HasSuffix(theirs.RequestURI, string(r.Target())) {
			t.Fatalf("%q: %s %s %s against %s %s %s", b[:n], theirs.Method, theirs.Host, theirs.RequestURI, r.Method(), r.Authority(), r.Target())
		}
		if r.Minor == 1 && theirs.Close != r.Close {
			t.Fatalf("%q: close %v against %v", b[:n], theirs.Close, r.Close)
		}
		compareBodies(t, &r, b[n:], theirs)
	})
}

func compareBodies(t interface{ Fatalf(string, ...any) }, r *Request, rest []byte, theirs *http.Request) {
	want, theirErr := io.ReadAll(theirs.Body)
	if !r.Chunked {
		if theirs.ContentLength != max(r.Length, 0) {
			t.Fatalf("length %d against %d", theirs.ContentLength, r.Length)
		}
		return
	}
	var c Chunks
	got, _, done, err := decode(&c, rest)
	if err != nil || !done {
		return
	}
	if theirErr != nil {
		t.Fatalf("net/http refuses the body %q: %v", rest, theirErr)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("body %q against %q", want, got)
	}
}

// What goes on is a new head, read again without any difference, and it has none of the dropped fields.
func FuzzSerialisedHeadIsStable(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		var r, again Request
		n, err := r.Parse(b)
		if err != nil || n == 0 || string(r.Method()) == "CONNECT" {
			return
		}
		fields := r.AppendFields(nil)
		wire := append([]byte("GET / HTTP/1.1\r\nHost: a\r\n"), fields...)
		wire = append(wire, "\r\n"...)
		if _, err := again.Parse(wire); err != nil {
			t.Fatalf("own head %q is refused: %v", wire, err)
		}
		if again.HasBody() || again.Close || again.Upgrade || again.Expect {
			t.Fatalf("%q carries framing or connection options", wire)
		}
		if second := again.AppendFields(nil); !bytes.Equal(second, fields) {
			t.Fatalf("%q became %q", fields, second)
		}
	})
}

func FuzzResponse(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"))
	f.Add([]byte("HTTP/1.0 304\r\nTransfer-Encoding: chunked\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Response
		n, err := r.Parse(b)
		if err != nil || n == 0 {
			return
		}
		theirs, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b)), nil)
		if err != nil {
			t.Fatalf("net/http refuses %q: %v", b[:n], err)
		}
		if theirs.StatusCode != r.Status {
			t.Fatalf("%q: %d against %d", b[:n], theirs.StatusCode, r.Status)
		}
	})
}

// The decoder gives the same whatever the pieces, and uses exactly what it says.
func FuzzChunksInPieces(f *testing.F) {
	f.Add([]byte("3\r\nabc\r\n0\r\n\r\nrest"), uint8(1))
	f.Add([]byte("a;x\r\n0123456789\r\n0\r\nA: b\r\n\r\n"), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, size uint8) {
		var whole, pieces Chunks
		d1, r1, done1, err1 := decode(&whole, b)
		var cut [][]byte
		for rest := b; len(rest) > 0; {
			n := min(int(size)+1, len(rest))
			cut, rest = append(cut, rest[:n]), rest[n:]
		}
		d2, r2, done2, err2 := decode(&pieces, cut...)
		if (err1 == nil) != (err2 == nil) || done1 != done2 || err1 == nil && (!bytes.Equal(d1, d2) || !bytes.Equal(r1, r2)) {
			t.Fatalf("%q: %q %q %v %v against %q %q %v %v", b, d1, r1, done1, err1, d2, r2, done2, err2)
		}
	})
}
