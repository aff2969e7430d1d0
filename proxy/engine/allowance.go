package engine

import (
	"sync"
	"time"
)

// allowance bounds what a client may make a connection do for nothing, where no codec of ours keeps the account: it pays for
// what carries nothing and for work that it gives up, and earns by what is carried for it. The zero value has nothing.
type allowance struct {
	mu   sync.Mutex
	most int // bytes; what isn't used is worth no more
	rate int // bytes a second that come by themselves
	left int
	at   time.Time
}

func newAllowance(most, rate int, now time.Time) *allowance {
	return &allowance{most: most, rate: rate, left: most, at: now}
}

// spend says whether there was as much.
func (a *allowance) spend(n int, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left < n {
		since := min(now.Sub(a.at), time.Hour)
		a.add(int(since.Milliseconds()) * a.rate / 1000)
		a.at = now
	}
	a.left -= n
	return a.left >= 0
}

func (a *allowance) earn(n int) {
	a.mu.Lock()
	a.add(n)
	a.mu.Unlock()
}

func (a *allowance) add(n int) { a.left = min(a.left+n, a.most) }
