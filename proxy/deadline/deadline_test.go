package deadline

import (
	"testing"
	"time"
)

func TestTimeoutsAreParsedStrictly(t *testing.T) {
	for text, want := range map[string]time.Duration{"0": 0, "1500": 1500 * time.Millisecond, "99999999": 99999999 * time.Millisecond} {
		if got, ok := Parse([]byte(text), false); !ok || got != want {
			t.Errorf("%q: %v, %v", text, got, ok)
		}
	}
	for text, want := range map[string]time.Duration{"1H": time.Hour, "2M": 2 * time.Minute, "3S": 3 * time.Second, "4m": 4 * time.Millisecond, "5u": 5 * time.Microsecond, "6n": 6} {
		if got, ok := Parse([]byte(text), true); !ok || got != want {
			t.Errorf("%q: %v, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "-1", "1.5", "123456789", "5s", " 5"} {
		if got, ok := Parse([]byte(text), false); ok {
			t.Errorf("%q means %v", text, got)
		}
	}
	for _, text := range []string{"", "5", "S", "123456789S", "1s", "-1S"} {
		if got, ok := Parse([]byte(text), true); ok {
			t.Errorf("%q means %v to gRPC", text, got)
		}
	}
	if huge, ok := Parse([]byte("99999999H"), true); !ok || huge <= 0 {
		t.Errorf("the longest time is %v", huge)
	}
}

func TestTheReserveIsFivePercentOrTenMilliseconds(t *testing.T) {
	start := time.Unix(1e9, 0)
	for total, want := range map[time.Duration]time.Duration{time.Second: 950 * time.Millisecond, 100 * time.Millisecond: 90 * time.Millisecond} {
		if got := Reserve(start, start.Add(total), start).Sub(start); got != want {
			t.Errorf("of %v %v are left", total, got)
		}
	}
	now := start.Add(995 * time.Millisecond)
	if got := Reserve(start, start.Add(time.Second), now); !got.Equal(now) {
		t.Errorf("in the reserve attempts may take until %v", got.Sub(start))
	}
}
