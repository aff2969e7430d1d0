package http1

import (
	"testing"
	"time"
)

func TestDatesAreOfTheirSecond(t *testing.T) {
	var d Date
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	for after, want := range []string{"Fri, 02 Jan 2026 02:04:05 GMT", "Fri, 02 Jan 2026 02:04:06 GMT"} {
		for range 2 {
			if got := d.At(at.Add(time.Duration(after) * time.Second)); got != want {
				t.Errorf("%q, not %q", got, want)
			}
		}
	}
}
