package upstream

import (
	"sync/atomic"

	"github.com/cellgate/cellgate/proxy/hedge"
)

// Hedges is what a pool knows of late answers, and what became of the second requests.
type Hedges struct {
	tail      atomic.Pointer[hedge.Tail]
	Sent, Won atomic.Uint64
}

// Tail keeps the latencies of the exchanges that may be hedged. It is there once somebody has asked for it.
func (h *Hedges) Tail() *hedge.Tail {
	if t := h.tail.Load(); t != nil {
		return t
	}
	h.tail.CompareAndSwap(nil, new(hedge.Tail))
	return h.tail.Load()
}
