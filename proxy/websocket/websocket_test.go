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
		if got := new(Handshake).Offered(request(t, c.head)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestOnlyAProofMadeForTheKeyIsAccepted(t *testing.T) {
	var h Handshake
	if !h.Offered(request(t, offer)) || string(h.AppendOffer(nil)) != Switch {
		t.Fatalf("%q", h.AppendOffer(nil))
	}
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
		if got := h.Accepted(&res); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// extended is a request of HTTP/2 with these fields.
func extended(protocol string, fields ...string) *http1.Request {
	r := new(http1.Request)
	r.Build(nil)
	r.PutMethod([]byte("CONNECT"))
	_ = r.PutProtocol([]byte(protocol))
	_ = r.PutTarget([]byte("/chat"))
	r.PutAuthority([]byte("server.example.com"))
	for i := 0; i < len(fields); i += 2 {
		_, _ = r.Put([]byte(fields[i]), []byte(fields[i+1]))
	}
	if err := r.Built(true); err != nil {
		panic(err)
	}
	return r
}

// CASES G1: a stream of HTTP/2 has no key. The upstream gets one of ours, and no other.
func TestAnExtendedConnectBecomesAHandshakeWithAKeyOfItsOwn(t *testing.T) {
	for name, c := range map[string]struct {
		r    *http1.Request
		want bool
	}{
		"of the RFC":           {extended("websocket", "sec-websocket-version", "13", "sec-websocket-protocol", "chat"), true},
		"case":                 {extended("WebSocket", "sec-websocket-version", "13"), true},
		"with a key":           {extended("websocket", "sec-websocket-version", "13", "sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="), true},
		"with odd keys":        {extended("websocket", "sec-websocket-version", "13", "sec-websocket-key", "x", "sec-websocket-key", "y"), true},
		"another protocol":     {extended("connect-udp", "sec-websocket-version", "13"), false},
		"no version":           {extended("websocket"), false},
		"version 8":            {extended("websocket", "sec-websocket-version", "8"), false},
		"two versions":         {extended("websocket", "sec-websocket-version", "13", "sec-websocket-version", "13"), false},
		"a length":             {extended("websocket", "sec-websocket-version", "13", "content-length", "3"), false},
		"the length of no one": {extended("websocket", "sec-websocket-version", "13", "content-length", "0"), false},
		"an expectation":       {extended("websocket", "sec-websocket-version", "13", "expect", "100-continue"), false},
	} {
		var h, other Handshake
		if got := h.Extended(c.r, [2]uint64{1, 2}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if !c.want {
			continue
		}
		if string(c.r.Method()) != "GET" || c.r.HasBody() || string(c.r.Target()) != "/chat" {
			t.Errorf("%s: %s %s", name, c.r.Method(), c.r.Target())
		}
		if sent := strings.ToLower(string(h.AppendOffer(c.r.AppendFields(nil)))); strings.Count(sent, "sec-websocket-key") != 1 || !strings.Contains(sent, "upgrade: websocket") {
			t.Errorf("%s: %q", name, sent)
		}
		key := string(h.AppendOffer(nil))
		key = strings.TrimSpace(key[strings.Index(key, "Key: ")+5:])
		proof := accept([]byte(key))
		answer := strings.Replace(confirmed, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", string(proof[:]), 1)
		var res http1.Response
		if _, err := res.Parse([]byte(answer)); err != nil || !h.Accepted(&res) {
			t.Errorf("%s: %v", name, err)
		}
		if status, fields := h.Status(&res), string(res.AppendFields(nil)); status != 200 || fields != "" {
			t.Errorf("%s: %d %q", name, status, fields)
		}
		if other.Extended(extended("websocket", "sec-websocket-version", "13"), [2]uint64{1, 3}); other.key == h.key {
			t.Errorf("%s: two handshakes have one key", name)
		}
	}
}

// Over HTTP/2 every success agrees; over HTTP/1.1 only 101 does.
func TestOnlyClientsOfHTTP2TakeAnySuccessForAnAgreement(t *testing.T) {
	var h1, h2 Handshake
	h1.Offered(request(t, offer))
	h2.Extended(extended("websocket", "sec-websocket-version", "13"), [2]uint64{})
	for status, want := range map[int]bool{101: false, 199: false, 200: true, 204: true, 299: true, 300: false, 403: false} {
		res := http1.Response{Status: status}
		if h2.Mistakable(&res) != want || h1.Mistakable(&res) || h1.Status(&res) != status {
			t.Errorf("%d: %v %v", status, h2.Mistakable(&res), h1.Mistakable(&res))
		}
	}
}

// Whatever the head of an extended CONNECT is, what the upstream gets is one handshake with one key.
func FuzzExtended(f *testing.F) {
	f.Add("websocket", "sec-websocket-key", "x", "sec-websocket-version", "13", uint64(1))
	f.Fuzz(func(t *testing.T, protocol, n1, v1, n2, v2 string, random uint64) {
		r := new(http1.Request)
		r.Build(nil)
		r.PutMethod([]byte("CONNECT"))
		if r.PutProtocol([]byte(protocol)) != nil {
			return
		}
		_ = r.PutTarget([]byte("/"))
		r.PutAuthority([]byte("a.example"))
		for _, f := range [][2]string{{n1, v1}, {n2, v2}, {"sec-websocket-version", "13"}} {
			if _, err := r.Put([]byte(f[0]), []byte(f[1])); err != nil {
				return
			}
		}
		var h Handshake
		if r.Built(true) != nil || !h.Extended(r, [2]uint64{random}) {
			return
		}
		head := append([]byte("GET / HTTP/1.1\r\nHost: a.example\r\n"), h.AppendOffer(r.AppendFields(nil))...)
		sent := request(t, string(append(head, "\r\n"...)))
		var h1 Handshake
		if !h1.Offered(sent) || h1.key != h.key {
			t.Fatalf("%q", head)
		}
	})
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

// An upstream over HTTP/2 gets no key and gives no proof (RFC 8441, section 5): the one for a client over HTTP/1.1 is ours.
func TestAnUpstreamOverHTTP2ProvesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		stream bool
		answer string
		opens  bool
		status int
	}{
		"200 for a connection":      {false, "200 OK", true, 101},
		"204 for a stream":          {true, "204 No Content", true, 200},
		"a refusal of a connection": {false, "403 Forbidden", false, 403},
		"a refusal of a stream":     {true, "302 Found", false, 302},
	} {
		h := Handshake{stream: c.stream}
		if !c.stream && !h.Offered(request(t, offer)) {
			t.Fatal(name)
		}
		res := new(http1.Response)
		if _, err := res.Parse([]byte("HTTP/1.1 " + c.answer + "\r\nSec-WebSocket-Accept: x\r\nX: y\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		if h.Opened(res) != c.opens || h.Status(res) != c.status {
			t.Errorf("%s: %d", name, h.Status(res))
		}
		left := string(res.AppendFields(nil))
		if proof := string(h.AppendAgreement(nil)); c.opens && (strings.Contains(left, "Accept") || !strings.HasPrefix(proof, Switch)) ||
			!c.stream && c.opens && !strings.HasSuffix(proof, "\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n") {
			t.Errorf("%s: %q %q", name, left, proof)
		}
	}
	if Travels("sec-webSocket-Key") || !Travels("Sec-WebSocket-Protocol") {
		t.Error("fields")
	}
}
