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

// newLoops makes an engine of one loop for each core, which bundles its system calls or doesn't. What isn't on a loop (HTTP/3, look-ups, the node's own work) gets as many
// of Go's processors again: loops hold theirs even through short sleeps, in which the cores are free.
func newLoops(s *proxy.Server, o engine.Options, cores int, bundle bool) (serving, func() time.Duration) {
	if runtime.GOMAXPROCS(0) < 2*cores {
		runtime.GOMAXPROCS(2 * cores)
	}
	e := loop.New(s, loop.Options{Options: o, Loops: cores, NoRing: !bundle})
	return e, e.Lag
}
