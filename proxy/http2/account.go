package http2

import "time"

// account bounds what a client may make us do for nothing: it pays for frames that carry nothing and for work that it
// gives up, and earns by what is carried for it. What its own small windows cut into crumbs earns next to nothing. Ordinary clients never come near its end (CVE-2019-9512 and kin,
// CVE-2023-44487, CVE-2024-27316).
type account struct {
	left int
	at   time.Time // when it was last topped up
}

const (
	accountMost = 2000
	accountRate = 500 // per second

	costFrame  = 1  // pings, priorities, window updates, empty data, unknown frames
	costState  = 10 // settings, resets, faults, refused streams, empty pieces of header blocks
	earnAnswer = 10 // a whole answer
	earnPiece  = 2  // a piece of an answer that leaves its windows open: clients ping with each to find out their bandwidth
	earnData   = 256
)

func (a *account) start(now time.Time) { a.left, a.at = accountMost, now }

func (a *account) spend(n int, now time.Time) bool {
	if a.left < n {
		a.earn(int(min(now.Sub(a.at).Milliseconds(), 1000*accountMost/accountRate) * accountRate / 1000))
		a.at = now
	}
	a.left -= n
	return a.left >= 0
}

func (a *account) earn(n int) { a.left = min(a.left+max(n, 0), accountMost) }
