//go:build linux

package loop

import (
	"errors"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/proxy/engine"
)

// exhausted says whether an error means that there is no descriptor left.
func exhausted(err error) bool { return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) }

// makeRoom frees a descriptor, if one is held for nothing: an upstream connection that lies idle, or else an idle client's.
func (l *loop) makeRoom() bool {
	var oldest *conn
	for _, a := range l.lanes {
		if u := a.oldest(); u != nil && (oldest == nil || u.idle.Before(oldest.idle)) {
			oldest = u
		}
	}
	if oldest == nil {
		return l.evict()
	}
	oldest.lane.remove(oldest)
	oldest.close()
	return true
}

// evict lets an idle client go, or has the other engine ask one of its own. If there is none, another loop is asked, so that
// whoever comes next may have room.
func (l *loop) evict() bool {
	if l.evictOwn() || l.e.rest.Evict() {
		return true
	}
	if other := l.e.loops[rand.IntN(len(l.e.loops))]; other != l {
		other.post(func() { other.evictOwn() })
	}
	return false
}

func (l *loop) evictOwn() bool {
	var oldest *client
	long := l.now.Add(-engine.EvictAfter)
	for range min(engine.EvictLook, len(l.slots)) {
		l.hand = (l.hand + 1) % len(l.slots)
		if c := l.slots[l.hand].client; c != nil {
			if at, idle := c.idles(); idle && at.Before(long) && !l.hasData(c.fd) {
				oldest, long = c, at
			}
		}
	}
	if oldest == nil {
		return false
	}
	l.e.server.Evicted.Add(1)
	oldest.part()
	return true
}

// idles says since when the client has asked for nothing, if nothing of it waits in the loop.
func (c *client) idles() (since time.Time, is bool) {
	switch {
	case c.canRead || c.ahead.there || len(c.out) > 0:
	case c.state == waiting && c.r == c.w:
		return c.l.wheel.at(&c.timer).Add(-c.idle()), true
	case c.state == framed:
		return c.h2.codec.Idle()
	}
	return since, false
}

// part ends an idle connection as its protocol ends it.
func (c *client) part() {
	l := c.l
	current, serving := l.current, l.serving
	l.attend(c.slot)
	switch {
	case c.h2 != nil: // what it may have sent in this moment it can repeat: GOAWAY says so
		c.h2.touch()
		c.h2.codec.HungUp(l.now)
		c.h2.flush()
	case c.secure != nil:
		c.secure.farewell()
	}
	c.drop()
	l.current, l.serving = current, serving
}
