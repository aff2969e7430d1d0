package upstream

import (
	"slices"
	"time"

	"github.com/cellgate/cellgate/proxy/balance"
	"github.com/cellgate/cellgate/proxy/breaker"
	"github.com/cellgate/cellgate/snapshot"
)

func breakerRule(b snapshot.Breaker) breaker.Rule {
	b = b.OrDefault()
	return breaker.Rule{Off: b.Off, Failures: b.Failures, Calls: b.Calls, Window: b.Window, For: b.For, Probes: b.Probes, Restore: b.Restore}
}

// ChooseOwner is Choose for a write: in the region that owns them, or the first other that may stand in and has a usable
// endpoint (I11). When none has, all of the owner's count as usable.
func (p *Pool) ChooseOwner(a balance.Ask) (endpoint int, barred bool) {
	if len(p.owners) == 0 {
		return p.Choose(a)
	}
	elsewhere := a.Closed
	for _, region := range p.owners {
		a.Closed, a.Strict = elsewhere|p.outside(region), true
		if endpoint, _ = p.Choose(a); endpoint >= 0 {
			return endpoint, false
		}
	}
	a.Closed, a.Strict = elsewhere|p.outside(p.owners[0]), false
	return p.Choose(a)
}

// outside are the slices that don't lie in the region.
func (p *Pool) outside(region string) (closed uint64) {
	for i, z := range *p.zones.Load() {
		if z.at.Region != region {
			closed |= 1 << i
		}
	}
	return closed
}

// Choose picks the endpoint of an attempt in a slice whose breaker lets it pass, and counts the attempt as under way there: End
// or Cancel must follow. -1 means that there is none; barred says that breakers are the reason.
func (p *Pool) Choose(a balance.Ask) (endpoint int, barred bool) {
	for {
		i := p.Set.Pick(a)
		if i < 0 {
			return -1, p.shut(a)
		}
		slice := p.Set.Slice(i)
		if p.breaker(slice).Allow(&p.rule, a.Random, a.Now) {
			p.Set.Begin(i)
			return i, false
		}
		a.Closed |= 1 << slice
	}
}

// Shut says whether no slice lets everybody pass.
func (p *Pool) Shut(now time.Time) bool { return p.shut(balance.Ask{Now: now}) }

// shut says it of the slices that are asked for.
func (p *Pool) shut(a balance.Ask) bool {
	some := false
	for i, z := range *p.zones.Load() {
		if z.State(&p.rule, a.Now) == breaker.Closed && a.Closed>>i&1 == 0 {
			return false
		}
		some = some || z.State(&p.rule, a.Now) != breaker.Closed
	}
	return some
}

// Idempotent says whether the upstream executes a request once, however often its Idempotency-Key comes.
func (p *Pool) Idempotent() bool { return p.once }

// RetryIn is when the first breaker will let somebody pass.
func (p *Pool) RetryIn(now time.Time) time.Duration {
	least := time.Duration(0)
	for _, z := range *p.zones.Load() {
		if left := z.Until().Sub(now); left > 0 && (least == 0 || left < least) {
			least = left
		}
	}
	return least
}

// Cancel takes an attempt back that says nothing about the endpoint.
func (p *Pool) Cancel(i int) {
	p.Set.Cancel(i)
	p.breaker(p.Set.Slice(i)).Cancel()
}

// End finishes an attempt. A breaker opens when too many fail at more than a third of its slice's endpoints: what a single one
// does is for ejection to judge.
func (p *Pool) End(i int, ok bool, took time.Duration, now time.Time) {
	p.Set.End(i, ok, took, now)
	slice := p.Set.Slice(i)
	b := p.breaker(slice)
	if !b.Done(&p.rule, ok, took, now) {
		if !ok && b.State(&p.rule, now) == breaker.Open {
			p.bar(slice)
		}
		return
	}
	if failing, all := p.Set.Failing(slice, now); failing*3 > all {
		b.Open(&p.rule, now)
		p.bar(slice)
		at := (*p.zones.Load())[slice].at
		p.opts.log().Warn("breaker of an upstream is open", "upstream", p.ID, "region", at.Region, "zone", at.Zone, "failing_endpoints", failing, "endpoints", all)
	}
}

// bar lets balancing pass over a slice as long as its breaker is open.
func (p *Pool) bar(slice int) {
	if until := p.breaker(slice).Until(); !until.IsZero() {
		p.Set.Bar(slice, until)
	}
}

// zone is a slice of the endpoints: where they are, and their breaker.
type zone struct {
	at snapshot.Locality
	*breaker.Breaker
}

func (p *Pool) breaker(slice int) *breaker.Breaker { return (*p.zones.Load())[slice].Breaker }

// slice is the number of a zone's slice, new if need be. The endpoints of zones beyond the bound share the last one. It has one
// caller at a time.
func (p *Pool) slice(at snapshot.Locality) int {
	all := *p.zones.Load()
	for i, z := range all {
		if z.at == at {
			return i
		}
	}
	if len(all) == balance.Slices {
		return balance.Slices - 1
	}
	all = append(slices.Clone(all), zone{at, new(breaker.Breaker)})
	p.zones.Store(&all)
	return len(all) - 1
}

// BreakerStats is one slice's breaker at one moment.
type BreakerStats struct {
	Zone   snapshot.Locality
	State  breaker.State
	Opened uint64
}

func (p *Pool) breakerStats(now time.Time) []BreakerStats {
	var all []BreakerStats
	for _, z := range *p.zones.Load() {
		all = append(all, BreakerStats{z.at, z.State(&p.rule, now), z.Opened()})
	}
	return all
}
