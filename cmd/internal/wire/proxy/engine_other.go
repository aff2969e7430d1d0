//go:build !linux

package proxy

import (
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/engine"
)

const (
	haveLoops     = false
	defaultEngine = goroutines
)

func newLoops(s *proxy.Server, o engine.Options, _ int, _ bool) (serving, func() time.Duration) {
	return engine.New(s, o), nil
}
