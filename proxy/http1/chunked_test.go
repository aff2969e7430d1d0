package http1

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// decode feeds the pieces and gives all data, what was left behind the body, and whether it ended.
func decode(c *Chunks, pieces ...[]byte) (data, rest []byte, done bool, err error) {
	for _, p := range pieces {
		for len(p) > 0 {
			if done {
				rest = append(rest, p...)
				break
			}
			var d []byte
			var n int
			d, n, done, err = c.Next(p)
			data = append(data, d...)
			p = p[n:]
			if err != nil {
				return data, nil, done, err
			}
		}
	}
	return data, rest, done, nil
}

func TestChunksAreDecodedHoweverTheyArrive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var wire, want []byte
		for range rapid.IntRange(0, 5).Draw(t, "chunks") {
			d := rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "data")
			want = append(want, d...)
			wire = AppendChunkHead(wire, len(d))
			wire = append(append(wire, d...), "\r\n"...)
		}
		wire = append(AppendLastChunk(wire, nil)[:len(wire)+3:len(wire)+3], "X-T: 1\r\n\r\nNEXT"...)
		var pieces [][]byte
		for rest := wire; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		var c Chunks
		data, rest, done, err := decode(&c, pieces...)
		if err != nil || !done || !bytes.Equal(data, want) || string(rest) != "NEXT" {
			t.Fatalf("%v %v %q %q", err, done, data, rest)
		}
		if string(c.Trailer.AppendFields(nil)) != "X-T: 1\r\n" {
			t.Fatalf("trailer %q", c.Trailer.AppendFields(nil))
		}
	})
}

func TestRefusedChunks(t *testing.T) {
	for name, wire := range map[string]string{
		"no size":             "\r\n",
		"blank before size":   " 3\r\nabc\r\n0\r\n\r\n",
		"blank behind size":   "3 \r\nabc\r\n0\r\n\r\n",
		"sign":                "+3\r\nabc\r\n0\r\n\r\n",
		"0x":                  "0x3\r\nabc\r\n0\r\n\r\n",
		"bare LF":             "3\nabc\r\n0\r\n\r\n",
		"bare CR":             "3\rabc\r\n0\r\n\r\n",
		"data too long":       "3\r\nabcd\r\n0\r\n\r\n",
		"LF behind data":      "3\r\nabc\n0\r\n\r\n",
		"size overflows":      "1000000000000000\r\n",
		"LF in extension":     "3;a\nb\r\nabc\r\n0\r\n\r\n",
		"an open quote":       "3;a=\"\r\nabc\r\n0\r\n\r\n",
		"an escaped quote":    "3;a=\"b\\\"\r\nabc\r\n0\r\n\r\n",
		"an escaped end":      "3;a=\"b\\\r\nabc\r\n0\r\n\r\n",
		"long extension":      "3;" + strings.Repeat("a", 300) + "\r\nabc\r\n0\r\n\r\n",
		"many extensions":     strings.Repeat("1;"+strings.Repeat("a", 200)+"\r\nx\r\n", 30),
		"LF in trailer":       "0\r\nX: a\n\r\n",
		"folded trailer":      "0\r\nX: a\r\n b\r\n\r\n",
		"long trailer":        "0\r\nX: " + strings.Repeat("a", 9<<10) + "\r\n\r\n",
		"many trailers":       "0\r\n" + strings.Repeat("X: a\r\n", 101) + "\r\n",
		"framing in trailers": "0\r\nContent-Length: x\r\n\r\n",
	} {
		var c Chunks
		if _, _, done, err := decode(&c, []byte(wire)); err == nil || done {
			t.Errorf("%s was taken", name)
		} else if !errors.Is(err, ErrFraming) && !errors.Is(err, ErrSyntax) && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrTooMany) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestExtensionsAreDropped(t *testing.T) {
	for _, wire := range []string{"3;a\r\nabc\r\n0\r\n\r\n", "3;a=b;c=\"d;\\\"e\"\r\nabc\r\n0;\"\"\r\n\r\n", "3;\\\r\nabc\r\n0\r\n\r\n"} {
		var c Chunks
		if data, _, done, err := decode(&c, []byte(wire)); err != nil || !done || string(data) != "abc" {
			t.Errorf("%q: %q %v %v", wire, data, done, err)
		}
	}
}

// G17: a trailer must not bring in what was refused as a header.
func TestTrailersThatIdentifyOrFrameAreDropped(t *testing.T) {
	var c Chunks
	_, _, done, err := decode(&c, []byte("0\r\nX-Caller: root\r\nX-Forwarded-For: 1\r\nx_caller: root\r\nHost: b\r\nAuthorization: x\r\n"+
		"Content-Type: a\r\nContent_Type: a\r\nSet-Cookie: a\r\nIf-Match: a\r\nRange: a\r\nX-Forwarded: a\r\nX-Sum: 1\r\n\r\n"))
	if err != nil || !done {
		t.Fatal(err, done)
	}
	if got := string(c.Trailer.AppendFields(nil)); got != "X-Sum: 1\r\n" {
		t.Fatalf("left: %q", got)
	}
}

func TestDecodingAllocatesNothing(t *testing.T) {
	var c Chunks
	wire := []byte("5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n")
	c.Next(wire)
	if n := testing.AllocsPerRun(1000, func() {
		c.Reset()
		for p, done := wire, false; !done; {
			_, n, end, err := c.Next(p)
			if err != nil {
				t.Fatal(err)
			}
			p, done = p[n:], end
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
