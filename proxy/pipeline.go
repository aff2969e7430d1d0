package proxy

import (
	"time"

	"github.com/cellgate/cellgate/proxy/record"
)

// Verdict is what a stage, and the whole pipeline, decides.
type Verdict uint8

// The verdicts. Park: wait for the channel of Wait, then Run again; the exchange resumes at the stage that parked it. Soon: what
// the next stage looks up is on its way from memory; whoever has other exchanges may take those a step further meanwhile.
const (
	Next Verdict = iota
	Reply
	Park
	Soon
)

// stage is one step of the pipeline. It knows nothing of its neighbours.
type stage func(*Exchange) Verdict

// step is a stage and the part of the pipeline that its time counts to.
type step struct {
	part record.Part
	do   stage
}

// stages is the order in which a request is judged (E1). Next after the last means: forward.
var stages = [...]step{
	{record.Route, admit},          // request id, connection protocol, readiness probe
	{record.Route, clientDeadline}, // what time the client gives
	{record.Route, target},         // host and path in their one normal form
	{record.Route, aim},            // from here on the memory is asked ahead for route and credentials
	{record.Route, foresee},        // each step of the way needs what the one before it has found
	{record.Route, foresee},
	{record.Route, foresee},
	{record.Route, matchRoute},   // tenant, route, its timeout
	{record.Policy, protect},     // what the node has no strength for
	{record.Policy, preflight},   // browsers that ask whether their script may ask
	{record.Policy, tail},        // of an evacuated cell: to the cell that has the client now
	{record.Policy, deniedRoute}, // what operators have switched off
	{record.Auth, authenticate},  // who calls, and may they: the denylist counts before anything remembered
	{record.Policy, decide},      // what a service says to it, where one is asked
	{record.Policy, try},         // what is not enforced yet
	{record.Policy, buckets},     // which count it: tenant, consumer, user
	{record.Policy, limits},      // one request out of each
	{record.Policy, payload},     // the size that the request announces
	{record.Policy, rewrite},     // the path as the upstream knows it
	{record.Policy, choose},      // upstream of the route, retry rules
	{record.Policy, withhold},    // what is the gateway's own among what the client sent
}

// answerStages is the order in which an answer is prepared, the gateway's own as well as an upstream's.
var answerStages = [...]func(*Exchange){
	hide,       // what tells of the inside
	identify,   // x-request-id
	explain,    // own answers: reason, problem document, challenges
	share,      // with scripts of other origins
	connection, // drain
	advertise,  // where HTTP/3 is
	passReason, // why another cell answered itself
}

// Run takes the exchange through the pipeline, from where it stands, at this time. It never says Soon.
func (x *Exchange) Run(now time.Time) Verdict {
	for {
		if v := x.Step(now); v != Soon {
			return v
		}
	}
}

// Step is Run as far as to the next Soon.
func (x *Exchange) Step(now time.Time) Verdict {
	x.now = now
	for x.at < len(stages) {
		s := stages[x.at]
		x.watch.Start(time.Now)
		v := s.do(x)
		x.watch.Stop(s.part, v == Park, time.Now)
		if v == Reply || v == Park {
			x.Parked = x.Parked || v == Park
			return v
		}
		if x.at++; v == Soon {
			return Soon
		}
	}
	return Next
}

// Wait is the channel that a parked exchange waits for.
func (x *Exchange) Wait() <-chan struct{} { return x.wait }

// runAnswer starts over, so that a later failure replaces an earlier answer that was not sent.
func (x *Exchange) runAnswer() {
	x.own.Reset()
	for _, s := range answerStages {
		s(x)
	}
}
