package quota

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// Who stays below the limit is admitted from the first request on, wherever the bucket is: on one machine, in one building.
func TestACallerBelowItsLimitIsAdmittedFromTheStart(t *testing.T) {
	for _, regions := range []int{1, 2} {
		for _, strict := range []bool{false, true} {
			for name, limit := range map[string]Limit{"1000/s": {Rate: 1000, Burst: 200}, "20/s": {Rate: 20, Burst: 20}, "a day": PerDay(3000)} {
				limit.Strict = strict
				for _, every := range []int64{5 * ms, 20 * ms, 100 * ms, 1000 * ms} {
					n := int(limit.Rate * float64(every) / 1e9)
					if limit.Day == 0 && n < 1 {
						continue
					}
					w := newWorld(1, limit, regions, 4)
					sent := 0
					for at := int64(0); at < 3000*ms; at += step {
						w.tick()
						if at%every == 0 {
							w.request(w.nodes[regions-1]) // of a region that doesn't own the key, where there is one
							sent++
						}
					}
					for range 10 {
						w.tick()
					}
					// A strict key that another region owns may be spent once before that region has answered.
					most := 0.0
					if strict && regions > 1 {
						most = 2
					}
					if w.refused > most {
						t.Errorf("%d regions, strict %v, %s, one each %d ms: %s", regions, strict, name, every/ms, fmt.Sprintf("%.0f of %d refused", w.refused, sent))
					}
				}
			}
		}
	}
}

// Who stays far below the limit notices nothing when the service of his region, or of the one that owns the key, dies and
// comes back with an empty memory, however the answers are delayed.
func TestACallerFarBelowItsLimitNoticesNoDeath(t *testing.T) {
	for _, regions := range []int{1, 3} {
		for _, late := range []bool{false, true} {
			w := newWorld(4, Limit{Rate: 10_000, Burst: 2000}, regions, 12)
			w.alone = true
			r := rand.New(rand.NewPCG(4, 4))
			if late {
				w.late = func() int64 { return r.Int64N(12) * step }
			}
			for at := int64(0); at < 12_000*ms; at += step {
				w.tick()
				w.home.down = at > 2000*ms && at < 5000*ms || at > 7000*ms && at < 7400*ms
				if at == 5000*ms || at == 7400*ms {
					w.bear(0)
				}
				if at == 9000*ms && regions > 1 {
					w.bear(1)
				}
				for _, n := range w.nodes {
					for range poisson(r, 25*seconds(step)) {
						w.request(n)
					}
				}
			}
			if w.refused > 0 {
				t.Errorf("%d regions, late %v: %.0f of %.0f refused", regions, late, w.refused, w.refused+w.admitted)
			}
		}
	}
}

// Of a slow limit no token is lost with leases that end unused: who asks once in a while has paid for what he asked for and no more.
func TestALeaseThatIsNotUsedCostsNothing(t *testing.T) {
	for _, regions := range []int{1, 2} {
		for _, limit := range []Limit{Per(5, time.Hour), Per(10, time.Minute)} {
			for beat := int64(0); beat < 100*ms; beat += 20 * ms { // of the node, against the requests
				w := newWorld(1, limit, regions, 3)
				w.now += 3600 * 1000 * ms
				n := w.nodes[regions-1]
				n.beat = beat
				for range 3 {
					w.request(n)
					for range 1500 * ms / step {
						w.tick()
					}
				}
				if spent := limit.Burst - w.home.tokens; w.admitted != 3 || spent > 3 {
					t.Errorf("%d regions, %g/s, beat %d ms: %.1f tokens are gone for %.0f requests", regions, limit.Rate, beat/ms, spent, w.admitted)
				}
			}
		}
	}
}

// A region that the owner is far from admits ahead of its first answer, not of each: who comes slowly is limited there, too.
func TestAKeyThatIsColdAgainIsNotNew(t *testing.T) {
	for _, between := range []int64{0, 60 * ms} {
		for _, strict := range []bool{false, true} {
			for _, limit := range []Limit{Per(5, time.Hour), PerDay(40)} {
				limit.Strict = strict
				w := newWorld(1, limit, 3, 3)
				w.between = between
				for i := range 120 {
					w.request(w.nodes[1+i%2])
					for range 1100 * ms / step {
						w.tick()
					}
				}
				whole := max(limit.Burst, float64(limit.Day))
				if most := whole + 2*(coldCredit*limit.Burst+1); w.admitted > most || w.admitted < whole/2 {
					t.Errorf("%d ms apart, %+v: %.0f admitted in two minutes", between/ms, limit, w.admitted)
				}
			}
		}
	}
}

// Limits of a few requests a minute or an hour are spent whole and no further, wherever their few requests come from.
func TestPropertySlowLimitsAreSpentWholeAndNoFurther(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 9))
		limit := Limit{Rate: math.Exp(math.Log(.001) + r.Float64()*math.Log(1000)), Burst: 5 + float64(r.IntN(15)), Strict: r.IntN(3) == 0}
		w := newWorld(seed, limit, 1+r.IntN(4), 4+r.IntN(8))
		w.between = r.Int64N(30) * step
		w.now += 24 * 3600 * 1000 * ms // its bucket is full
		rate, began := max(.5, 3*limit.Rate), w.now
		for range 90 * 1000 * ms / step {
			w.tick()
			for range poisson(r, rate*seconds(step)) {
				w.request(w.nodes[r.IntN(len(w.nodes))])
			}
		}
		whole := limit.Rate*seconds(w.now-began) + limit.Burst
		ahead := float64(len(w.away))*(coldCredit*limit.Burst+1) + float64(len(w.nodes)) + overdraft*limit.Rate
		if w.admitted > whole+ahead || w.admitted < .75*whole {
			t.Errorf("seed %d: %.0f admitted of %.0f: %+v, %d regions %d ms apart", seed, w.admitted, whole, limit, 1+len(w.away), w.between/ms)
		}
	}
}
