package steer

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
)

// A cell of a small world is evacuated over 20 s and restored, under load whose clients cache answers and whose reports are
// noisy, wherever the clients are: nobody passes the target, the order may stand, the cell is empty when it should be and
// full again after the ramp, and then nothing moves any more.
func TestEvacuationAndRestoreInAClosedLoop(t *testing.T) {
	t.Parallel()
	for name, demand := range map[string][]float64{
		"clients known":           {0, 840_000, 840_000, 840_000},
		"clients unknown":         {2_500_000, 0, 0, 0},
		"unknown, nearly full":    {3_250_000, 0, 0, 0},
		"one region only":         {0, 1_300_000, 0, 0},
		"mixed, one region heavy": {900_000, 900_000, 300_000, 100_000},
		"idle":                    {0, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			in := inputs(world(3, 2, 1_000_000))
			f := &flow{demand: demand, arrives: make([][]float64, 4), tau: 5}
			s := State{}
			at := func(step int) time.Time { return t0.Add(time.Duration(step) * 1250 * time.Millisecond) }
			s = Step(s, in, at(0))
			lastMove, peak := 0, 0.0
			for step := 1; step < 400; step++ {
				load := f.tick(&s.Plan, 1.25, nil)
				for c, cell := range s.Plan.Cells {
					if step > 60 {
						peak = max(peak, load[c])
					}
					if load[c] > 705_000 && step > 60 {
						t.Fatalf("step %d: %s carries %.1f%% of its limit", step, cell.ID, load[c]/10_000)
					}
					in.Load[cell.ID] = CellLoad{RPS: cells.MilliRPS(load[c] * (0.96 + 0.08*r.Float64()))}
				}
				switch step {
				case 120:
					order := cells.Evacuation{Cell: "eu/a", Started: at(step), Over: 20 * time.Second, Expires: at(step).Add(time.Hour)}
					if out := DryRun(s, in, order, at(step)); out.Refused != "" {
						t.Fatalf("refused: %s", out.Refused)
					}
					in.Evacuations = []cells.Evacuation{order}
				case 200:
					in.Evacuations[0].Restored = at(step)
				}
				if step == 120+16+8 && load[0] > 0.25*sum(demand)/6 {
					t.Errorf("two TTLs after the end %.0f rps are left", load[0]/1000)
				}
				before := s.Plan
				s = Step(s, in, at(step))
				n := 0
				for l := range s.Plan.Localities {
					n += s.Plan.Rows[0][l].count(0)
				}
				if step >= 136 && step < 200 && n > 0 {
					t.Fatalf("step %d: %d slots on the evacuated cell", step, n)
				}
				if movedMass(&before, &s.Plan, []float64{1, 1, 1, 1}) > 0 {
					lastMove = step
					if step < 120 && step > 60 {
						t.Errorf("step %d moves slots although nothing happened", step)
					}
				}
			}
			t.Logf("worst cell %.1f%% of its limit, last move in step %d", peak/10_000, lastMove)
			if n := owned(s, "eu/a", "eu"); n < 126 && demand[1] < 1_000_000 {
				t.Errorf("%d slots at the end", n)
			}
			if lastMove > 200+24+40 {
				t.Errorf("still moving in step %d", lastMove)
			}
		})
	}
}

func sum(v []float64) (total float64) {
	for _, x := range v {
		total += x
	}
	return total
}
