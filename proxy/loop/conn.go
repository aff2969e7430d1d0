//go:build linux

package loop

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/proxy/upstream"
)

// conn is one connection to an endpoint. It belongs to a flight, or lies idle in its lane.
type conn struct {
	socket
	lane     *lane
	endpoint int
	flight   *flight // nil = idle

	reused  bool   // it has carried an exchange before
	started bool   // a byte of the answer has come
	in      []byte // the beginning of a head that isn't whole yet
	born    time.Time
	idle    time.Time // since when
}

// lane is what a loop holds of a pool: its connections, within the places that the pool has given.
//
// Invariant: open counts the places taken, each by a connection, or by an attempt that is about to make one.
type lane struct {
	l     *loop
	pool  *upstream.Pool
	share *upstream.Share
	idle  [][]*conn // per endpoint, the one used last at the end
	idles int
	open  int
}

func (l *loop) lane(p *upstream.Pool) *lane {
	if l.last != nil && l.last.pool == p {
		return l.last
	}
	a := l.lanes[p]
	if a == nil {
		a = &lane{l: l, pool: p, idle: make([][]*conn, p.Endpoints())}
		a.share = p.Join(func() { l.post(a.yield) })
		l.lanes[p] = a
		l.sweepSoon()
	}
	l.last = a
	return a
}

// pop takes an idle connection to the endpoint.
func (a *lane) pop(endpoint int) *conn {
	idle := a.idle[endpoint]
	n := len(idle)
	if n == 0 {
		return nil
	}
	u := idle[n-1]
	idle[n-1] = nil
	a.idle[endpoint] = idle[:n-1]
	a.count(-1)
	if a.l.now.Sub(u.idle) > upstream.IdleTimeout {
		u.close()
		return a.pop(endpoint)
	}
	u.reused = true
	return u
}

func (a *lane) count(d int) {
	a.idles += d
	a.share.Idle.Store(int64(a.idles))
}

// enter takes a place for a new connection: a free one of the pool's, or that of an idle connection to another endpoint.
func (a *lane) enter() bool {
	if a.pool.Enter() {
		a.open++
		return true
	}
	if u := a.oldest(); u != nil {
		a.remove(u)
		u.shut()
		return true // open counts on
	}
	return false
}

func (a *lane) oldest() (u *conn) {
	for _, idle := range a.idle {
		if len(idle) > 0 && (u == nil || idle[0].idle.Before(u.idle)) {
			u = idle[0]
		}
	}
	return u
}

// exit gives a place back.
func (a *lane) exit() {
	a.open--
	a.pool.Exit()
}

// put lays a connection aside whose exchange has ended well, or passes it or its place to whoever waits for one. It may be
// used again only after the next wait for events: what the upstream sends on with its answer shows there.
func (a *lane) put(u *conn) {
	u.flight, u.idle = nil, a.l.now
	if a.pool.Retired() || u.idle.Sub(u.born) >= upstream.MaxAge {
		u.close()
		return
	}
	a.l.released = append(a.l.released, u)
}

// shelve makes a released connection available.
func (a *lane) shelve(u *conn) {
	if a.pool.Wanted() {
		own, passed := a.pool.Pass(a.share)
		if passed {
			a.open--
			u.shut()
			return
		}
		if own != nil {
			own.Holder.(*wish).given(u)
			return
		}
	}
	a.idle[u.endpoint] = append(a.idle[u.endpoint], u)
	a.count(1)
}

// remove takes a connection out of the idle ones, if it is among them.
func (a *lane) remove(u *conn) {
	idle := a.idle[u.endpoint]
	if i := slices.Index(idle, u); i >= 0 {
		a.idle[u.endpoint] = slices.Delete(idle, i, i+1)
		a.count(-1)
	}
}

// yield gives idle connections up that are wanted elsewhere, and all of a retired pool.
func (a *lane) yield() {
	for a.idles > 0 && (a.pool.Wanted() || a.pool.Retired()) {
		u := a.oldest()
		a.remove(u)
		u.close()
	}
	if a.pool.Retired() && a.open == 0 {
		a.end()
	}
}

// end closes what lies idle and leaves the pool.
func (a *lane) end() {
	for i := range a.idle {
		for len(a.idle[i]) > 0 {
			u := a.idle[i][0]
			a.remove(u)
			u.close()
		}
	}
	a.pool.Leave(a.share)
	delete(a.l.lanes, a.pool)
	if a.l.last == a {
		a.l.last = nil
	}
}

// sweep closes connections that lay idle for too long and forgets pools that are gone.
func (l *loop) sweep() {
	for _, a := range l.lanes {
		for i := range a.idle {
			for len(a.idle[i]) > 0 && l.now.Sub(a.idle[i][0].idle) > upstream.IdleTimeout {
				u := a.idle[i][0]
				a.remove(u)
				u.close()
			}
		}
		a.yield()
	}
	l.sweepSoon()
}

const sweepEvery = 5 * time.Second

func (l *loop) sweepSoon() {
	if len(l.lanes) > 0 {
		l.wheel.set(&l.sweeping, l.now.Add(sweepEvery))
	}
}

// close closes the connection and gives its place back.
func (u *conn) close() {
	u.shut()
	u.lane.exit()
}

// shut closes the connection; its place goes elsewhere.
func (u *conn) shut() {
	l := u.lane.l
	unix.Close(int(u.fd))
	l.leave(u.slot)
	u.fd, u.flight, u.ahead = -1, nil, ahead{}
	u.unsend(l)
	l.buffers.put(u.in)
	u.in = nil
}
