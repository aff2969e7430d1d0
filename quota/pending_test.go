package quota

import (
	"math/rand/v2"
	"testing"
)

// A region's Asks don't wait for the answers to those before; nothing is wanted or paid twice, and what no answer came to is told again.
func TestAsksOfARegionDontWaitForAnswers(t *testing.T) {
	l := Lease{Limit: Limit{Rate: 1000, Burst: 200}, Terms: OfRegions()}
	now, wanted := int64(5000*ms), int64(0)
	var sent []int64
	for range l.Terms.Asks {
		l.tries, l.first, l.debt = l.tries+50, now-50*ms, l.debt+3
		if a, due := l.Due(now); due {
			sent, wanted = append(sent, now), wanted+a.Want
			if a.Debt != 3 || wanted > l.target {
				t.Errorf("Ask %d: %+v, of %d to be held", len(sent), a, l.target)
			}
		}
		now += l.Terms.Interval / 2
		if _, due := l.Due(now - 1); due {
			t.Error("an Ask within half an interval")
		}
		now += l.Terms.Interval / 2
	}
	if len(sent) != l.Terms.Asks || l.debt != 0 || l.owed != 3*int64(len(sent)) {
		t.Fatalf("%d Asks, %+v", len(sent), l)
	}
	if l.tries, l.parked = 50, 50; l.Urgent(now) {
		t.Error("an Ask ahead of its time, beside those on their way")
	}
	if _, due := l.Due(now); due {
		t.Error("one Ask too many")
	}
	l.Failed(sent[1])
	l.Granted(now, sent[1], Grant{Tokens: 1000}) // late
	l.Granted(now, sent[0], Grant{Tokens: 40})
	if l.balance != 40 || l.debt != 3 || l.owed != 3*int64(len(sent)-2) {
		t.Errorf("one is answered and one given up: %+v", l)
	}
	l.tries = 50
	if a, due := l.Due(sent[2] + l.Terms.TTL); !due || a.Debt != 6 || len(l.asked) != len(sent)-2 {
		t.Errorf("a third is too old: %+v %v, %d on their way", a, due, len(l.asked))
	}
}

// However long answers take, who has nothing to tell any more asks no more.
func TestAQuietRegionAsksNoMore(t *testing.T) {
	w := newWorld(2, Limit{Rate: 1000, Burst: 200}, 3, 9)
	w.between = 300 * ms
	r := rand.New(rand.NewPCG(2, 2))
	for at := int64(0); at < 8000*ms; at += step {
		w.tick()
		for _, n := range w.nodes {
			if at < 2000*ms {
				for range poisson(r, 100*seconds(step)) {
					w.request(n)
				}
			}
		}
	}
	if len(w.mail) > 0 || !w.away[0].Lease.Quiet(w.now+w.away[0].clock) {
		t.Errorf("%d letters on their way", len(w.mail))
	}
}
