package engine_test

import (
	"testing"
	"time"

	. "github.com/cellgate/cellgate/proxy/engine"
)

// Without an end, a pooled client would stay where it is for ever, whatever DNS says.
func TestConnectionsOfAnAgeAreAskedToLeave(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		const age = 400 * time.Millisecond
		w := start(t, handler(t, echo), setup{engine: Options{MaxAge: age}})
		began := time.Now()
		c := w.dial()
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
			if took > soon {
				t.Fatalf("after %v the connection may still stay", took)
			}
			time.Sleep(10 * time.Millisecond)
		}
		c.closed()
	})
}
