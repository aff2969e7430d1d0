package proxy

import (
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/transform"
	"github.com/cellgate/cellgate/reason"
)

// rewrite makes the path that the upstream gets. Everything ahead of it, and the log, know the client's.
func rewrite(x *Exchange) Verdict {
	r := x.rules()
	if r == nil || r.Path == nil {
		return Next
	}
	var ok bool
	if x.rewritten, ok = r.Path.Append(x.rewritten[:0], string(x.path)); !ok {
		return x.refuse(reason.URLTooLong)
	}
	return Next
}

// hide keeps what tells of the inside from the client.
func hide(x *Exchange) {
	if x.Upstream != nil && !x.handed {
		x.rules().Hide(&x.Upstream.Head)
	}
}

// rules are the transforms of the exchange's route; nil = none. What goes to another cell is transformed there, once.
func (x *Exchange) rules() *transform.Rules {
	if x.match.Route == nil || x.handed {
		return nil
	}
	return x.match.Route.Edits
}

// EachRequestField gives the client's fields as the upstream gets them; the strings are valid during the call only.
func (x *Exchange) EachRequestField(give func(name, value string)) {
	x.rules().RequestEdits().Each(&x.Request.Head, give)
}

// Hint gives what an interim answer of the upstream's has for the client. Nothing is added to it or renamed: the final answer says
// it again.
func (x *Exchange) Hint(res *http1.Response) *http1.Head {
	if !x.handed {
		x.rules().Hide(&res.Head)
	}
	return x.Trim(&res.Head)
}

// TrimRequest takes from a request's trailers what its route keeps from upstreams (CASES G17). h may be nil.
func (x *Exchange) TrimRequest(h *http1.Head) *http1.Head { return x.rules().RequestEdits().Trim(h) }

// Trim takes from an answer's trailers what its route keeps from clients. h may be nil.
func (x *Exchange) Trim(h *http1.Head) *http1.Head { return x.rules().AnswerEdits().Trim(h) }
