package engine_test

import (
	"github.com/cellgate/cellgate/proxy"
	. "github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/loop"
)

func engines() map[string]maker {
	return map[string]maker{"goroutine": goroutines, "loop": loops}
}

// loops has two, so that what they share is shared.
func loops(s *proxy.Server, o Options) runner { return loop.New(s, loop.Options{Options: o, Loops: 2}) }
