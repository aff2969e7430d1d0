package shadow

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/reason"
)

// enough is more often than any limiter lets a request wait.
const enough = math.MaxInt

// Spend implements proxy.Shadow. The limits of a tenant, a plan or a route are one subject: what one of them would have refused
// spends nothing of the others, as if they were enforced. What is enforced has let the exchange pass already, and hears nothing of
// it, nor do other subjects.
func (w *Watcher) Spend(at *program.Match, id string, from proxy.Limiter, list []proxy.Claim, now time.Time) {
	from.Aim(list)
	for len(list) > 0 {
		s, n := whose(&list[0]), 1
		for i := range list {
			if i >= n && whose(&list[i]) == s {
				list[n], list[i] = list[i], list[n]
				n++
			}
		}
		w.spend(evidence{subject: s, route: at.Route.ID, tenant: at.Tenant, id: id}, from, list[:n], now)
		list = list[n:]
	}
}

// whose limit a claim is on.
func whose(c *proxy.Claim) subject {
	switch {
	case c.Key.Route != "":
		return subject{"limits", c.Key.Route}
	case c.Plan != "":
		return subject{"plan", c.Plan}
	}
	return subject{"tenant", c.Key.Tenant}
}

func (w *Watcher) spend(e evidence, from proxy.Limiter, list []proxy.Claim, now time.Time) {
	refused, due := from.Take(list, 0, now)
	if due != nil {
		if w.await(e, &answer{due, later(from, list)}) {
			return
		}
		refused, _ = from.Take(list, enough, now)
	}
	e.why = said(list, refused)
	w.count(e)
}

// later asks again in place of the request, as it would have if it had waited.
func later(from proxy.Limiter, list []proxy.Claim) func() reason.Reason {
	list = slices.Clone(list)
	for i := range list {
		list[i].Key.Caller = strings.Clone(list[i].Key.Caller)
	}
	return func() reason.Reason {
		for waits := 1; ; waits++ {
			refused, due := from.Take(list, waits, time.Now())
			if due == nil {
				return said(list, refused)
			}
			<-due
		}
	}
}

// said is the verdict of limits of which one, or none, has refused.
func said(list []proxy.Claim, refused int) reason.Reason {
	if refused < 0 {
		return reason.None
	}
	return list[refused].Key.Kind
}
