package http2

import "encoding/binary"

// The frame types of RFC 9113, section 6. Others are passed over.
const (
	frameData = iota
	frameHeaders
	framePriority
	frameReset
	frameSettings
	framePush
	framePing
	frameGoAway
	frameWindow
	frameContinuation
)

// Flags; their meaning depends on the type.
const (
	flagAck        = 0x1
	flagEndStream  = 0x1
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20
)

// The settings of RFC 9113, section 6.5.2, and RFC 8441.
const (
	settingTableSize = iota + 1
	settingPush
	settingStreams
	settingWindow
	settingFrameSize
	settingListSize
	_
	settingConnectProtocol
)

const (
	preface      = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	frameHead    = 9
	maxFrame     = 16 << 10 // payload that is taken, and given: the least that every peer takes
	maxWindow    = 1<<31 - 1
	firstWindow  = 1<<16 - 1 // of everything, before any setting
	maxStreamID  = 1<<31 - 1
	priorityData = 5
	settingLen   = 6
)

// Code is an error code of RFC 9113, section 7.
type Code uint32

// The codes.
const (
	NoError Code = iota
	ProtocolError
	InternalError
	FlowControlError
	SettingsTimeout
	StreamClosed
	FrameSizeError
	RefusedStream
	Cancel
	CompressionError
	ConnectError
	EnhanceYourCalm
	InadequateSecurity
	HTTP11Required
	codes
)

// Codes is how many codes there are.
const Codes = int(codes)

// String is the code's name in the RFC.
func (c Code) String() string {
	if c >= codes {
		return "UNKNOWN"
	}
	return [Codes]string{"NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED", "FRAME_SIZE_ERROR",
		"REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED"}[c]
}

// frame is the head of a frame.
type frame struct {
	length int
	kind   uint8
	flags  uint8
	stream uint32
}

func (f *frame) has(flag uint8) bool { return f.flags&flag != 0 }

// parseFrame reads the nine bytes of a frame's head; the reserved bit is ignored.
func parseFrame(b []byte) frame {
	_ = b[8]
	return frame{int(b[0])<<16 | int(b[1])<<8 | int(b[2]), b[3], b[4], binary.BigEndian.Uint32(b[5:]) & maxStreamID}
}

func appendFrame(dst []byte, length int, kind, flags uint8, stream uint32) []byte {
	return append(dst, byte(length>>16), byte(length>>8), byte(length), kind, flags, byte(stream>>24), byte(stream>>16), byte(stream>>8), byte(stream))
}

func appendReset(dst []byte, stream uint32, code Code) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(dst, 4, frameReset, 0, stream), uint32(code))
}

func appendWindow(dst []byte, stream uint32, n int) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(dst, 4, frameWindow, 0, stream), uint32(n))
}

func appendGoAway(dst []byte, last uint32, code Code) []byte {
	dst = binary.BigEndian.AppendUint32(appendFrame(dst, 8, frameGoAway, 0, 0), last)
	return binary.BigEndian.AppendUint32(dst, uint32(code))
}

func appendPing(dst []byte, flags uint8, data [8]byte) []byte {
	return append(appendFrame(dst, 8, framePing, flags, 0), data[:]...)
}

func appendSetting(dst []byte, id uint16, v uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(dst, id), v)
}
