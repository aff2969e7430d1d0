package http2

import "time"

// Times are the patience of a connection. Zero values are production's.
type Times struct {
	Idle time.Duration // without a stream; 75 s; a server's end alone
	Head time.Duration // for the preface with the first settings, and for whatever is begun but data; 10 s
	Ping time.Duration // of silence before the client is asked whether it is there; 30 s; a server's end alone
	Pong time.Duration // for its answer; 10 s
}

func (t *Times) fill() {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&t.Idle, 75*time.Second)
	set(&t.Head, 10*time.Second)
	set(&t.Ping, 30*time.Second)
	set(&t.Pong, 10*time.Second)
}

// never is when an end has something to do that waits for nothing.
const never = 24 * time.Hour

// leaveOver is how long a client that answers no ping may open streams after it was asked not to.
const leaveOver = time.Second

type clock struct {
	read time.Time // when the last bytes came
	idle time.Time // since when there is no stream
	head time.Time // when what is begun but not complete began
	ping time.Time // when the client was asked; zero = not
}

func (k *clock) start(now time.Time) { k.read, k.idle, k.head = now, now, now }

// leaving is how far the end of the connection has come (RFC 9113, section 6.8).
type leaving struct {
	asked bool      // the client is to leave
	waits bool      // the first GOAWAY, which refuses nothing yet, waits for its first stream
	at    time.Time // when the first GOAWAY was sent, or the wait for it began
	said  bool      // the last one is out
	upTo  uint32    // streams above are nobody's, by the last one of whoever counts
	heard bool      // the other side has sent one
	code  Code      // for the reason that it gave
	mute  bool      // and nothing else can come from it
}

var leavePing = [8]byte{'l', 'e', 'a', 'v', 'e'}

// Leave asks the client to open its next streams on another connection. Those that are on their way are served: the last
// stream is named only once the client has seen the first GOAWAY. A client that has opened none yet is asked when it does, or
// after leaveOver: one that was about to would take the connection for one that failed, and its request with it.
func (c *conn) Leave(now time.Time) {
	if c.leaving.asked || c.failed {
		return
	}
	c.leaving.asked, c.leaving.waits, c.leaving.at = true, true, now
	if c.last > 0 {
		c.sayFirst(now)
	}
}

func (c *conn) sayFirst(now time.Time) {
	c.leaving.waits, c.leaving.at = false, now
	c.out = appendGoAway(c.out, maxStreamID, NoError)
	c.out = appendPing(c.out, 0, leavePing)
}

// HungUp is for a client that will send no more: what it has asked for whole is answered, and the rest is given up, streams
// that Gone is true for from now on. What is sent to say so shows whether somebody is there, whom nothing else can be asked.
func (c *conn) HungUp(now time.Time) {
	if c.leaving.mute || c.failed {
		return
	}
	c.leaving.mute = true
	for s := range c.Held {
		if !s.is(heard | ours | theirs) {
			s.state |= theirs
			c.uncount(s)
		}
	}
	c.Leave(now)
	c.sayLast()
}

// Leaving says whether the client has been asked to.
func (c *conn) Leaving() bool { return c.leaving.asked }

func (c *conn) sayLast() {
	if c.leaving.asked && !c.leaving.said {
		c.leaving.said, c.leaving.upTo = true, c.last
		c.out = appendGoAway(c.out, c.last, NoError)
	}
}

// Idle says since when there is no stream, if there is none and more may come.
func (c *conn) Idle() (since time.Time, is bool) {
	return c.clock.idle, c.streams.n == 0 && !c.failed && !c.leaving.said
}

// Due is when Tick is to be called if nothing comes before.
func (c *conn) Due() time.Time {
	due := c.clock.read.Add(c.times.Ping)
	switch {
	case c.leaving.mute: // it has nothing to answer with
		return c.clock.read.Add(never)
	case c.client:
		due = c.clock.read.Add(never)
	}
	if !c.clock.ping.IsZero() {
		due = c.clock.ping.Add(c.times.Pong)
	}
	first := func(t time.Time) {
		if t.Before(due) {
			due = t
		}
	}
	if c.streams.n == 0 && !c.client {
		first(c.clock.idle.Add(c.times.Idle))
	}
	if c.begunFrame() {
		first(c.clock.head.Add(c.times.Head))
	}
	if c.leaving.asked && !c.leaving.said && !c.client {
		first(c.leaving.at.Add(leaveOver))
	}
	return due
}

// Tick does what the time asks for.
func (c *conn) Tick(now time.Time) {
	past := func(since time.Time, d time.Duration) bool { return !since.IsZero() && !now.Before(since.Add(d)) }
	switch {
	case c.failed, c.leaving.mute:
		return
	case c.begunFrame() && past(c.clock.head, c.times.Head):
		c.fail(EnhanceYourCalm)
	case past(c.clock.ping, c.times.Pong):
		c.fail(NoError)
	case c.client: // its owner looks after the rest
	case c.streams.n == 0 && past(c.clock.idle, c.times.Idle):
		c.Leave(now)
		c.sayLast()
	case c.leaving.waits && !c.leaving.said && past(c.leaving.at, leaveOver):
		c.sayFirst(now)
	case c.leaving.asked && past(c.leaving.at, leaveOver):
		c.sayLast()
	}
	if !c.failed && !c.client && past(c.clock.read, c.times.Ping) {
		c.Ask(now)
	}
}

// Ask asks the other side whether it is there. If nothing comes within Times.Pong the connection fails.
func (c *conn) Ask(now time.Time) {
	if !c.failed && c.clock.ping.IsZero() {
		c.clock.ping = now
		c.out = appendPing(c.out, 0, [8]byte{})
	}
}
