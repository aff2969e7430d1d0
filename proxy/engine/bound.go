package engine

import "time"

// A node that has no room for another client gives it that of one whose connection lies idle: who comes has something to ask, and
// nobody keeps others out by holding connections open for nothing. So nginx does; clients of HTTP know that an idle connection
// may end (RFC 9112, section 9.5).
const (
	// EvictAfter is how long a connection must have been idle: who is between two requests keeps it.
	EvictAfter = time.Second
	// EvictLook is among how many the one is sought that has been idle longest. To look at all would cost more than the new
	// connection is worth.
	EvictLook = 64

	sayFailures = 10 * time.Second
)

// Room says whether another client connection is taken, be it in the place of an idle one, which evict closes. It counts, and
// logs when there is no free room any more, and when a twentieth is free again, not every connection.
func (e *Engine) Room(evict func() bool) bool {
	n, most := e.server.Connections.Load(), e.opts.MaxConnections
	over := n >= most
	if over != e.full.Load() && (over || n <= most-most/20) && e.full.Swap(over) != over {
		e.opts.Log.Warn("connections at their bound", "full", over, "bound", most)
	}
	if !over || evict() {
		return true
	}
	e.server.NoRoom.Add(1)
	return false
}

// Unaccepted logs that the kernel has given no connection, at most once in sayFailures.
func (e *Engine) Unaccepted(err error) {
	e.failures.Add(1)
	now, said := time.Now().UnixNano(), e.saidFailures.Load()
	if now-said >= int64(sayFailures) && e.saidFailures.CompareAndSwap(said, now) {
		e.opts.Log.Warn("no connection could be taken", "error", err, "times", e.failures.Swap(0))
	}
}

// Evict asks an idle client of the engine to go. It is false if there is none.
func (e *Engine) Evict() bool {
	long := time.Now().Add(-EvictAfter)
	did := e.evictHTTP1(long) || e.h2.evict(long) || e.evictHTTP3(long)
	if did {
		e.server.Evicted.Add(1)
	}
	return did
}

func (e *Engine) evictHTTP1(long time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	var oldest *conn
	since, looked := long.UnixNano(), 0
	for c := range e.conns { // in no order
		if at := c.waits.Load(); at != 0 && at < since {
			oldest, since = c, at
		}
		if looked++; looked == EvictLook {
			break
		}
	}
	if oldest == nil || !oldest.waits.CompareAndSwap(since, 0) {
		return false
	}
	_ = oldest.nc.SetReadDeadline(past)
	return true
}

func (h *h2Front) evict(long time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	var oldest *h2conn
	looked := 0
	for q := range h.conns {
		if at, idle := q.idle(); idle && at.Before(long) {
			oldest, long = q, at
		}
		if looked++; looked == EvictLook {
			break
		}
	}
	if oldest == nil {
		return false
	}
	oldest.lock()
	oldest.codec.HungUp(time.Now())
	oldest.unlock(true)
	return true
}

func (q *h2conn) idle() (since time.Time, is bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.codec.Idle()
}

func (e *Engine) evictHTTP3(long time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	var oldest *h3Conn
	looked, now := 0, time.Now()
	for c := range e.quic {
		if at, idle := c.idle(); idle && at.Before(long) && !c.isOld(now) {
			oldest, long = c, at
		}
		if looked++; looked == EvictLook {
			break
		}
	}
	if oldest == nil {
		return false
	}
	oldest.ageBy(now)
	return true
}
