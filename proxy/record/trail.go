package record

import (
	"time"

	"github.com/cellgate/cellgate/proxy/retry"
)

// Attempt is one try at an upstream, whether a request left for it or not.
type Attempt struct {
	Number   uint8 // in the order in which they began, from 1
	Hedge    bool  // it ran beside another one
	Result   retry.Result
	Status   uint16 // of the answer; 0 = there was none
	Endpoint string
	Start    time.Time
	Took     time.Duration // to the head of its answer, or its end without one
}

// mostAttempts bounds a trail: three by a route's rule, one in place of a stale connection, a hedge beside each. What comes
// beyond is not kept.
const mostAttempts = 8

// Trail is what became of an exchange's attempts. At most two are under way: the main one and its rival. The zero value is ready.
type Trail struct {
	made               [mostAttempts]Attempt
	ended              int
	begun, main, rival uint8
}

// Reset forgets everything.
func (t *Trail) Reset() { t.ended, t.begun, t.main, t.rival = 0, 0, 0, 0 }

// Begin is the start of the next attempt.
func (t *Trail) Begin() {
	t.begun++
	t.main = t.begun
}

// Challenge is the start of one beside the main one.
func (t *Trail) Challenge() {
	t.begun++
	t.rival = t.begun
}

// Begun is the number of the attempt that began last; 0 = none did.
func (t *Trail) Begun() uint8 { return t.begun }

// End keeps what the main attempt came to, EndRival what its rival did.
func (t *Trail) End(a Attempt)      { t.keep(a, t.main) }
func (t *Trail) EndRival(a Attempt) { t.keep(a, t.rival) }

// TakeOver makes the rival the main attempt.
func (t *Trail) TakeOver() { t.main = t.rival }

func (t *Trail) keep(a Attempt, number uint8) {
	if t.ended == mostAttempts {
		return
	}
	a.Number, a.Hedge = number, number == t.rival && number > 0
	if a.Result != retry.Answered {
		a.Status = 0
	}
	t.made[t.ended] = a
	t.ended++
}

// Ended are the attempts that have ended, in the order in which they did.
func (t *Trail) Ended() []Attempt { return t.made[:t.ended] }
