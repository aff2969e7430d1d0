package relay

import (
	"testing"
	"time"
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
