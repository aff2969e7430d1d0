package steer

import (
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/health"
)

// The expiry of an order brings a cell back only when the cell is well: not while it is down, nor while nobody sees it.
func TestAnExpiredEvacuationRampsBackOnlyAHealthyCell(t *testing.T) {
	t.Parallel()
	for _, ill := range []health.Status{health.Unhealthy, health.Unknown} {
		in := inputs(world(3, 2, 1_000_000))
		s := Step(State{}, in, t0)
		in.Evacuations = []cells.Evacuation{{Cell: "us/b", Started: t0, Expires: t0.Add(time.Minute)}}
		for age := 0; age < 60; age += 5 {
			if age == 40 {
				in.Health["us/b"] = ill
			}
			s = Step(s, in, t0.Add(time.Duration(age)*time.Second))
		}
		for age := 60; age <= 180; age += 5 {
			s = Step(s, in, t0.Add(time.Duration(age)*time.Second))
			if n := owned(s, "us/b", "us"); n != 0 {
				t.Fatalf("health %v, %d s after the expiry: %d slots", ill, age-60, n)
			}
		}
		in.Health["us/b"] = health.Healthy
		s = Step(s, in, t0.Add(185*time.Second))
		if n := owned(s, "us/b", "us"); n > 32 {
			t.Errorf("health %v: %d slots at once", ill, n)
		}
		for age := 190; age <= 300; age += 5 {
			s = Step(s, in, t0.Add(time.Duration(age)*time.Second))
		}
		if n := owned(s, "us/b", "us"); n < 127 {
			t.Errorf("health %v: %d slots in the end", ill, n)
		}
	}
}
