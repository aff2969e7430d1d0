package engine

import (
	"testing"
	"time"
)

// Without an end, a pooled client would stay where it is for ever, whatever DNS says.
func TestConnectionsOfAnAgeAreAskedToLeave(t *testing.T) {
	const age = 400 * time.Millisecond
	w := start(t, handler(t, echo), setup{engine: Options{MaxAge: age}})
	c := w.dial()
	began := time.Now()
	for {
		res, _, err := c.send(get("/")).answer("GET")
		if err != nil || res.StatusCode != 200 {
			t.Fatal(res.StatusCode, err)
		}
		took := time.Since(began)
		if res.Close {
			if took < age*4/5 {
				t.Errorf("it was asked to leave after %v", took)
			}
			break
		}
		if took > 3*age {
			t.Fatalf("after %v the connection may still stay", took)
		}
		time.Sleep(10 * time.Millisecond)
	}
	c.closed()
}

func TestAgesDiffer(t *testing.T) {
	e := &Engine{opts: Options{MaxAge: 5 * time.Minute}}
	w := start(t, handler(t, echo), setup{})
	e.server = w.server
	now := time.Now()
	low, high := time.Hour, time.Duration(0)
	for range 1000 {
		d := e.age(now).Sub(now)
		low, high = min(low, d), max(high, d)
	}
	if low < 4*time.Minute || high > 6*time.Minute || high-low < 90*time.Second {
		t.Errorf("ages of %v to %v", low, high)
	}
}
