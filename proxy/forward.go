package proxy

import (
	"strconv"
	"time"

	"github.com/cellgate/cellgate/proxy/deadline"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/reason"
)

// AppendRequest appends the head that the upstream gets: the client's fields without hop-by-hop, framing, forwarding and
// identity ones, then ours. Dropping comes first, so no name that the client puts into Connection can take ours away.
// length is the body's, -1 for chunks, and 0 sends no length for methods that have no body by nature.
func (x *Exchange) AppendRequest(dst []byte, length int64, now time.Time) []byte {
	r := &x.Request
	dst = append(append(dst, r.Method()...), ' ')
	dst = append(x.AppendTarget(dst), " HTTP/1.1\r\n"...)
	dst = http1.AppendLine(dst, "Host", r.Authority())
	dst = x.AppendOwn(x.rules().RequestEdits().AppendFields(dst, &r.Head), now)
	switch {
	case x.Tunnel:
		dst = x.WebSocket.AppendOffer(dst)
	case r.WantsTrailers(): // of TE only that passes, which gRPC insists on
		dst = append(dst, "TE: trailers\r\nConnection: TE\r\n"...)
	}
	switch {
	case length < 0:
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
	case length > 0 || http1.HasBodyByNature(text(r.Method())):
		dst = append(dst, "Content-Length: "...)
		dst = strconv.AppendInt(dst, length, 10)
		dst = append(dst, "\r\n"...)
	}
	return append(dst, "\r\n"...)
}

// AppendTarget appends path and query as the upstream gets them.
func (x *Exchange) AppendTarget(dst []byte) []byte {
	if len(x.rewritten) > 0 {
		dst = append(dst, x.rewritten...)
	} else {
		dst = append(dst, x.path...)
	}
	if x.query != "" {
		dst = append(append(dst, '?'), x.query...)
	}
	return dst
}

// AppendOwn appends the fields that the gateway adds to a request, as lines.
func (x *Exchange) AppendOwn(dst []byte, now time.Time) []byte {
	dst = x.appendForwarding(dst)
	dst = http1.AppendLine(dst, "X-Request-Id", x.ID())
	dst = x.Trace.Attempt(x.Trail.Begun()).AppendLines(dst, x.Outside, &x.Request.Head)
	if x.identity.Known() && x.Pool.Tells() {
		dst = x.identity.AppendFields(dst)
	}
	if to := x.Pool.Vouched(); to != nil && x.identity.Known() && x.server.opts.Voucher != nil {
		dst = x.server.opts.Voucher.Vouch(dst, x.table.program.IdentityKeys, to, x.match.Tenant, x.identity, now)
	}
	left := max(1, x.UpstreamDeadline(now).Sub(now).Milliseconds())
	dst = append(dst, "X-Request-Timeout-Ms: "...)
	dst = append(strconv.AppendInt(dst, left, 10), "\r\n"...)
	if x.grpcTimeout {
		dst = append(dst, "Grpc-Timeout: "...)
		dst = append(strconv.AppendInt(dst, left, 10), "m\r\n"...)
	}
	return dst
}

func (x *Exchange) appendForwarding(dst []byte) []byte {
	dst = http1.AppendLine(dst, "X-Forwarded-For", x.from.Text)
	if x.from.HTTPS {
		dst = append(dst, "X-Forwarded-Proto: https\r\n"...)
	} else {
		dst = append(dst, "X-Forwarded-Proto: http\r\n"...)
	}
	return http1.AppendLine(dst, "X-Forwarded-Host", x.Request.Authority())
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

// UpstreamDeadline is when attempts must have ended (I5).
func (x *Exchange) UpstreamDeadline(now time.Time) time.Time {
	return deadline.Reserve(x.Start, x.Deadline, now)
}
