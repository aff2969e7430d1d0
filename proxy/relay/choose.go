package relay

import (
	"math/rand/v2"
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/balance"
	"github.com/cellgate/cellgate/reason"
)

// Choose picks the endpoint of the next attempt, one that was not tried if there is any, and counts the attempt as under way
// there. A reason means that there is no next attempt.
func Choose(x *proxy.Exchange, now time.Time) reason.Reason {
	if !x.UpstreamDeadline(now).After(now) {
		return x.Expired()
	}
	a := balance.Ask{Now: now, Random: rand.Uint64(), Key: x.Key, Tried: x.Tried}
	choose := x.Pool.Choose
	if !x.Machine.Reads {
		choose = x.Pool.ChooseOwner
	}
	i, barred := choose(a)
	if i < 0 && x.Tried != (balance.Tried{}) {
		a.Tried = balance.Tried{}
		i, barred = choose(a)
	}
	switch {
	case barred:
		x.RetryIn(x.Pool.RetryIn(now))
		return reason.BreakerOpen
	case i < 0:
		return reason.NoEndpoint
	}
	x.Endpoint = i
	x.Trail.Begin()
	return reason.None
}

// Moved notes that the attempt goes to another endpoint, whose connection became free first.
func Moved(x *proxy.Exchange, to int) {
	x.Pool.Cancel(x.Endpoint)
	x.Pool.Set.Begin(to)
	x.Endpoint = to
}

// Rival picks the endpoint of a hedge, another one than the exchange is at, if there is one and the budget allows it. The attempt
// counts as under way there; how it ends is to be told to the pool.
func Rival(x *proxy.Exchange, now time.Time) (endpoint int, ok bool) {
	a := balance.Ask{Now: now, Random: rand.Uint64(), Key: x.Key, Tried: x.Tried}
	a.Tried.Add(x.Endpoint)
	i, _ := x.Pool.Choose(a)
	if i < 0 {
		return 0, false
	}
	if !x.Machine.Budget.Hedge(now) {
		x.Pool.Cancel(i)
		return 0, false
	}
	x.Trail.Challenge()
	return i, true
}
