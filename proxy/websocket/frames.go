package websocket

import "encoding/binary"

// The status codes of close frames that a gateway gives (RFC 6455, section 7.4.1; the IANA registry for the last).
const (
	GoingAway       = 1001 // nothing was said for too long
	PolicyViolation = 1008 // the caller may not be here any more
	ServiceRestart  = 1012 // come back, at a moment of your own: this end is about to go
)

// Frames follows the frames of one direction of a stream (RFC 6455, section 5.2). The zero value stands at its beginning.
// It judges nothing: bytes that are no frames only have their ends elsewhere.
type Frames struct {
	head  [14]byte
	have  int    // bytes of head
	left  uint64 // payload that is still to come
	close bool   // a close frame has begun
}

// Between says whether the stream stands between two frames.
func (f *Frames) Between() bool { return f.have == 0 && f.left == 0 }

// Closed says whether a close frame has been sent: no other may follow it.
func (f *Frames) Closed() bool { return f.close }

// Next takes the next bytes up to the end of a frame, or all of them, and says how many these are.
func (f *Frames) Next(p []byte) (n int) {
	if f.left == 0 {
		for n < len(p) {
			f.head[f.have] = p[n]
			f.have++
			if n++; f.have == f.size() {
				f.begin()
				break
			}
		}
	}
	payload := min(f.left, uint64(len(p)-n))
	f.left -= payload
	return n + int(payload)
}

// size is how long the frame's head is, as far as it can be known.
func (f *Frames) size() int {
	if f.have < 2 {
		return 2
	}
	size := 2
	switch f.head[1] & 0x7f {
	case 126:
		size += 2
	case 127:
		size += 8
	}
	if f.head[1]&0x80 != 0 {
		size += 4
	}
	return size
}

// begin goes from the head to the payload.
func (f *Frames) begin() {
	f.close = f.close || f.head[0]&0x0f == 8
	switch f.left = uint64(f.head[1] & 0x7f); f.left {
	case 126:
		f.left = uint64(binary.BigEndian.Uint16(f.head[2:]))
	case 127:
		f.left = binary.BigEndian.Uint64(f.head[2:])
	}
	f.have = 0
}

// Close is a server's close frame with this status code and no words.
func Close(code uint16) [4]byte { return [4]byte{0x88, 2, byte(code >> 8), byte(code)} }
