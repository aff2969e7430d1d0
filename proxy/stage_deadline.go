package proxy

import (
	"github.com/cellgate/cellgate/proxy/deadline"
	"github.com/cellgate/cellgate/reason"
)

// clientDeadline reads what time the client gives (I5), from the arrival of the head.
func clientDeadline(x *Exchange) Verdict {
	var why reason.Reason
	if x.asked, x.grpcTimeout, why = deadline.Asked(&x.Request.Head); why != reason.None {
		return x.refuse(why)
	}
	return Next
}
