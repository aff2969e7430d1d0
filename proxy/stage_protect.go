package proxy

import (
	"math/rand/v2"
	"time"

	"github.com/cellgate/cellgate/proxy/shed"
	"github.com/cellgate/cellgate/reason"
)

// Shed says how much of its load the node sheds from now on.
func (s *Server) Shed(l shed.Level) { s.level.Store(uint32(l)) }

// protect sheds for the node's sake, the lowest class first, before anything costly is done for the request.
func protect(x *Exchange) Verdict {
	level := shed.Level(x.server.level.Load())
	if level == 0 {
		return Next
	}
	class := shed.Of(x.match.Route.Priority)
	if !shed.Sheds(level, class, rand.Uint64()) {
		return Next
	}
	x.server.Spare(class)
	return x.refuse(reason.Overloaded)
}

// leave ends the exchange's part in the load of its upstream. A tunnel says nothing about how long exchanges take.
func (x *Exchange) leave(now time.Time) {
	if x.limit == nil {
		return
	}
	took := x.Waited
	if x.Tunnel {
		took = 0
	}
	x.limit.Leave(took, max(x.Status, x.given) < 500, now)
	x.limit = nil
}
