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

// newLoops makes an engine of one loop for each core. What isn't on a loop (handshakes, look-ups, the node's own work) gets
// threads beside those of the loops, which hardly ever let go of theirs.
func newLoops(s *proxy.Server, o engine.Options, cores int) (serving, func() time.Duration) {
	if runtime.GOMAXPROCS(0) <= cores {
		runtime.GOMAXPROCS(cores + 1)
	}
	e := loop.New(s, loop.Options{Options: o, Loops: cores})
	return e, e.Lag
}
