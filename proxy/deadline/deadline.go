// Package deadline is the arithmetic of the one deadline that an exchange has (I5): what a client's words mean, and what is
// left for an upstream.
//
//	d, ok := deadline.Parse([]byte("1500"), false)      // the client gives 1.5 s
//	end := deadline.Reserve(start, start.Add(d), now)   // attempts must have ended by then
package deadline

import (
	"time"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/reason"
)

// Asked is the time that a request gives, by X-Request-Timeout-Ms or grpc-timeout, the shorter one if it has both; 0 = it says
// nothing. grpc says that it speaks gRPC's form. why is not None for a time that is none, or over.
func Asked(h *http1.Head) (d time.Duration, grpc bool, why reason.Reason) {
	fields := h.Fields()
	for i := range fields {
		k := fields[i].Kind
		if k != http1.TimeoutMS && k != http1.GRPCTimeout {
			continue
		}
		given, ok := Parse(h.Value(&fields[i]), k == http1.GRPCTimeout)
		if !ok {
			return d, grpc, reason.DeadlineInvalid
		}
		grpc = grpc || k == http1.GRPCTimeout
		if given <= 0 {
			return d, grpc, reason.DeadlineExpired
		}
		if d == 0 || given < d {
			d = given
		}
	}
	return d, grpc, reason.None
}

// Reserve is when attempts must have ended: the deadline of an exchange that began at start less 5% of it, at least 10 ms, to
// answer in. It is never before now.
func Reserve(start, deadline, now time.Time) time.Time {
	reserve := max(deadline.Sub(start)/20, 10*time.Millisecond)
	if at := deadline.Add(-reserve); at.After(now) {
		return at
	}
	return now
}

// Parse reads 1 to 8 digits, in gRPC's form with a unit, in ours milliseconds.
func Parse(v []byte, grpc bool) (time.Duration, bool) {
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
