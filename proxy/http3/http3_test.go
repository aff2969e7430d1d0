package http3

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cellgate/cellgate/proxy/http1"
)

func TestIntegersOfEveryLengthComeBack(t *testing.T) {
	for _, v := range []uint64{0, 63, 64, 16383, 16384, 1<<30 - 1, 1 << 30, MaxStreamID, 1<<62 - 1} {
		b := AppendVarint(nil, v)
		if got, n := Varint(b); got != v || n != len(b) || VarintLen(b[0]) != n {
			t.Errorf("%d: %d in %d of %d bytes", v, got, n, len(b))
		}
		for i := range b {
			if _, n := Varint(b[:i]); n != 0 {
				t.Errorf("%d: %d bytes were enough", v, i)
			}
		}
	}
}

func TestFrameHeadsNeedAllTheirBytes(t *testing.T) {
	b := AppendFrameHead(nil, 0x4021, 1<<20)
	for i := range len(b) + 1 {
		typ, length, n := FrameHead(b[:i])
		if i < len(b) && n != 0 || i == len(b) && (typ != 0x4021 || length != 1<<20 || n != len(b)) {
			t.Errorf("%d bytes: %d %d %d", i, typ, length, n)
		}
	}
}

// However a control stream is cut into pieces, the verdict is the same.
func TestControlStreamMayComeInPieces(t *testing.T) {
	frame := func(typ uint64, p string) string { return string(AppendFrameHead(nil, typ, uint64(len(p)))) + p }
	for name, c := range map[string]struct {
		stream string
		want   error
	}{
		"all that is allowed": {frame(frameSettings, "\x06\x80\x01\x00\x00\x08\x01\x33\x01") + frame(0x21, strings.Repeat("x", 3000)) +
			frame(frameMaxPushID, "\x05") + frame(frameMaxPushID, "\x05") + frame(frameGoAway, "\x08") + frame(frameGoAway, "\x00"), nil},
		"a push id that goes back": {frame(frameSettings, "") + frame(0x21, "abc") + frame(frameMaxPushID, "\x05") + frame(frameMaxPushID, "\x04"), IDError},
		"no settings":              {frame(0x21, "abc") + frame(frameSettings, ""), MissingSettings},
		"a flag that is 2":         {frame(frameSettings, "\x08\x02"), SettingsError},
		"many settings":            {frame(frameSettings, manySettings()), ExcessiveLoad},
	} {
		for _, size := range []int{1, 2, 3, 7, 1000, len(c.stream)} {
			var got error
			var ctl Control
			for b := []byte(c.stream); len(b) > 0 && got == nil; {
				n := min(size, len(b))
				got = ctl.Feed(b[:n:n])
				b = b[n:]
			}
			if !errors.Is(got, c.want) {
				t.Errorf("%s, pieces of %d: %v, want %v", name, size, got, c.want)
			}
		}
	}
}

func manySettings() string {
	var b []byte
	for i := range uint64(maxSettings + 1) {
		b = AppendVarint(AppendVarint(b, 1000+i), 1)
	}
	return string(b)
}

func TestCancellationsMayBeLongAndNothingElseIsSaidOfTables(t *testing.T) {
	for b, want := range map[string]error{
		"\x41\x7f\x80\x01\x44": nil, "\x7f" + strings.Repeat("\x80", 12): DecoderStreamError, "\x80": DecoderStreamError, "\x01": DecoderStreamError,
	} {
		if err := new(Instructions).Feed([]byte(b)); !errors.Is(err, want) {
			t.Errorf("%x: %v, want %v", b, err, want)
		}
	}
	for b, want := range map[string]error{"\x20\x20": nil, "\x21": EncoderStreamError, "\xc0": EncoderStreamError} {
		if err := (&Instructions{Encoder: true}).Feed([]byte(b)); !errors.Is(err, want) {
			t.Errorf("%x: %v, want %v", b, err, want)
		}
	}
}

// What is encoded here is read as the same head.
func TestSectionsComeBack(t *testing.T) {
	var s Section
	for range 2 { // it can be used again
		s.Begin(0)
		for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "a.example"}, {":path", "/x"}, {"Accept", "*/*"}, {"X-Y", "z"}} {
			s.Put(f[0], f[1])
		}
		b := s.AppendFrame(nil)
		_, length, n := FrameHead(b)
		if uint64(len(b)-n) != length {
			t.Fatalf("%d bytes, said %d", len(b)-n, length)
		}
		var r http1.Request
		if err := ParseRequest(&r, nil, b[n:]); err != nil {
			t.Fatal(err)
		}
		if err := r.Built(false); err != nil || string(r.AppendFields(nil)) != "accept: */*\r\nx-y: z\r\n" || string(r.Target()) != "/x" || string(r.Authority()) != "a.example" {
			t.Fatalf("%v %q", err, r.AppendFields(nil))
		}
	}
}

func TestTrailersMayNotFrameRouteOrIdentify(t *testing.T) {
	var s Section
	s.Begin(0)
	for _, name := range []string{"x-sum", "content-length", "x-caller", "authorization", "host"} {
		s.Put(name, "1")
	}
	b := s.AppendFrame(nil)
	_, _, n := FrameHead(b)
	var h http1.Head
	if err := ParseTrailers(&h, nil, b[n:]); err != nil || string(h.AppendFields(nil)) != "x-sum: 1\r\n" {
		t.Fatalf("%v %q", err, h.AppendFields(nil))
	}
	s.Begin(0)
	s.Put(":path", "/")
	b = s.AppendFrame(nil)
	_, _, n = FrameHead(b)
	if err := ParseTrailers(&h, nil, b[n:]); !errors.Is(err, http1.ErrSyntax) {
		t.Fatalf("a pseudo-header field among trailers: %v", err)
	}
}

// FuzzParseRequest: whatever comes, a head that is taken can be written as HTTP/1 and is read there as the same.
func FuzzParseRequest(f *testing.F) {
	var s Section
	for _, fields := range [][]string{
		{":method", "GET", ":scheme", "https", ":authority", "a.example", ":path", "/x?y", "cookie", "a=1", "cookie", "b=2"},
		{":method", "POST", ":scheme", "https", ":path", "/", "host", "a.example", "content-length", "3", "te", "trailers"},
		{":method", "OPTIONS", ":scheme", "http", ":authority", "[::1]:443", ":path", "*", "connection", "close"},
	} {
		s.Begin(0)
		for i := 0; i < len(fields); i += 2 {
			s.Put(fields[i], fields[i+1])
		}
		b := s.AppendFrame(nil)
		_, _, n := FrameHead(b)
		f.Add(b[n:])
		for range 20 {
			c := bytes.Clone(b[n:])
			c[rand.IntN(len(c))] ^= byte(1 << rand.IntN(8))
			f.Add(c)
		}
	}
	f.Fuzz(func(t *testing.T, block []byte) {
		var r http1.Request
		if ParseRequest(&r, nil, block) != nil || r.Built(true) != nil {
			return
		}
		head := append(append([]byte{}, r.Method()...), ' ')
		head = append(append(head, r.Target()...), " HTTP/1.1\r\n"...)
		head = http1.AppendLine(head, "Host", r.Authority())
		head = append(r.AppendFields(head), "\r\n"...)
		var again http1.Request
		n, err := again.Parse(head)
		if err != nil && string(r.Method()) != "CONNECT" || err == nil && n != len(head) {
			t.Fatalf("%q: %d %v", head, n, err)
		}
	})
}
