package balance

import "slices"

// view is the set as it stands until the next change: who may be chosen, by tier. It is immutable.
type view struct {
	all   []*endpoint // by number
	seats []seat
	tiers [Tiers][]int32 // who may be chosen
	rest  []int32        // ejected ones and such as are down: the last resort
	in    int            // members
	news  uint64         // as of when
	until int64          // unix nanoseconds at which an ejection or a bar ends; 0 = never
}

// seat is one number's place in the set.
type seat struct {
	Member
	in   bool
	left int64 // unix nanoseconds; when it left
}

func (v *view) add(m Member, e *endpoint) {
	v.all, v.seats = append(v.all, e), append(v.seats, seat{clamp(m), true, 0})
}

func clamp(m Member) Member {
	m.Tier, m.Slice = min(max(m.Tier, 0), Tiers-1), min(max(m.Slice, 0), Slices-1)
	return m
}

func (v *view) clone() *view {
	return &view{all: slices.Clone(v.all), seats: slices.Clone(v.seats)}
}

// view is the current one; it is made anew when something has changed or a time has come.
func (s *Set) view(now int64) *view {
	v := s.now.Load()
	if v.news == s.news.Load() && (v.until == 0 || now < v.until) {
		return v
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v = s.now.Load()
	fresh := &view{all: v.all, seats: v.seats}
	s.now.Store(fresh.judge(s, now))
	return fresh
}

// judge fills in who may be chosen at now.
func (v *view) judge(s *Set, now int64) *view {
	v.news = s.news.Load()
	ends := func(at int64) {
		if v.until == 0 || at < v.until {
			v.until = at
		}
	}
	for i, at := range v.seats {
		if !at.in {
			continue
		}
		v.in++
		if bar := s.bars[at.Slice].Load(); bar > now {
			ends(bar)
			continue
		}
		e := v.all[i]
		switch out := e.until.Load(); {
		case out > now:
			ends(out)
			v.rest = append(v.rest, int32(i))
		case e.down.Load():
			v.rest = append(v.rest, int32(i))
		default:
			v.tiers[at.Tier] = append(v.tiers[at.Tier], int32(i))
		}
	}
	return v
}
