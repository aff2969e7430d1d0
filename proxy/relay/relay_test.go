package relay

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/retry"
	"github.com/cellgate/cellgate/reason"
)

func TestAgesDiffer(t *testing.T) {
	now := time.Now()
	low, high := time.Hour, time.Duration(0)
	for range 1000 {
		d := Age(now, 5*time.Minute, 0, false).Sub(now)
		low, high = min(low, d), max(high, d)
	}
	if low < 4*time.Minute || high > 6*time.Minute || high-low < 90*time.Second {
		t.Errorf("ages of %v to %v", low, high)
	}
}

// G45: a body may come as slowly as 1 KiB/s after ten seconds' grace, and never later than its exchange ends.
func TestABodyHasToComeAtARate(t *testing.T) {
	start := time.Now()
	end := start.Add(time.Hour)
	for n, want := range map[int64]time.Duration{0: 10 * time.Second, 1023: 10*time.Second + 999*time.Millisecond, 60 << 10: 70 * time.Second, 10 << 20: time.Hour} {
		if got := BodyDeadline(start, n, end).Sub(start).Truncate(time.Millisecond); got != want {
			t.Errorf("%d bytes: %v, want %v", n, got, want)
		}
	}
	if got := BodyDeadline(start, 0, start.Add(time.Second)).Sub(start); got != time.Second {
		t.Errorf("beyond its exchange: %v", got)
	}
}

// I3: an endpoint is not ejected because the node has no descriptors left.
func TestWhatTheNodeHasRunOutOfIsNoEvidenceAgainstAnEndpoint(t *testing.T) {
	for err, want := range map[error]retry.Result{
		syscall.EMFILE: retry.Fatal, syscall.ENFILE: retry.Fatal, syscall.ENOBUFS: retry.Fatal, syscall.ENOMEM: retry.Fatal,
		syscall.ECONNREFUSED: retry.ConnectFailed, syscall.EHOSTUNREACH: retry.ConnectFailed, syscall.EADDRNOTAVAIL: retry.ConnectFailed,
	} {
		got, why := Unconnected(fmt.Errorf("dial: %w", err))
		if got != want || (why == reason.Overloaded) != (want == retry.Fatal) {
			t.Errorf("%v: %v, %v", err, got, why)
		}
	}
}
