package proxy

// Verdict is what a stage, and the whole pipeline, decides.
type Verdict uint8

// The verdicts. Park: wait for the channel of Wait, then Run again; the exchange resumes at the stage that parked it.
const (
	Next Verdict = iota
	Reply
	Park
)

// stage is one step of the pipeline. It knows nothing of its neighbours.
type stage func(*Exchange) Verdict

// stages is the order in which a request is judged (E1). Next after the last means: forward.
var stages = [...]stage{
	admit,          // request id, connection protocol, readiness probe
	clientDeadline, // what time the client gives
	target,         // host and path in their one normal form
	matchRoute,     // tenant, route, its timeout
	tail,           // of an evacuated cell: to the cell that has the client now
	deniedRoute,    // what operators have switched off
	authenticate,   // who calls, and may they: the denylist counts before anything remembered
	limits,         // tenant, consumer, user
	payload,        // the size that the request announces
	choose,         // upstream of the route, retry rules
}

// answerStages is the order in which an answer is prepared, the gateway's own as well as an upstream's.
var answerStages = [...]func(*Exchange){
	identify,   // x-request-id
	explain,    // own answers: reason, problem document, challenges
	connection, // drain
	advertise,  // where HTTP/3 is
	passReason, // why another cell answered itself
}

// Run takes the exchange through the pipeline, from where it stands.
func (x *Exchange) Run() Verdict {
	for x.at < len(stages) {
		v := stages[x.at](x)
		if v != Next {
			x.Parked = x.Parked || v == Park
			return v
		}
		x.at++
	}
	return Next
}

// Wait is the channel that a parked exchange waits for.
func (x *Exchange) Wait() <-chan struct{} { return x.wait }

// runAnswer starts over, so that a later failure replaces an earlier answer that was not sent.
func (x *Exchange) runAnswer() {
	x.extras, x.text, x.body = 0, x.text[:0], span{}
	for _, s := range answerStages {
		s(x)
	}
}
