//go:build linux

package loop

import (
	"syscall"
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/relay"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/reason"
)

// flight is one exchange under way on a loop. It is used again for another when it has ended.
//
//	parked ⇄ judged ─▶ collecting ─▶ sending ─▶ queued ─▶ resolving ─▶ connecting ─▶ awaiting ─▶ relaying ─▶ draining
//	                                    ▲ └─────────┴── fails ──┴────────────┘
//	                                    └─ backingOff ◀┘
//
// Phases that are not needed are passed over. From any phase it can end with an answer of its own.
type flight struct {
	l      *loop
	client *client         // the connection that it came on
	side   side            // where on it
	timer  *timer          // of the side, for the flight to set
	x      *proxy.Exchange // nil once it has been handed over
	gen    uint32          // changes with every use and every attempt: who comes back from elsewhere compares it
	phase  phase

	// The request.
	upload upload
	body   []byte   // when it is whole
	full   bool     // body is the whole request body
	kept   [][]byte // buffers that the head lies in, besides the client's

	// The attempt.
	trying   bool // the balancer counts it
	lane     *lane
	conn     *conn
	wish     *wish
	fresh    bool // the next one wants a new connection
	sent     bool // a byte of this attempt may have reached the upstream
	interims int
	took     time.Time // start of the attempt
	deadline time.Time // when attempts must have ended
	by       time.Time // when the phase must have ended; zero = at the deadline

	// The answer.
	res      http1.Response
	kind     http1.Body
	left     int64 // of a counted body
	chunks   http1.Chunks
	rest     []byte    // of the body, which the client doesn't take yet
	stuck    bool      // the client takes no more for now
	takeBy   time.Time // when it must have taken what waits; zero = nothing does
	answered bool      // its head was written
	read     bool      // of an own answer: the request was read whole
	aborted  bool      // the client must see that the answer is not whole, or is gone
	goes     bool      // all went well so far
	since    time.Time // of a wait for more of the upstream's body
	ending   relay.Ending
}

type phase uint8

const (
	judged phase = iota
	parked
	collecting
	sending
	queued
	resolving
	connecting
	awaiting
	backingOff
	relaying
	draining
)

const keepFlights = 256

func (l *loop) takeFlight() *flight {
	var f *flight
	if n := len(l.flights); n > 0 {
		f = l.flights[n-1]
		l.flights = l.flights[:n-1]
	} else {
		f = &flight{l: l}
	}
	if f.x == nil {
		f.x = l.e.server.Acquire()
	}
	return f
}

// of says where the flight has come from.
func (f *flight) of(c *client, s side, t *timer, protocol string) {
	f.client, f.side, f.timer = c, s, t
	f.x.Start = f.l.now
	f.x.Peer, f.x.PeerText, f.x.TLS, f.x.Protocol, f.x.Via, f.x.AltSvc, f.x.Certificates = c.peer, c.text, c.secure != nil, protocol, "", "", nil
	if c.secure != nil {
		f.x.AltSvc, f.x.Certificates = c.secure.altSvc, c.secure.shown
	}
}

// recycle makes the flight ready for another exchange.
func (f *flight) recycle() {
	for i, b := range f.kept {
		f.l.buffers.put(b)
		f.kept[i] = nil
	}
	f.gen++
	f.client, f.side, f.timer, f.phase, f.body, f.full, f.kept = nil, nil, nil, judged, nil, false, f.kept[:0]
	f.lane, f.conn, f.wish, f.fresh, f.sent = nil, nil, nil, false, false
	f.rest, f.takeBy, f.stuck, f.answered, f.read, f.aborted, f.goes = nil, time.Time{}, false, false, false, false, false
	if len(f.l.flights) < keepFlights {
		f.l.flights = append(f.l.flights, f)
	} else if f.x != nil {
		f.l.e.server.Release(f.x)
	}
}

// serve says what a panic from here on costs.
func (f *flight) serve() { f.l.current, f.l.serving = f.client.slot, f }

// keep holds a buffer until the exchange has ended.
func (f *flight) keep(b []byte) { f.kept = append(f.kept, b) }

// begin takes up an exchange whose head has been read.
func (f *flight) begin() {
	x := f.x
	f.l.e.server.InFlight.Add(1)
	x.Closing = x.Request.Close || x.Start.UnixNano() > f.client.old
	f.upload.begin(&x.Request)
	f.toJudge()
}

// refuse answers a request whose head could not be read.
func (f *flight) refuse(why reason.Reason) {
	f.l.e.server.InFlight.Add(1)
	f.upload.done = false
	f.x.Refuse(why)
	f.answer(false)
}

// toJudge puts the exchange among those that this turn takes through the pipeline.
func (f *flight) toJudge() {
	f.phase = judged
	f.l.judging = append(f.l.judging, sender{f, f.gen})
}

// judge takes the exchange a step through the pipeline. It is true when there is another.
func (f *flight) judge() (more bool) {
	f.serve()
	switch f.x.Step(f.l.now) {
	case proxy.Soon:
		return true
	case proxy.Next:
		f.forward()
	case proxy.Reply:
		f.answer(f.side.passOver())
	case proxy.Park:
		f.park()
	}
	return false
}

// park waits for what the pipeline waits for, at most until the deadline.
func (f *flight) park() {
	f.phase = parked
	f.arm()
	l, gen, come, until := f.l, f.gen, f.x.Wait(), f.x.Deadline
	l.e.helpers.Go(func() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		select {
		case <-come:
			l.post(func() {
				if f.gen == gen && f.phase == parked {
					f.toJudge()
				}
			})
		case <-t.C:
		case <-l.e.over:
		}
	})
}

// forward begins to carry the exchange out, or gives it to the engine that can.
func (f *flight) forward() {
	if f.x.Tunnel || !f.x.Pool.Plain() || f.x.Hedged() {
		f.side.depart()
		return
	}
	if f.full = f.upload.done; f.full {
		f.start()
		return
	}
	f.side.collect()
}

func (f *flight) start() {
	if f.x.Machine.Replayable = f.full; f.full {
		f.x.BytesIn = int64(len(f.body))
	}
	if len(f.body) > 0 || f.x.Parked {
		f.l.clock()
	}
	f.attempt()
}

// arm sets the timer to when the flight's next limit is reached.
func (f *flight) arm() { f.l.wheel.set(f.timer, f.due()) }

func (f *flight) due() time.Time {
	at := f.limit()
	if by := f.client.goneBy; !by.IsZero() && by.Before(at) {
		at = by
	}
	if f.starved() {
		if by := f.upload.by(f.x.Deadline); by.Before(at) {
			at = by
		}
	}
	return at
}

// limit is when the phase must have ended.
func (f *flight) limit() time.Time {
	switch f.phase {
	case parked:
		return f.x.Deadline
	case collecting:
		return f.upload.by(f.x.Deadline)
	case draining:
		return f.takeBy
	case relaying:
		if f.stuck {
			return f.takeBy
		}
	}
	if f.by.IsZero() || f.deadline.Before(f.by) {
		return f.deadline
	}
	return f.by
}

// writeGrace is how much longer than its exchange a client may take to read its answer.
const writeGrace = 3 * time.Second

// filled notes that the client takes no more for now. What waits since then is to be taken in time, however little at once.
func (f *flight) filled() {
	if f.takeBy.IsZero() {
		f.takeBy = relay.TakeBy(f.l.now, f.l.e.opts.TakeTime, f.x.Deadline.Add(writeGrace))
	}
}

// expired is called when a limit has been reached.
func (f *flight) expired() {
	c, now := f.client, f.l.clock()
	if by := c.goneBy; !by.IsZero() && !now.Before(by) {
		if c.left() {
			f.clientGone()
			return
		}
	}
	switch {
	case f.starved() && !now.Before(f.upload.by(f.x.Deadline)):
		f.uploadFailed(reason.BodyTimeout)
	case now.Before(f.limit()):
		f.arm()
	default:
		f.late()
	}
}

// late ends a phase whose time is up.
func (f *flight) late() {
	switch f.phase {
	case parked:
		f.x.Fail(reason.TotalTimeout)
		f.answer(false)
	case collecting:
		f.fail(reason.BodyTimeout)
	case queued:
		f.failed(retryFatal, reason.PoolFull)
	case resolving, connecting:
		f.failed(retryConnectTimeout, reason.ConnectTimeout)
	case awaiting:
		f.failed(relay.Late(f.starved()))
	case backingOff:
		f.attempt()
	case relaying:
		f.truncate(relay.BrokenOff(!f.l.now.Before(f.x.Deadline), true))
	case draining:
		f.clientBroke()
	}
}

// drained is called when the client may take more, or has taken all that was sent.
func (f *flight) drained() {
	switch f.phase {
	case draining:
		f.finish(f.goes)
	case relaying:
		if f.conn != nil && f.stuck { // else nothing of the upstream's was kept waiting
			f.by = f.idleBy()
		}
		f.more()
	}
}

// goOn is another turn of bodies in motion.
func (f *flight) goOn() {
	side := f.side
	if f.streaming() {
		side.pump()
	}
	switch {
	case f.side != side:
	case f.stuck && f.phase == relaying:
		f.drained()
	case f.conn != nil && f.conn.canRead:
		f.hear()
	}
}

// clientGone ends an exchange that nobody waits for.
func (f *flight) clientGone() {
	f.aborted = true
	switch {
	case f.phase == relaying:
		f.truncate(reason.ClientGone)
	case f.phase == draining:
		f.clientBroke()
	case f.trying:
		f.failed(retryFatal, reason.ClientGone)
	default:
		f.fail(reason.ClientGone)
	}
}

// clientBroke ends an exchange whose answer could not be written.
func (f *flight) clientBroke() {
	f.aborted = true
	if !f.answered {
		f.clientGone()
		return
	}
	f.x.Truncated = f.x.Reason == reason.None
	f.finish(false)
}

// fail answers in the gateway's own name.
func (f *flight) fail(why reason.Reason) {
	f.x.Fail(why)
	if why == reason.ClientGone {
		f.aborted = true
		f.finish(false)
		return
	}
	f.answer(f.full)
}

// answer sends an own answer. read says whether the request was read whole; if not, the connection can't go on.
func (f *flight) answer(read bool) {
	x := f.x
	if !read {
		x.Closing = true
	}
	b := x.Body()
	f.read, f.answered = read, true
	f.side.putHead(int64(len(b)), x.Head())
	if f.kind, f.left = http1.Counted, int64(len(b)); x.Head() {
		b = nil
	}
	f.phase = relaying
	if f.pass(b, len(b) == 0); f.phase == relaying {
		f.arm()
	}
}

// over ends the exchange once all is written. clean says that the request was read whole and the answer given whole.
func (f *flight) over(clean bool) {
	f.goes = clean && !f.aborted && f.upload.done
	if !f.side.allSent() {
		f.phase = draining
		f.filled()
		f.arm()
		return
	}
	f.finish(f.goes)
}

// finish ends the exchange.
func (f *flight) finish(goes bool) {
	f.giveUp()
	aborted, side := f.aborted, f.side
	f.x.Finish(f.l.now)
	f.l.e.server.InFlight.Add(-1)
	f.recycle()
	side.finished(goes, aborted)
}

// breakOff ends the flight of a connection that is gone already. begun says that it counts as an exchange.
func (f *flight) breakOff(begun bool) {
	l, x := f.l, f.x
	if x == nil {
		l.e.server.InFlight.Add(-1)
		f.recycle()
		return
	}
	f.giveUp()
	if begun {
		if f.answered {
			x.Truncated = x.Reason == reason.None
		} else {
			x.Fail(reason.ClientGone)
		}
		x.Finish(l.clock())
		l.e.server.InFlight.Add(-1)
	}
	x.Request.Blank()
	f.recycle()
}

// read reads once from the upstream into b. e is 0 with n = 0 at the end of what it sends.
func (u *conn) read(b []byte) (n int, e syscall.Errno) {
	n, more, e := u.lane.l.receive(&u.socket, b)
	if e == syscall.EAGAIN {
		u.canRead = false
	} else if n > 0 {
		u.started = true
		u.canRead = u.ended || more
	}
	return n, e
}

// wish is a flight's place in a pool's queue.
type wish struct {
	f      *flight
	gen    uint32
	lane   *lane
	ticket *upstream.Ticket
}

func (w *wish) wanted() bool { return w.f.gen == w.gen && w.f.phase == queued }

// granted is called, on whatever goroutine freed a place, when the place is the wish's.
func (w *wish) granted() {
	if !w.lane.l.post(w.place) {
		w.lane.pool.Exit()
	}
}

// place uses the granted place, or gives it back if nobody needs it any more.
func (w *wish) place() {
	w.lane.open++
	if !w.wanted() {
		w.lane.exit()
		return
	}
	w.f.serve()
	w.f.wish = nil
	w.f.connect(w.f.x.Endpoint)
}

// given uses a connection that another exchange of the loop has no use for, or its place.
func (w *wish) given(u *conn) {
	f := w.f
	f.wish = nil
	if !f.x.Pool.StandsIn(u.endpoint, f.x.Endpoint) {
		u.shut()
		f.connect(f.x.Endpoint)
		return
	}
	relay.Moved(f.x, u.endpoint)
	u.reused = true
	f.use(u)
}
