// Package retry is the small machine that takes an exchange to its upstream: pick → send → judge → retry, and the
// budget that keeps retries from becoming a load of their own. It decides; an engine acts.
//
//	m := retry.Machine{Rule: …, Idempotent: …, Budget: …}
//	for {
//		endpoint := …; result := send(endpoint)
//		if !m.Again(result, now) { break }        // deliver result
//	}
package retry

import "time"

// Result is what one attempt came to.
type Result uint8

// The results of an attempt.
const (
	Answered       Result = iota
	ConnectFailed         // refused, unreachable, TLS failed: nothing was sent
	ConnectTimeout        // nothing was sent
	Stale                 // a pooled connection broke, or was being closed, before any byte of an answer
	Refused               // the upstream says that it did nothing with the request
	Reset                 // a fresh connection broke before the whole head of an answer
	Invalid               // what came is no HTTP
	TimedOut              // no answer in time
	Fatal                 // the client is the cause, or time is up: nothing may follow
)

// String is a word for metrics and traces.
func (r Result) String() string {
	return [...]string{"answered", "connect_failed", "connect_timeout", "stale", "refused", "reset", "invalid", "timed_out", "given_up"}[r]
}

// Rule is what a route allows: Attempts retries after the first, under the conditions.
type Rule struct {
	Attempts         int
	OnConnectFailure bool
	OnReset          bool
	On502            bool
	On503            bool
	On504            bool
}

// Machine is the state of one exchange's attempts.
type Machine struct {
	Rule Rule
	// Reads are GET, HEAD and OPTIONS.
	Reads bool
	// Idempotent: it may be sent twice (I7), as reads may, and what has a key that the upstream knows it by.
	Idempotent bool
	// Replayable: the body is empty or still whole in memory.
	Replayable bool
	Budget     *Budget

	made  int // retries decided
	stale bool
}

// Attempt is one attempt's result with what bears on a repetition.
type Attempt struct {
	Result Result
	Status int  // with Answered
	Sent   bool // at least one byte of the request may have reached the upstream
}

// Again decides whether another attempt follows, and if so takes it out of the budget. A request whose bytes left once
// is repeated only when it is idempotent and its body is at hand; one that was provably never sent may always be.
func (m *Machine) Again(a Attempt, now time.Time) bool {
	if a.Sent && !(m.Idempotent && m.Replayable) {
		return false
	}
	if (a.Result == Stale || a.Result == Refused) && !m.stale {
		// The one had been idle, the other was full: this says nothing about the next. Once, on any route.
		m.stale = true
		return m.Budget.Take(now)
	}
	if m.made >= m.Rule.Attempts || !m.covered(a) || !m.Budget.Take(now) {
		return false
	}
	m.made++
	return true
}

func (m *Machine) covered(a Attempt) bool {
	switch a.Result {
	case ConnectFailed, ConnectTimeout, Refused:
		return m.Rule.OnConnectFailure
	case Stale, Reset:
		return m.Rule.OnReset
	case Answered:
		return m.Reads && (a.Status == 502 && m.Rule.On502 || a.Status == 503 && m.Rule.On503 || a.Status == 504 && m.Rule.On504)
	}
	return false
}
