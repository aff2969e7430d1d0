package proxy

import (
	"runtime"
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/loop"
)

const (
	haveLoops     = true
	defaultEngine = loops
)

// newLoops makes an engine of one loop for each core. What isn't on a loop (HTTP/3, look-ups, the node's own work) gets as many
// of Go's processors again: loops hold theirs even through short sleeps, in which the cores are free.
func newLoops(s *proxy.Server, o engine.Options, cores int) (serving, func() time.Duration) {
	if runtime.GOMAXPROCS(0) < 2*cores {
		runtime.GOMAXPROCS(2 * cores)
	}
	e := loop.New(s, loop.Options{Options: o, Loops: cores})
	return e, e.Lag
}
