// Package websocket is what a gateway has to know of RFC 6455: whether a handshake is one, on either side, and where frames
// end, so that a close frame can be put between two of them. It passes no bytes on itself.
//
//	if websocket.Offered(&req) { … }           // what a client asks for
//	if websocket.Accepted(&res, &req) { … }    // what its server answered
//	for len(p) > 0 { p = p[frames.Next(p):] }  // frames.Between() says whether a frame may be put in after p
package websocket

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // RFC 6455 asks for it; nothing rests on it
	"encoding/base64"

	"github.com/cellgate/cellgate/proxy/http1"
)

// Protocol is the token of RFC 9110, section 7.8.
const Protocol = "websocket"

// Switch are the fields that ask for the change of protocol, and confirm it. The parser has dropped those that came.
const Switch = "Connection: Upgrade\r\nUpgrade: " + Protocol + "\r\n"

// Offered says whether a request is a client's opening handshake, whole and without anything that could make its upstream
// see another message: a GET of HTTP/1.1 without a body that offers this protocol alone, in version 13, with one key
// of 16 bytes (RFC 6455, section 4.1). What Connection names away doesn't count as there.
func Offered(r *http1.Request) bool {
	if r.Minor != 1 || string(r.Method()) != "GET" || r.HasBody() || r.Expect || !protocol(&r.Head) {
		return false
	}
	version, ok := only(&r.Head, "sec-websocket-version")
	if !ok || string(version) != "13" {
		return false
	}
	key, ok := only(&r.Head, "sec-websocket-key")
	if !ok || len(key) != 24 {
		return false
	}
	var raw [18]byte
	n, err := base64.StdEncoding.Strict().Decode(raw[:], key)
	return err == nil && n == 16
}

// Accepted says whether a response confirms the handshake of r (RFC 6455, section 4.2.2): 101, this protocol, and the proof
// that it was made for this key.
func Accepted(res *http1.Response, r *http1.Request) bool {
	if res.Status != 101 || res.Minor != 1 || res.Chunked || res.Length > 0 || !protocol(&res.Head) {
		return false
	}
	key, _ := only(&r.Head, "sec-websocket-key")
	proof, ok := only(&res.Head, "sec-websocket-accept")
	want := accept(key)
	return ok && bytes.Equal(proof, want[:])
}

// accept is Sec-WebSocket-Accept for a key.
func accept(key []byte) (out [28]byte) {
	h := sha1.New()
	h.Write(key)
	h.Write([]byte("258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	var sum [sha1.Size]byte
	base64.StdEncoding.Encode(out[:], h.Sum(sum[:0]))
	return out
}

// protocol says whether the head's Connection and its only Upgrade field name this protocol and no other.
func protocol(h *http1.Head) bool {
	v, n := h.Only(http1.Upgrade)
	return n == 1 && h.Upgrades() && bytes.EqualFold(v, []byte(Protocol))
}

// only gives the value of a field that occurs once and is passed on.
func only(h *http1.Head, name string) (v []byte, ok bool) {
	n := 0
	for i := range h.Fields() {
		if f := &h.Fields()[i]; bytes.EqualFold(h.Name(f), []byte(name)) {
			if n++; f.Drop {
				return nil, false
			}
			v = h.Value(f)
		}
	}
	return v, n == 1
}
