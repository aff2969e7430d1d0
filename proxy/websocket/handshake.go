// Package websocket is what a gateway has to know of RFC 6455 and RFC 8441: whether a handshake is one, on either side, and
// where frames end, so that a close frame can be put between two of them. It passes no bytes on itself.
//
//	if h.Begun(&req, rand.Uint64) { dst = h.AppendOffer(dst) }   // what a client asks for
//	if h.Accepted(&res) { … }                                    // what its server answered
//	for len(p) > 0 { p = p[frames.Next(p):] }                    // frames.Between() says whether a frame may be put in after p
package websocket

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // RFC 6455 asks for it; nothing rests on it
	"encoding/base64"
	"encoding/binary"
	"strings"

	"github.com/cellgate/cellgate/proxy/http1"
)

// Protocol is the token of RFC 9110, section 7.8.
const Protocol = "websocket"

// Switch are the fields that ask for the change of protocol, and confirm it. The parser has dropped those that came.
const Switch = "Connection: Upgrade\r\nUpgrade: " + Protocol + "\r\n"

// keySize is that of 16 bytes in base64.
const keySize = 24

// Handshake is one that a client has begun, as its upstream gets it. The zero value is none.
type Handshake struct {
	key    [keySize]byte
	stream bool // the client's side is a stream of HTTP/2, which has no key: this one is ours
	proves bool // the upstream's side is one, and has opened: the proof is ours
}

// Begun says whether a request that asks for another protocol is a handshake, of either kind.
func (h *Handshake) Begun(r *http1.Request, random func() uint64) bool {
	if len(r.Protocol()) > 0 {
		return h.Extended(r, [2]uint64{random(), random()})
	}
	return h.Offered(r)
}

// Offered says whether a request is a client's opening handshake, whole and without anything that could make its upstream
// see another message: a GET of HTTP/1.1 without a body that offers this protocol alone, in version 13, with one key
// of 16 bytes (RFC 6455, section 4.1). What Connection names away doesn't count as there.
func (h *Handshake) Offered(r *http1.Request) bool {
	if r.Minor != 1 || string(r.Method()) != "GET" || r.HasBody() || r.Expect || !protocol(&r.Head) || !version13(&r.Head) {
		return false
	}
	key, ok := only(&r.Head, keyField)
	if !ok || copy(h.key[:], key) != keySize || len(key) != keySize {
		return false
	}
	var raw [18]byte
	n, err := base64.StdEncoding.Strict().Decode(raw[:], key)
	return err == nil && n == 16
}

// Extended says whether a request is the handshake of RFC 8441, section 5: an extended CONNECT for this protocol that
// announces no body. It makes it the GET that it stands for, with a key of these random bits in the place of any that the
// client has sent, which means nothing there (CASES G1).
func (h *Handshake) Extended(r *http1.Request, random [2]uint64) bool {
	_, lengths := r.Only(http1.ContentLength)
	if !bytes.EqualFold(r.Protocol(), []byte(Protocol)) || lengths > 0 || r.Expect || !version13(&r.Head) {
		return false
	}
	drop(&r.Head, keyField)
	r.PutMethod([]byte("GET"))
	r.Bodiless()
	var raw [16]byte
	binary.LittleEndian.PutUint64(raw[:], random[0])
	binary.LittleEndian.PutUint64(raw[8:], random[1])
	base64.StdEncoding.Encode(h.key[:], raw[:])
	h.stream = true
	return true
}

// OtherVersion says whether a request asks for a WebSocket in another version than 13, which its client is told then (RFC 6455,
// section 4.2.2).
func (*Handshake) OtherVersion(r *http1.Request) bool {
	_, some := r.Find("sec-websocket-version")
	return some && !version13(&r.Head) && (protocol(&r.Head) || bytes.EqualFold(r.Protocol(), []byte(Protocol)))
}

// AppendOffer appends the fields that ask the upstream for the change, besides those that the client has sent.
func (h *Handshake) AppendOffer(dst []byte) []byte {
	dst = append(dst, Switch...)
	if h.stream {
		dst = http1.AppendLine(dst, "Sec-WebSocket-Key", h.key[:])
	}
	return dst
}

// Accepted says whether a response confirms the handshake (RFC 6455, section 4.2.2): 101, this protocol, and the proof that
// it was made for this key.
func (h *Handshake) Accepted(res *http1.Response) bool {
	if res.Status != 101 || res.Minor != 1 || res.Chunked || res.Length > 0 || !protocol(&res.Head) {
		return false
	}
	proof, ok := only(&res.Head, proofField)
	want := accept(h.key[:])
	return ok && bytes.Equal(proof, want[:])
}

// Opened says whether a response confirms the handshake as it goes upstream over HTTP/2: every success does (RFC 8441,
// section 5), without a proof.
func (h *Handshake) Opened(res *http1.Response) bool {
	h.proves = res.Status >= 200 && res.Status < 300
	return h.proves
}

// Mistakable says whether the client would take an answer that doesn't change the protocol for one that does: over HTTP/2
// every success is (RFC 8441, section 4).
func (h *Handshake) Mistakable(res *http1.Response) bool {
	return h.stream && res.Status >= 200 && res.Status < 300
}

// Agreed says whether an answer that is passed on opens the tunnel.
func (h *Handshake) Agreed(res *http1.Response) bool { return h.proves || res.Status == 101 }

// Status is the client's for an answer that is passed on. The proof of a change is only for whoever has sent the key, and
// only of whoever has got it.
func (h *Handshake) Status(res *http1.Response) int {
	if !h.Agreed(res) {
		return res.Status
	}
	if h.stream || h.proves {
		drop(&res.Head, proofField)
	}
	if h.stream {
		return 200
	}
	return 101
}

// AppendAgreement appends the fields that confirm the change to a client over HTTP/1.1, besides those of the upstream.
func (h *Handshake) AppendAgreement(dst []byte) []byte {
	dst = append(dst, Switch...)
	if h.proves {
		proof := accept(h.key[:])
		dst = http1.AppendLine(dst, "Sec-WebSocket-Accept", proof[:])
	}
	return dst
}

// Travels says whether a field of the handshake goes to an upstream over HTTP/2, where the key means nothing.
func Travels(name string) bool { return !strings.EqualFold(name, keyField) }

const (
	keyField   = "sec-websocket-key"
	proofField = "sec-websocket-accept"
)

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

func version13(h *http1.Head) bool {
	v, ok := only(h, "sec-websocket-version")
	return ok && string(v) == "13"
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

func drop(h *http1.Head, name string) {
	for i := range h.Fields() {
		if f := &h.Fields()[i]; bytes.EqualFold(h.Name(f), []byte(name)) {
			f.Drop = true
		}
	}
}
