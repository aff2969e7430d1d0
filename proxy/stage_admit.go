package proxy

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"time"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// ReadyPath is answered by the node itself on every listener, ahead of routing.
const ReadyPath = "/.well-known/cellgate/ready"

// admit takes the request in: its id, the table that serves it to its end, what it may ask of the connection, its deadline.
func admit(x *Exchange) Verdict {
	x.newID()
	x.table = x.server.table.Load()
	x.Deadline = x.Start.Add(snapshot.DefaultTimeout)
	if string(x.Request.Method()) == "CONNECT" {
		x.Closing = true
		return x.refuse(reason.ConnectRefused)
	}
	if x.Request.Upgrade {
		x.Closing = true
		return x.refuse(reason.UpgradeRefused)
	}
	if string(x.Request.Target()) == ReadyPath {
		return x.probe()
	}
	if x.table == nil {
		return x.refuse(reason.Draining)
	}
	return x.clientDeadline()
}

// newID draws 128 random bits; a request id only has to be unique, not secret.
func (x *Exchange) newID() {
	var raw [16]byte
	binary.LittleEndian.PutUint64(raw[:8], rand.Uint64())
	binary.LittleEndian.PutUint64(raw[8:], rand.Uint64())
	hex.Encode(x.id[:], raw[:])
}

// refuse is a stage's reply for a reason.
func (x *Exchange) refuse(why reason.Reason) Verdict {
	x.Fail(why)
	return Reply
}

// probe answers the readiness probe: 200 or 503.
func (x *Exchange) probe() Verdict {
	if m := string(x.Request.Method()); m != "GET" && m != "HEAD" {
		x.match.Allow = "GET, HEAD"
		return x.refuse(reason.MethodNotAllowed)
	}
	if !x.server.Ready() {
		return x.refuse(reason.Draining)
	}
	x.own(200, "application/json", `{"ready":true}`)
	return Reply
}

// clientDeadline reads what time the client gives (I5): X-Request-Timeout-Ms or grpc-timeout, from the arrival of the head.
func (x *Exchange) clientDeadline() Verdict {
	fields := x.Request.Fields()
	for i := range fields {
		k := fields[i].Kind
		if k != http1.TimeoutMS && k != http1.GRPCTimeout {
			continue
		}
		d, ok := parseTimeout(x.Request.Value(&fields[i]), k == http1.GRPCTimeout)
		if !ok {
			return x.refuse(reason.DeadlineInvalid)
		}
		if d <= 0 {
			return x.refuse(reason.DeadlineExpired)
		}
		if x.asked == 0 || d < x.asked {
			x.asked = d
		}
	}
	return Next
}

// parseTimeout reads 1 to 8 digits, in gRPC's form with a unit, in ours milliseconds.
func parseTimeout(v []byte, grpc bool) (time.Duration, bool) {
	unit := time.Millisecond
	if grpc {
		if len(v) < 2 {
			return 0, false
		}
		switch v[len(v)-1] {
		case 'H':
			unit = time.Hour
		case 'M':
			unit = time.Minute
		case 'S':
			unit = time.Second
		case 'm':
			unit = time.Millisecond
		case 'u':
			unit = time.Microsecond
		case 'n':
			unit = time.Nanosecond
		default:
			return 0, false
		}
		v = v[:len(v)-1]
	}
	if len(v) == 0 || len(v) > 8 {
		return 0, false
	}
	var n time.Duration
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + time.Duration(c-'0')
	}
	return min(n, time.Duration(1<<62)/unit) * unit, true
}
