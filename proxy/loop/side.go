//go:build linux

package loop

import "github.com/cellgate/cellgate/proxy/http1"

// side is the client's side of a flight, one per protocol: where the request's body comes from and the answer goes to.
type side interface {
	// collect starts the flight, with a short body whole, so that it can be sent again.
	collect()
	// pump sends on what has come of a body that is streamed.
	pump()
	// passOver passes over the body as far as it is at hand, and says whether that was all of it.
	passOver() bool
	// invite answers the expectation of a client that waits with its body. It is false when the client is broken.
	invite() bool

	// putHint passes on an interim answer, as engine.client's hint does.
	putHint(status int, fields *http1.Head)
	// putHead begins the answer, as engine.client's head does. What is put may be sent before sendOut.
	putHead(length int64, none bool)
	// room is how much body can be put now. After 0 the flight's drained is called when it may be more.
	room() int
	putBody(p []byte)
	putEnd(trailer *http1.Head)
	// sendOut sends what was put. It is false when the client is broken.
	sendOut() bool
	// allSent says whether the exchange may end. If not, drained is called when it may.
	allSent() bool

	// later gives the flight another turn.
	later()
	// finished is called when the flight has ended. goes says that the request was read and the answer given whole, aborted
	// that the client must see that something is missing.
	finished(goes, aborted bool)
	// depart gives the exchange, which has been judged, to the other engine.
	depart()
}
