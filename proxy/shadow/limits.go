package shadow

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/reason"
)

// enough is more often than any limiter lets a request wait.
const enough = math.MaxInt

// Spend implements proxy.Shadow. The limits of a route are one subject: what one of them would have refused spends nothing of the
// others, as if they were enforced. What is enforced has let the exchange pass already, and hears nothing of it.
func (w *Watcher) Spend(from proxy.Limiter, list []proxy.Claim, id string, now time.Time) {
	if len(list) == 0 {
		return
	}
	k := &list[0].Key
	e := evidence{subject: subject{limits: k.Route}, route: k.Route, tenant: k.Tenant, id: id}
	from.Aim(list)
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
