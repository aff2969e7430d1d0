package proxy

import (
	"bytes"
	"strconv"
	"time"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/websocket"
	"github.com/cellgate/cellgate/reason"
)

// AppendRequest appends the head that the upstream gets: the client's fields without hop-by-hop, framing, forwarding and
// identity ones, then ours. Dropping comes first, so no name that the client puts into Connection can take ours away.
// length is the body's, -1 for chunks, and 0 sends no length for methods that have no body by nature.
func (x *Exchange) AppendRequest(dst []byte, length int64, now time.Time) []byte {
	r := &x.Request
	dst = append(dst, r.Method()...)
	dst = append(dst, ' ')
	dst = append(dst, x.path...)
	if x.query != "" {
		dst = append(dst, '?')
		dst = append(dst, x.query...)
	}
	dst = append(dst, " HTTP/1.1\r\n"...)
	dst = http1.AppendLine(dst, "Host", r.Authority())
	dst = r.AppendFields(dst)
	dst = x.appendForwarding(dst)
	dst = http1.AppendLine(dst, "X-Request-Id", x.ID())
	if x.Pool.Mutual() && x.identity != (Identity{}) {
		dst = http1.AppendLine(dst, "X-Caller", headerSafe(x.caller()))
	}
	left := max(1, x.UpstreamDeadline(now).Sub(now).Milliseconds())
	dst = append(dst, "X-Request-Timeout-Ms: "...)
	dst = append(strconv.AppendInt(dst, left, 10), "\r\n"...)
	if x.grpcTimeout {
		dst = append(dst, "Grpc-Timeout: "...)
		dst = append(strconv.AppendInt(dst, left, 10), "m\r\n"...)
	}
	switch {
	case x.Tunnel:
		dst = append(dst, websocket.Switch...)
	case x.wantsTrailers():
		dst = append(dst, "TE: trailers\r\nConnection: TE\r\n"...)
	}
	switch {
	case length < 0:
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
	case length > 0 || hasBodyByNature(text(r.Method())):
		dst = append(dst, "Content-Length: "...)
		dst = strconv.AppendInt(dst, length, 10)
		dst = append(dst, "\r\n"...)
	}
	return append(dst, "\r\n"...)
}

func (x *Exchange) appendForwarding(dst []byte) []byte {
	dst = http1.AppendLine(dst, "X-Forwarded-For", x.clientText)
	if x.https {
		dst = append(dst, "X-Forwarded-Proto: https\r\n"...)
	} else {
		dst = append(dst, "X-Forwarded-Proto: http\r\n"...)
	}
	return http1.AppendLine(dst, "X-Forwarded-Host", x.Request.Authority())
}

// Switched says whether the answer takes the connection out of HTTP, as the client has asked.
func (x *Exchange) Switched(res *http1.Response) bool {
	return x.Tunnel && websocket.Accepted(res, &x.Request)
}

// wantsTrailers: of TE only "trailers" passes, which gRPC insists on.
func (x *Exchange) wantsTrailers() bool {
	v, n := x.Request.Only(http1.TE)
	return n == 1 && bytes.EqualFold(v, []byte("trailers"))
}

// hasBodyByNature: these methods get an explicit Content-Length: 0 (RFC 9110, section 8.6).
func hasBodyByNature(method string) bool {
	return method == "POST" || method == "PUT" || method == "PATCH"
}

// headerSafe keeps an identity that could break a field line out of it.
func headerSafe(id string) string {
	for i := range len(id) {
		if id[i] < 0x20 || id[i] > 0x7e {
			return "-"
		}
	}
	return id
}

// Hurried says whether the client gives less time than the route does.
func (x *Exchange) Hurried() bool {
	return x.asked > 0 && x.match.Route != nil && x.asked < x.match.Route.Timeout
}

// Expired is the reason when no time is left to ask the upstream in: the client's own deadline or the route's (I5).
func (x *Exchange) Expired() reason.Reason {
	if x.Hurried() {
		return reason.DeadlineExpired
	}
	return reason.TotalTimeout
}

// UpstreamDeadline is when attempts must have ended: the deadline less a reserve of 5%, at least 10 ms, to answer in (I5).
func (x *Exchange) UpstreamDeadline(now time.Time) time.Time {
	reserve := max(x.Deadline.Sub(x.Start)/20, 10*time.Millisecond)
	if at := x.Deadline.Add(-reserve); at.After(now) {
		return at
	}
	return now
}
