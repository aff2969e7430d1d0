package proxy

import (
	"time"

	"github.com/cellgate/cellgate/reason"
)

// record tells the recorders what the exchange came to.
func (x *Exchange) record(now time.Time) {
	r := &x.rec
	*r = Record{Start: x.Start, Total: now.Sub(x.Start), Upstream: x.Waited, RequestID: x.ID(), Peer: x.from.Client, Protocol: x.Protocol,
		TLS: x.from.HTTPS, Method: text(x.Request.Method()), Host: x.host, Path: string(x.path), Status: x.Status, Reason: x.Reason,
		Tenant: x.match.Tenant, Attempts: x.Attempts, User: x.identity.User, Consumer: x.identity.Consumer,
		BytesIn: x.BytesIn, BytesOut: x.BytesOut, Truncated: x.Truncated, Handed: x.handed, Stayed: x.Stayed, Via: x.Via, Cold: x.Cold || x.Parked || x.credentials.Fresh,
		Tries: x.Trail.Ended(), Passed: x.passed, Timed: x.watch.On && x.at > 0, Parts: x.watch.Parts, Trace: x.Trace, Outside: x.Outside}
	if !x.Opened.IsZero() {
		r.Total, r.Open = x.Opened.Sub(x.Start), now.Sub(x.Opened)
	}
	if x.Reason != reason.None {
		r.Status = x.Reason.Status()
	}
	if own := text(x.Request.Target()); own == ReadyPath || own == KeysPath || own == "*" {
		r.Path = own
	}
	if x.table != nil {
		r.Snapshot = x.table.program.Number
	}
	if m := x.match.Route; m != nil {
		if r.Route, r.Owner = m.ID, m.Owner; r.Notable() {
			r.Pattern = x.table.program.Pattern(&x.match)
		}
	}
	switch m := x.match.Route; {
	case x.Pool != nil && !x.handed:
		r.Service = x.Pool.ID
	case m != nil && len(m.Branches) > 0:
		r.Service = x.table.program.Upstreams[m.Branches[0].Upstream].ID
	}
	if x.Pool != nil {
		r.UpstreamID = x.Pool.ID
		if x.Endpoint >= 0 {
			r.Endpoint = x.Pool.Name(x.Endpoint)
		}
	}
	for _, to := range x.server.opts.Recorders {
		to.Record(r)
	}
}
