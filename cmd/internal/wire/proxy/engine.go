package proxy

import (
	"context"
	"time"

	"github.com/cellgate/cellgate/proxy/engine"
)

// sockets is how many of each address an engine of a kind wants, on so many cores.
func sockets(kind string, cores int) int {
	if kind == loops || kind == singles || kind == "" && defaultEngine == loops {
		return cores
	}
	return 1
}

// serving is an engine of any kind.
type serving interface {
	Run(ctx context.Context, listeners ...engine.Listener) error
}

// The kinds of engines.
const (
	goroutines = "goroutine"
	loops      = "loop"
	singles    = "epoll" // loops that never bundle
	netHTTP    = "nethttp"
)

// engines are the kinds that this system has.
func engines() []string {
	if haveLoops {
		return []string{goroutines, loops, singles, netHTTP}
	}
	return []string{goroutines, netHTTP}
}

// newEngine makes an engine of a kind, empty for the default, which may use so many cores.
func (c *core) newEngine(kind string, o engine.Options, cores int) serving {
	if kind == "" {
		kind = defaultEngine
	}
	o.Log = c.log
	switch kind {
	case netHTTP:
		return engine.NewNetHTTP(c.server, o)
	case loops, singles:
		e, lag := newLoops(c.server, o, cores, kind == loops)
		c.loops = append(c.loops, lag)
		return e
	}
	return engine.New(c.server, o)
}

// loopLag is the longest that a client had to wait for a loop since it was last asked; ok is false where there are no loops. The
// guard alone asks.
func (c *core) loopLag() (longest time.Duration, ok bool) {
	for _, of := range c.loops {
		longest = max(longest, of())
	}
	return longest, len(c.loops) > 0
}
