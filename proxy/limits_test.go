package proxy

import (
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/reason"
)

// spender is told of limits in shadow mode.
type spender struct {
	n    int
	last Claim
}

func (*spender) Try(*Exchange, *program.Route, *Identity, time.Time) {}

func (s *spender) Spend(_ *program.Match, _ string, _ Limiter, list []Claim, _ time.Time) {
	s.n, s.last = s.n+1, list[len(list)-1]
}

// J3: limits in shadow mode are no claims of the exchange, and cost it no allocation.
func TestLimitsInShadowModeAreShownToTheShadowAlone(t *testing.T) {
	tried := &spender{}
	s := serverWith(t, &script{refuse: -1}, `version: v1
routes: [{id: r, match: {host: a.example, path: /r}, upstream: up, limits: {tenant: 1/hour, user: 1/hour, mode: shadow}}]
upstreams: [{id: up, endpoints: ["127.0.0.1:1"]}]
`)
	s.opts.Shadow = tried
	x := exchangeOf(t, s, get("/r"))
	if n := testing.AllocsPerRun(1000, func() {
		x.reset()
		if x.Run(time.Now()) != Next || x.claimed != 0 {
			t.Fatal(x.Reason, x.claimed)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if k := tried.last.Key; tried.n != 1001 || k.Kind != reason.RateUser || k.Route != "r" || k.Caller == "" {
		t.Errorf("%d times, last %+v", tried.n, k)
	}
}
