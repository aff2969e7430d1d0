package proxy

import (
	"time"

	"github.com/cellgate/cellgate/proxy/reply"
	"github.com/cellgate/cellgate/proxy/rpc"
	"github.com/cellgate/cellgate/reason"
)

// identify tells the client the request id.
func identify(x *Exchange) { reply.Add(&x.own, "X-Request-Id", x.ID()) }

// explain makes the problem document (RFC 9457) of an own answer, or its form for gRPC, and the fields that its status
// asks for.
func explain(x *Exchange) {
	if x.Reason == reason.None {
		return
	}
	reply.Add(&x.own, "Date", x.server.today.At(x.Start))
	reply.Add(&x.own, "X-Cellgate-Reason", x.Reason.String())
	switch {
	case x.Status == 405:
		reply.Add(&x.own, "Allow", x.match.Allow)
	case x.Reason == reason.UpgradeRefused && x.WebSocket.OtherVersion(&x.Request):
		reply.Add(&x.own, "Sec-WebSocket-Version", "13")
	case x.Status == 401:
		reply.Add(&x.own, "WWW-Authenticate", x.Reason.Challenge())
	case x.Reason == reason.ScopeMissing:
		reply.Add(&x.own, "WWW-Authenticate", `Bearer error="insufficient_scope"`)
	case x.Status == 429:
		x.own.Limited(x.Reason, x.retryAfter)
	case x.Status == 503 && (x.retryAfter > 0 || x.Reason.Passes()):
		x.own.ComeBack(x.retryAfter)
	}
	if v, _ := x.Request.Find("content-type"); rpc.Of(v) != rpc.None {
		x.Status = 200
		x.own.TrailersOnly(x.Reason, rpc.Type(v))
		return
	}
	x.own.Problem(x.Reason, x.Status, x.ID())
}

// advertise says where HTTP/3 is served, but not to clients that are asked to leave.
func advertise(x *Exchange) {
	if x.AltSvc != "" && !x.server.Leaving() {
		reply.Add(&x.own, "Alt-Svc", x.AltSvc)
	}
}

// RetryIn says when what the exchange is refused for may have passed; explain tells the client.
func (x *Exchange) RetryIn(d time.Duration) { x.retryAfter = d }

// connection asks the client to come back on a new connection while the node drains. While it is only being left, the
// engine asks one connection after the other.
func connection(x *Exchange) { x.Closing = x.Closing || x.server.Draining() }

// Draining says whether the node is shutting down.
func (x *Exchange) Draining() bool { return x.server.Draining() }

// plain makes an answer of the gateway that is no problem.
func (x *Exchange) plain(status int) {
	x.Reason, x.Status, x.Upstream = reason.None, status, nil
	x.runAnswer()
	reply.Add(&x.own, "Date", x.server.today.At(x.Start))
}

// simple makes one with a body, or just a field.
func (x *Exchange) simple(status int, field, value, body string) Verdict {
	x.plain(status)
	reply.Add(&x.own, field, value)
	x.own.SetBody(body)
	return Reply
}

// Body is the body of an own answer.
func (x *Exchange) Body() []byte { return x.own.Body() }

// AppendFields appends the answer's fields, without those that frame the message, which are the engine's.
func (x *Exchange) AppendFields(dst []byte) []byte {
	if x.Upstream != nil {
		dst = x.rules().AnswerEdits().AppendFields(dst, &x.Upstream.Head)
	}
	return x.own.AppendFields(dst)
}

// EachField gives the same fields one by one; the strings are valid during the call only.
func (x *Exchange) EachField(give func(name, value string)) {
	if x.Upstream != nil {
		x.rules().AnswerEdits().Each(&x.Upstream.Head, give)
	}
	x.own.Each(give)
}
