package http1

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
)

// What this codec takes, net/http takes too, and both understand the same: ours is never laxer. Nor is it about where a message
// ends: of a connection's bytes every request that is taken begins where net/http sees one begin.
func FuzzNeverLaxerThanNetHTTP(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		theirs := bufio.NewReader(bytes.NewReader(b))
		for len(b) > 0 {
			var r Request
			n, err := r.Parse(b)
			if err != nil || n == 0 || string(r.Method()) == "CONNECT" {
				return
			}
			req, err := http.ReadRequest(theirs)
			if err != nil {
				t.Fatalf("net/http refuses %q: %v", b[:n], err)
			}
			compareHeads(t, &r, req)
			rest, whole := compareBodies(t, &r, b[n:], req)
			if !whole || r.Close {
				return
			}
			b = rest
		}
	})
}

func compareHeads(t fataler, r *Request, theirs *http.Request) {
	head := r.buf
	host := strings.TrimSuffix(theirs.Host, ":") // an empty port is none to us
	if theirs.Method != string(r.Method()) || host != string(r.Authority()) || !strings.HasSuffix(theirs.RequestURI, string(r.Target())) {
		t.Fatalf("%q: %s %s %s against %s %s %s", head, theirs.Method, theirs.Host, theirs.RequestURI, r.Method(), r.Authority(), r.Target())
	}
	if r.Minor == 1 && theirs.Close != r.Close {
		t.Fatalf("%q: close %v against %v", head, theirs.Close, r.Close)
	}
	compareFields(t, &r.Head, theirs.Header)
}

// compareFields holds the fields that pass, in their order, against those of net/http.
func compareFields(t fataler, h *Head, theirs http.Header) {
	seen := map[string]int{}
	for i := range h.Fields() {
		f := &h.Fields()[i]
		name := http.CanonicalHeaderKey(string(h.Name(f)))
		if f.Drop || f.Kind == Trailer { // which net/http keeps elsewhere
			continue
		}
		values := theirs[name]
		if n := seen[name]; n >= len(values) || values[n] != string(h.Value(f)) {
			t.Fatalf("%q: %s is %q, in net/http %q", h.buf, name, h.Value(f), values)
		}
		seen[name]++
	}
}

type fataler interface{ Fatalf(string, ...any) }

// compareBodies reads both bodies to their end, and gives what lies behind ours; whole is false when it is not all there.
func compareBodies(t fataler, r *Request, rest []byte, theirs *http.Request) (behind []byte, whole bool) {
	want, theirErr := io.ReadAll(theirs.Body)
	if !r.Chunked {
		length := max(r.Length, 0)
		if theirs.ContentLength != length {
			t.Fatalf("length %d against %d", theirs.ContentLength, r.Length)
		}
		if int64(len(rest)) < length {
			return nil, false
		}
		return rest[length:], true
	}
	var c Chunks
	got, behind, done, err := decode(&c, rest)
	if err != nil || !done {
		return nil, false
	}
	if theirErr != nil {
		t.Fatalf("net/http refuses the body %q: %v", rest, theirErr)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("body %q against %q", want, got)
	}
	compareFields(t, &c.Trailer, theirs.Trailer)
	return behind, true
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

// What an upstream says is understood as net/http understands it, to the end of its body and in the answer behind it.
func FuzzResponse(f *testing.F) {
	for _, s := range responseSeeds {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, isHead bool) {
		theirs := bufio.NewReader(bytes.NewReader(b))
		asked := &http.Request{Method: "GET"}
		if isHead {
			asked.Method = "HEAD"
		}
		for len(b) > 0 {
			var r Response
			n, err := r.Parse(b)
			if err != nil || n == 0 {
				return
			}
			res, err := http.ReadResponse(theirs, asked)
			if err != nil {
				t.Fatalf("net/http refuses %q: %v", b[:n], err)
			}
			if res.StatusCode != r.Status {
				t.Fatalf("%q: %d against %d", b[:n], res.StatusCode, r.Status)
			}
			compareFields(t, &r.Head, res.Header)
			rest, whole := compareAnswers(t, &r, b[n:], res, isHead)
			if !whole {
				return
			}
			b = rest
		}
	})
}

func compareAnswers(t fataler, r *Response, rest []byte, theirs *http.Response, isHead bool) (behind []byte, whole bool) {
	want, theirErr := io.ReadAll(theirs.Body)
	var got []byte
	switch r.Body(isHead) {
	case NoBody:
		behind = rest
	case Counted:
		if int64(len(rest)) < r.Length {
			return nil, false
		}
		got, behind = rest[:r.Length], rest[r.Length:]
	case InChunks:
		var c Chunks
		var done bool
		var err error
		if got, behind, done, err = decode(&c, rest); err != nil || !done {
			return nil, false
		}
	case UntilClose:
		got = rest
	}
	if theirErr != nil {
		t.Fatalf("net/http refuses the body %q of %q: %v", rest, r.buf, theirErr)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("body of %q: %q against %q", r.buf, want, got)
	}
	return behind, true
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
