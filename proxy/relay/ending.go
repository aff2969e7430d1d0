package relay

import (
	"strconv"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/rpc"
	"github.com/cellgate/cellgate/reason"
)

// Ending knows how the answer of an exchange can end that breaks off. Callers of gRPC and gRPC-Web are told a status, as the
// server behind would have told them; all others must see that something is missing.
type Ending struct {
	kind     rpc.Kind
	messages rpc.Messages
}

// Begin looks at an upstream's answer whose head goes to the client now. A body of a known length can't be ended otherwise, nor
// can one that ends with its connection.
func (e *Ending) Begin(x *proxy.Exchange, length int64) {
	e.kind = rpc.None
	if length >= 0 || x.Status != 200 || string(x.Request.Method()) != "POST" || x.Request.Minor == 0 && x.Protocol == "HTTP/1.1" {
		return
	}
	v, _ := x.Request.Find("content-type")
	e.kind, e.messages = rpc.Of(v), rpc.Messages{}
}

// Gave takes a piece of the body that was given to the client.
func (e *Ending) Gave(p []byte) {
	if e.kind == rpc.Web {
		e.messages.Feed(p)
	}
}

// Say gives what ends the answer for this reason: the last of its body, or its trailers. ok is false when only a break will do.
func (e *Ending) Say(why reason.Reason) (body []byte, trailer *http1.Head, ok bool) {
	switch {
	case e.kind == rpc.GRPC:
		return nil, status(why), true
	case e.kind == rpc.Web && e.messages.Between():
		return rpc.AppendStatus(nil, why.GRPC(), said(why)), nil, true
	}
	return nil, nil, false
}

// status is what callers of gRPC find in trailers.
func status(why reason.Reason) *http1.Head {
	h := new(http1.Head)
	h.Empty(nil)
	for _, f := range [...]struct{ name, value string }{
		{"grpc-status", strconv.Itoa(int(why.GRPC()))}, {"grpc-message", said(why)}, {"x-cellgate-reason", why.String()},
	} {
		_, _ = h.Put([]byte(f.name), []byte(f.value)) // ours are good
	}
	for i := range h.Fields() {
		h.Fields()[i].Drop = false // of others it would be
	}
	return h
}

// said is a reason's title, where an answer had begun.
func said(why reason.Reason) string {
	if why == reason.UpstreamReset {
		return "The upstream broke off its answer"
	}
	return why.Title()
}

// BrokenOff is the reason of an answer that ends before it is whole: late says that the exchange's time was up, idle that the
// upstream was silent for too long.
func BrokenOff(late, idle bool) reason.Reason {
	switch {
	case late:
		return reason.TotalTimeout
	case idle:
		return reason.UpstreamTimeout
	}
	return reason.UpstreamReset
}
