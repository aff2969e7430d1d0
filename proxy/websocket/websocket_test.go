package websocket

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cellgate/cellgate/proxy/http1"
)

// The handshake of RFC 6455, section 1.3.
const (
	offer = "GET /chat HTTP/1.1\r\nHost: server.example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
	confirmed = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)

func request(t testing.TB, head string) *http1.Request {
	t.Helper()
	r := new(http1.Request)
	if n, err := r.Parse([]byte(head)); err != nil || n != len(head) {
		t.Fatalf("%q: %d %v", head, n, err)
	}
	return r
}

func TestOnlyAWholeHandshakeIsAnOffer(t *testing.T) {
	with := func(old, new string) string { return strings.Replace(offer, old, new, 1) }
	for name, c := range map[string]struct {
		head string
		want bool
	}{
		"of the RFC":               {offer, true},
		"case":                     {with("Upgrade: websocket", "upgrade: WebSocket"), true},
		"among other options":      {with("Connection: Upgrade", "Connection: keep-alive, Upgrade"), true},
		"length 0":                 {with("\r\n\r\n", "\r\nContent-Length: 0\r\n\r\n"), true},
		"a protocol and more":      {with("\r\n\r\n", "\r\nSec-WebSocket-Protocol: chat\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"), true},
		"POST":                     {with("GET", "POST"), false},
		"HTTP/1.0":                 {with("HTTP/1.1", "HTTP/1.0"), false},
		"no Connection":            {with("Connection: Upgrade\r\n", ""), false},
		"no Upgrade":               {with("Upgrade: websocket\r\n", ""), false},
		"another protocol":         {with("websocket", "chat"), false},
		"one of two protocols":     {with("websocket", "websocket, h2c"), false},
		"two Upgrade fields":       {with("Upgrade: websocket", "Upgrade: h2c\r\nUpgrade: websocket"), false},
		"a body":                   {with("\r\n\r\n", "\r\nContent-Length: 3\r\n\r\n"), false},
		"a body in chunks":         {with("\r\n\r\n", "\r\nTransfer-Encoding: chunked\r\n\r\n"), false},
		"an expectation":           {with("\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n"), false},
		"no version":               {with("Sec-WebSocket-Version: 13\r\n", ""), false},
		"version 8":                {with(": 13", ": 8"), false},
		"two versions":             {with(": 13", ": 13\r\nSec-WebSocket-Version: 13"), false},
		"no key":                   {with("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""), false},
		"two keys":                 {with("Sec-WebSocket-Key", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Key"), false},
		"a short key":              {with("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZQ=="), false},
		"a key of 18 bytes":        {with("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25jZWFh"), false},
		"a key that isn't base64":  {with("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25jZ!=="), false},
		"a key with odd last bits": {with("ZQ==", "ZR=="), false},
		"a key that is named away": {with("Connection: Upgrade", "Connection: Upgrade, Sec-WebSocket-Key"), false},
	} {
		if got := Offered(request(t, c.head)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestOnlyAProofMadeForTheKeyIsAccepted(t *testing.T) {
	r := request(t, offer)
	with := func(old, new string) string { return strings.Replace(confirmed, old, new, 1) }
	for name, c := range map[string]struct {
		head string
		want bool
	}{
		"of the RFC":            {confirmed, true},
		"with a protocol":       {with("\r\n\r\n", "\r\nSec-WebSocket-Protocol: chat\r\n\r\n"), true},
		"another key's":         {with("s3pPLM", "s3pPLN"), false},
		"none":                  {with("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n", ""), false},
		"twice":                 {with("Sec-WebSocket-Accept", "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Accept"), false},
		"named away":            {with("Connection: Upgrade", "Connection: Upgrade, Sec-WebSocket-Accept"), false},
		"200":                   {with("101 Switching Protocols", "200 OK"), false},
		"another protocol":      {with("websocket", "h2c"), false},
		"no protocol":           {with("Upgrade: websocket\r\n", ""), false},
		"no Connection":         {with("Connection: Upgrade\r\n", ""), false},
		"HTTP/1.0":              {with("HTTP/1.1", "HTTP/1.0"), false},
		"with a body":           {with("\r\n\r\n", "\r\nContent-Length: 5\r\n\r\n"), false},
		"with a body in chunks": {with("\r\n\r\n", "\r\nTransfer-Encoding: chunked\r\n\r\n"), false},
	} {
		var res http1.Response
		if n, err := res.Parse([]byte(c.head)); err != nil || n != len(c.head) {
			t.Fatalf("%s: %v", name, err)
		}
		if got := Accepted(&res, r); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// frame makes one frame; key makes it a client's.
func frame(opcode byte, size int, masked bool) []byte {
	b := []byte{opcode, 0}
	switch {
	case size > 0xffff:
		b[1] = 127
		b = binary.BigEndian.AppendUint64(b, uint64(size))
	case size > 125:
		b[1] = 126
		b = binary.BigEndian.AppendUint16(b, uint16(size))
	default:
		b[1] = byte(size)
	}
	if masked {
		b[1] |= 0x80
		b = append(b, 1, 2, 3, 4)
	}
	return append(b, bytes.Repeat([]byte{0x88}, size)...)
}

func TestFramesEndWhereTheyEndHoweverTheyArrive(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	sizes := []int{0, 1, 125, 126, 127, 300, 0xffff, 0x10000, 0x10001}
	for range 200 {
		var stream []byte
		var ends []int
		for range 1 + r.IntN(6) {
			stream = append(stream, frame(byte(r.IntN(3)), sizes[r.IntN(len(sizes))], r.IntN(2) == 0)...)
			ends = append(ends, len(stream))
		}
		var f Frames
		var found []int
		for at := 0; at < len(stream); {
			most := 1 + r.IntN(1+r.IntN(1+r.IntN(70000)))
			n := f.Next(stream[at:min(at+most, len(stream))])
			if n == 0 {
				t.Fatal("no progress")
			}
			if at += n; f.Between() {
				found = append(found, at)
			}
		}
		if len(found) != len(ends) {
			t.Fatalf("frames end at %v, found %v", ends, found)
		}
		for i := range ends {
			if ends[i] != found[i] {
				t.Fatalf("frames end at %v, found %v", ends, found)
			}
		}
		if f.Closed() {
			t.Fatal("payload was taken for a close frame")
		}
	}
}

func TestACloseFrameIsSeenAndMade(t *testing.T) {
	var f Frames
	c := Close(ServiceRestart)
	if n := f.Next(c[:1]); n != 1 || f.Closed() || f.Between() {
		t.Fatal(n, f)
	}
	if n := f.Next(c[1:]); n != 3 || !f.Closed() || !f.Between() || binary.BigEndian.Uint16(c[2:]) != 1012 {
		t.Fatal(n, f)
	}
}

// A length that no stream can have never ends, and never overflows.
func TestAHugeFrameNeverEnds(t *testing.T) {
	var f Frames
	b := append([]byte{2, 127}, bytes.Repeat([]byte{0xff}, 8)...)
	for range 3 {
		if b = append(b, 0); f.Next(b) != len(b) || f.Between() {
			t.Fatal(f)
		}
	}
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte{0x81, 1, 'a', 0x88, 2, 3, 0xe8}, uint8(3))
	f.Fuzz(func(t *testing.T, stream []byte, step uint8) {
		var whole, parts Frames
		for p := stream; len(p) > 0; {
			p = p[whole.Next(p):]
		}
		for p := stream; len(p) > 0; {
			n := parts.Next(p[:min(len(p), int(step)+1)])
			if n == 0 {
				t.Fatal("no progress")
			}
			p = p[n:]
		}
		if whole.Between() != parts.Between() || whole.Closed() != parts.Closed() || whole.left != parts.left {
			t.Fatalf("%+v whole, %+v in parts", whole, parts)
		}
	})
}
