package proxy

import (
	"strconv"
	"strings"
	"time"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/reason"
)

// identify tells the client the request id.
func identify(x *Exchange) { x.addString("X-Request-Id", x.ID()) }

// explain makes the problem document (RFC 9457) of an own answer, or its form for gRPC, and the fields that its status
// asks for.
func explain(x *Exchange) {
	if x.Reason == reason.None {
		return
	}
	x.addString("Date", x.server.date(x.Start))
	x.addString("X-Cellgate-Reason", x.Reason.String())
	switch {
	case x.Status == 405:
		x.addString("Allow", x.match.Allow)
	case x.Status == 401:
		x.addString("WWW-Authenticate", challenge(x.Reason))
	case x.Status == 403:
		x.addString("WWW-Authenticate", `Bearer error="insufficient_scope"`)
	case x.Status == 429:
		x.limited()
	case x.Status == 503 && retryable(x.Reason):
		x.addString("Retry-After", "1")
	}
	if x.grpc() {
		x.trailersOnly()
		return
	}
	x.addString("Content-Type", "application/problem+json")
	x.addString("Cache-Control", "no-store")
	x.problem()
}

// grpc says whether the caller speaks gRPC (E4). gRPC-Web is another protocol, whose clients read HTTP statuses.
func (x *Exchange) grpc() bool {
	v, _ := x.Request.Find("content-type")
	const name = "application/grpc"
	return len(v) >= len(name) && strings.EqualFold(text(v[:len(name)]), name) && (len(v) == len(name) || v[len(name)] == '+' || v[len(name)] == ';')
}

// trailersOnly is an own answer as gRPC wants it: HTTP 200, the status in a field, no body. A title is printable ASCII
// without '%', so it is its own percent-encoding.
func (x *Exchange) trailersOnly() {
	x.Status = 200
	x.addString("Content-Type", "application/grpc")
	at := len(x.text)
	x.text = strconv.AppendUint(x.text, uint64(x.Reason.GRPC()), 10)
	x.addSpan("Grpc-Status", span{at, len(x.text)})
	x.addString("Grpc-Message", x.Reason.Title())
}

// advertise says where HTTP/3 is served, but not to clients that are asked to leave.
func advertise(x *Exchange) {
	if x.AltSvc != "" && !x.server.Leaving() {
		x.addString("Alt-Svc", x.AltSvc)
	}
}

// challenge is the WWW-Authenticate of RFC 6750, section 3.
func challenge(why reason.Reason) string {
	switch why {
	case reason.TokenMissing:
		return "Bearer"
	case reason.KeyInvalid:
		return `Bearer error="invalid_token", error_description="The API key is not valid"`
	case reason.Denied:
		return `Bearer error="invalid_token", error_description="The credentials are revoked"`
	case reason.TokenExpired:
		return `Bearer error="invalid_token", error_description="The token has expired or is not valid yet"`
	}
	return `Bearer error="invalid_token"`
}

// retryable reasons pass soon by themselves.
func retryable(why reason.Reason) bool {
	switch why {
	case reason.PoolFull, reason.Overloaded, reason.Draining, reason.ForwardRefused, reason.NoEndpoint, reason.AuthUnavailable:
		return true
	}
	return false
}

// limited says when to come back (RFC 9110, section 10.2.3; draft-ietf-httpapi-ratelimit-headers).
func (x *Exchange) limited() {
	after := int64(max(1, (x.retryAfter+time.Second-1)/time.Second))
	at := len(x.text)
	x.text = strconv.AppendInt(x.text, after, 10)
	seconds := span{at, len(x.text)}
	x.addSpan("Retry-After", seconds)
	at = len(x.text)
	x.text = append(x.text, '"')
	x.text = append(x.text, x.Reason.String()...)
	x.text = append(x.text, `";r=0;t=`...)
	x.text = strconv.AppendInt(x.text, after, 10)
	x.addSpan("RateLimit", span{at, len(x.text)})
	x.addString("X-RateLimit-Remaining", "0")
}

// problem writes the document. Everything in it is ours, so nothing needs escaping.
func (x *Exchange) problem() {
	at := len(x.text)
	b := append(x.text, `{"type":"urn:cellgate:reason:`...)
	b = append(b, x.Reason.String()...)
	b = append(b, `","title":"`...)
	b = append(b, x.Reason.Title()...)
	b = append(b, `","status":`...)
	b = strconv.AppendInt(b, int64(x.Status), 10)
	b = append(b, `,"reason":"`...)
	b = append(b, x.Reason.String()...)
	b = append(b, `","request_id":"`...)
	b = append(b, x.ID()...)
	x.text = append(b, "\"}\n"...)
	x.body = span{at, len(x.text)}
}

// connection asks the client to come back on a new connection while the node drains. While it is only being left, the
// engine asks one connection after the other.
func connection(x *Exchange) { x.Closing = x.Closing || x.server.Draining() }

// Draining says whether the node is shutting down.
func (x *Exchange) Draining() bool { return x.server.Draining() }

// own makes an answer of the gateway that is no problem.
func (x *Exchange) own(status int, contentType, body string) {
	x.Reason, x.Status, x.Upstream = reason.None, status, nil
	x.runAnswer()
	x.addString("Date", x.server.date(x.Start))
	x.addString("Content-Type", contentType)
	at := len(x.text)
	x.text = append(x.text, body...)
	x.body = span{at, len(x.text)}
}

// Body is the body of an own answer.
func (x *Exchange) Body() []byte { return x.text[x.body.start:x.body.end] }

// AppendFields appends the answer's fields, without those that frame the message, which are the engine's.
func (x *Exchange) AppendFields(dst []byte) []byte {
	if x.Upstream != nil {
		dst = x.Upstream.AppendFields(dst)
	}
	for _, e := range x.extra[:x.extras] {
		dst = http1.AppendLine(dst, e.name, x.text[e.value.start:e.value.end])
	}
	return dst
}

// EachField gives the same fields one by one; the strings are valid during the call only.
func (x *Exchange) EachField(give func(name, value string)) {
	if x.Upstream != nil {
		for i := range x.Upstream.Fields() {
			if f := &x.Upstream.Fields()[i]; !f.Drop {
				give(text(x.Upstream.Name(f)), text(x.Upstream.Value(f)))
			}
		}
	}
	for _, e := range x.extra[:x.extras] {
		give(e.name, text(x.text[e.value.start:e.value.end]))
	}
}
