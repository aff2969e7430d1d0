package proxy

import (
	"time"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/reason"
)

// clientDeadline reads what time the client gives (I5): X-Request-Timeout-Ms or grpc-timeout, from the arrival of the head.
func clientDeadline(x *Exchange) Verdict {
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
		x.grpcTimeout = x.grpcTimeout || k == http1.GRPCTimeout
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
