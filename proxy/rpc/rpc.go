// Package rpc knows of gRPC and gRPC-Web what an intermediary needs that speaks for itself now and then: who speaks them, how
// a status is said to either, and where one message ends and the next begins.
//
//	kind := rpc.Of(contentType)
//	m.Feed(piece)                     // every piece of an answer in gRPC-Web
//	if m.Between() { b = rpc.AppendStatus(b, 4, "The request took longer than its route allows") }
//
// Sources: PROTOCOL-HTTP2.md and PROTOCOL-WEB.md of the gRPC project.
package rpc

import (
	"encoding/binary"
	"strconv"
)

// Kind is how a caller frames and ends its messages.
type Kind uint8

const (
	None    Kind = iota
	GRPC         // a status in trailers
	Web          // a status in a last frame of the body
	WebText      // the same in base64
)

// maxType bounds what is taken from a caller's content-type.
const maxType = 64

// Of reads a content-type.
func Of(contentType []byte) Kind {
	const name = "application/grpc"
	if len(contentType) < len(name) || !fold(contentType[:len(name)], name) {
		return None
	}
	rest := contentType[len(name):]
	switch {
	case ends(rest):
		return GRPC
	case len(rest) >= 9 && fold(rest[:9], "-web-text") && ends(rest[9:]):
		return WebText
	case len(rest) >= 4 && fold(rest[:4], "-web") && ends(rest[4:]):
		return Web
	}
	return None
}

// ends says whether a name of a type has ended: at the format of its messages, or at parameters.
func ends(rest []byte) bool {
	return len(rest) == 0 || rest[0] == '+' || rest[0] == ';' || rest[0] == ' '
}

// Type is the content-type of an answer to a caller of this one: the same, without parameters. Clients take an answer in
// another format than their own for no gRPC.
func Type(contentType []byte) []byte {
	for i, c := range contentType {
		if c == ';' || c == ' ' || c == '\t' {
			contentType = contentType[:i]
			break
		}
	}
	if len(contentType) > maxType {
		return []byte("application/grpc")
	}
	return contentType
}

// Messages follows a body of frames, each a byte of flags and four of length ahead of a message, over pieces cut anywhere.
// The zero value stands at its beginning.
type Messages struct {
	head [5]byte
	have uint8  // of head
	left uint32 // of the message
}

// Feed takes the next piece.
func (m *Messages) Feed(p []byte) {
	for len(p) > 0 {
		if m.left > 0 {
			n := min(uint64(m.left), uint64(len(p)))
			m.left -= uint32(n)
			p = p[n:]
			continue
		}
		n := copy(m.head[m.have:], p)
		m.have += uint8(n)
		if p = p[n:]; m.have == uint8(len(m.head)) {
			m.have, m.left = 0, binary.BigEndian.Uint32(m.head[1:])
		}
	}
}

// Between says whether the last frame is whole.
func (m *Messages) Between() bool { return m.have == 0 && m.left == 0 }

// AppendStatus appends the frame that ends an answer in gRPC-Web. The message is printable ASCII without '%', which is its own
// percent-encoding.
func AppendStatus(dst []byte, code uint8, message string) []byte {
	at := len(dst)
	dst = append(dst, 0x80, 0, 0, 0, 0)
	dst = append(dst, "grpc-status: "...)
	dst = strconv.AppendUint(dst, uint64(code), 10)
	dst = append(dst, "\r\ngrpc-message: "...)
	dst = append(dst, message...)
	dst = append(dst, "\r\n"...)
	binary.BigEndian.PutUint32(dst[at+1:], uint32(len(dst)-at-5))
	return dst
}

// fold compares with an all lower-case name.
func fold(b []byte, s string) bool {
	for i := range b {
		c := b[i]
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != s[i] {
			return false
		}
	}
	return true
}
