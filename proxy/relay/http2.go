package relay

import (
	"bytes"
	"strconv"
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/http2"
	"github.com/cellgate/cellgate/proxy/websocket"
)

// AppendBlock appends the fields of an HTTP/2 answer as a header block, without the status. length is the body's, -1 when it
// is not known ahead.
func AppendBlock(dst []byte, x *proxy.Exchange, length int64) []byte {
	x.EachField(func(name, value string) { dst = http2.AppendField(dst, name, value) })
	if length >= 0 && x.Status != 204 {
		var digits [20]byte
		dst = http2.AppendField(dst, "content-length", strconv.AppendInt(digits[:0], length, 10))
	}
	return dst
}

// AppendFields does so for trailers, or what an interim answer has for the client. h may be nil. Nothing means that nothing
// passes.
func AppendFields(dst []byte, h *http1.Head) []byte {
	if h == nil {
		return dst
	}
	for i := range h.Fields() {
		if f := &h.Fields()[i]; !f.Drop {
			dst = http2.AppendField(dst, h.Name(f), h.Value(f))
		}
	}
	return dst
}

// AppendRequest appends the header block that an upstream over HTTP/2 gets: what Exchange.AppendRequest is over HTTP/1.
// length is the body's, -1 when it is not known ahead.
func AppendRequest(dst []byte, x *proxy.Exchange, length int64, now time.Time) []byte {
	r := &x.Request
	if x.Tunnel { // RFC 8441, section 4
		dst = http2.AppendField(dst, ":method", "CONNECT")
		dst = http2.AppendField(dst, ":protocol", websocket.Protocol)
	} else {
		dst = http2.AppendField(dst, ":method", r.Method())
	}
	dst = http2.AppendField(dst, ":scheme", x.Pool.Scheme())
	dst = http2.AppendField(dst, ":authority", r.Authority())
	var room [1 << 10]byte
	dst = http2.AppendField(dst, ":path", x.AppendTarget(room[:0]))
	x.EachRequestField(func(name, value string) {
		if !x.Tunnel || websocket.Travels(name) {
			dst = http2.AppendField(dst, name, value)
		}
	})
	for own := x.AppendOwn(room[:0], now); len(own) > 0; {
		var line []byte
		line, own, _ = bytes.Cut(own, crlf)
		name, value, _ := bytes.Cut(line, colon)
		dst = http2.AppendField(dst, name, value)
	}
	if r.WantsTrailers() && !x.Tunnel {
		dst = http2.AppendField(dst, "te", "trailers")
	}
	if length > 0 || length == 0 && http1.HasBodyByNature(string(r.Method())) {
		dst = http2.AppendField(dst, "content-length", strconv.AppendInt(room[:0], length, 10))
	}
	return dst
}

var crlf, colon = []byte("\r\n"), []byte(": ")
