// Package http3 is a strict codec of HTTP/3 (RFC 9114, RFC 9204) without I/O: frames, the client's control and QPACK
// streams, and field sections to and from the heads of proxy/http1. No dynamic table is offered, so a section stands for
// itself and nothing is kept per connection.
//
//	typ, length, n := http3.FrameHead(b)                    // n == 0: more bytes are needed
//	err := http3.ParseRequest(&req, scratch, block)         // then req.Built(body)
//	section.Begin(200); section.Put("Server", "x"); b = section.AppendFrame(b)
package http3

import "fmt"

// Code is an error code of HTTP/3 (RFC 9114, section 8.1) or QPACK (RFC 9204, section 6). As an error of this package
// it ends the connection.
type Code uint64

// The codes.
const (
	NoError              Code = 0x100
	GeneralProtocolError Code = 0x101
	InternalError        Code = 0x102
	StreamCreationError  Code = 0x103
	ClosedCriticalStream Code = 0x104
	FrameUnexpected      Code = 0x105
	FrameError           Code = 0x106
	ExcessiveLoad        Code = 0x107
	IDError              Code = 0x108
	SettingsError        Code = 0x109
	MissingSettings      Code = 0x10a
	RequestRejected      Code = 0x10b
	RequestCancelled     Code = 0x10c
	RequestIncomplete    Code = 0x10d
	MessageError         Code = 0x10e
	DecompressionFailed  Code = 0x200
	EncoderStreamError   Code = 0x201
	DecoderStreamError   Code = 0x202
)

func (c Code) Error() string { return fmt.Sprintf("http3: error code %#x", uint64(c)) }

// Codes is how many codes there are.
const Codes = len(names)

var names = [...]string{"H3_NO_ERROR", "H3_GENERAL_PROTOCOL_ERROR", "H3_INTERNAL_ERROR", "H3_STREAM_CREATION_ERROR", "H3_CLOSED_CRITICAL_STREAM",
	"H3_FRAME_UNEXPECTED", "H3_FRAME_ERROR", "H3_EXCESSIVE_LOAD", "H3_ID_ERROR", "H3_SETTINGS_ERROR", "H3_MISSING_SETTINGS", "H3_REQUEST_REJECTED",
	"H3_REQUEST_CANCELLED", "H3_REQUEST_INCOMPLETE", "H3_MESSAGE_ERROR", "QPACK_DECOMPRESSION_FAILED", "QPACK_ENCODER_STREAM_ERROR", "QPACK_DECODER_STREAM_ERROR"}

// Place is the code's among all of them, from 0 on. It must be one of this package's.
func (c Code) Place() int {
	if c >= DecompressionFailed {
		return int(c-DecompressionFailed) + int(MessageError-NoError) + 1
	}
	return int(c - NoError)
}

// Name is the RFC's for the code at a place.
func Name(place int) string { return names[place] }

// The frame types that are known here (RFC 9114, section 7.2).
const (
	FrameData        = 0x00
	FrameHeaders     = 0x01
	frameCancelPush  = 0x03
	frameSettings    = 0x04
	framePushPromise = 0x05
	frameGoAway      = 0x07
	frameMaxPushID   = 0x0d
)

// The types of unidirectional streams (RFC 9114, section 6.2, and RFC 9204, section 4.2).
const (
	StreamControl = 0x00
	StreamPush    = 0x01
	StreamEncoder = 0x02
	StreamDecoder = 0x03
)

// maxVarint is the most bytes of an integer (RFC 9000, section 16).
const maxVarint = 8

// MaxFrameHead bounds the length of a frame's head.
const MaxFrameHead = 2 * maxVarint

// MaxStreamID is above every stream id that a client can use: GOAWAY with it refuses nothing yet (section 5.2).
const MaxStreamID = 1<<62 - 4

// Varint reads an integer at the start of b. n is its length, 0 when b ends before it does.
func Varint(b []byte) (v uint64, n int) {
	if len(b) == 0 {
		return 0, 0
	}
	n = 1 << (b[0] >> 6)
	if len(b) < n {
		return 0, 0
	}
	v = uint64(b[0] & 0x3f)
	for _, c := range b[1:n] {
		v = v<<8 | uint64(c)
	}
	return v, n
}

// VarintLen is how long the integer is that begins with this byte.
func VarintLen(first byte) int { return 1 << (first >> 6) }

// AppendVarint appends an integer below 2^62.
func AppendVarint(dst []byte, v uint64) []byte {
	switch {
	case v < 1<<6:
		return append(dst, byte(v))
	case v < 1<<14:
		return append(dst, 0x40|byte(v>>8), byte(v))
	case v < 1<<30:
		return append(dst, 0x80|byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
	}
	return append(dst, 0xc0|byte(v>>56), byte(v>>48), byte(v>>40), byte(v>>32), byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
}

// FrameHead reads the head of a frame at the start of b. n is its length, 0 when b ends before it does.
func FrameHead(b []byte) (typ, length uint64, n int) {
	typ, t := Varint(b)
	if t == 0 {
		return 0, 0, 0
	}
	length, l := Varint(b[t:])
	if l == 0 {
		return 0, 0, 0
	}
	return typ, length, t + l
}

// AppendFrameHead appends the head of a frame.
func AppendFrameHead(dst []byte, typ, length uint64) []byte {
	return AppendVarint(AppendVarint(dst, typ), length)
}

// AppendControl appends what our control stream begins with: its type and our settings. The limit of a field section is
// that of heads, in the measure of RFC 9114, section 4.2.2; tables of QPACK are not offered.
func AppendControl(dst []byte) []byte {
	setting := AppendVarint(AppendVarint(nil, settingSectionSize), maxSection)
	dst = AppendVarint(dst, StreamControl)
	return append(AppendFrameHead(dst, frameSettings, uint64(len(setting))), setting...)
}

// AppendGoAway appends the frame that asks the client to open no request stream with this id or a higher one.
func AppendGoAway(dst []byte, id uint64) []byte {
	v := AppendVarint(nil, id)
	return append(AppendFrameHead(dst, frameGoAway, uint64(len(v))), v...)
}

// OnRequests says whether a frame of this type has a place on a request stream, beside DATA and HEADERS. Those of types
// that nobody knows are passed over (section 9); the others end the connection.
func OnRequests(typ uint64) bool {
	return typ == FrameData || typ == FrameHeaders || !known(typ)
}

// known types are those of RFC 9114 and those of HTTP/2 that it forbids (section 7.2.8).
func known(typ uint64) bool {
	switch typ {
	case FrameData, FrameHeaders, frameCancelPush, frameSettings, framePushPromise, frameGoAway, frameMaxPushID, 0x02, 0x06, 0x08, 0x09:
		return true
	}
	return false
}
