//go:build linux

package loop

import (
	"syscall"
	"time"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/relay"
	"github.com/cellgate/cellgate/reason"
)

// more passes on what there is of the body. Nothing is read before the client has taken what was read before.
func (f *flight) more() {
	u, side, l := f.conn, f.side, f.l
	for n := 0; f.side == side && f.phase == relaying && f.conn == u; n++ {
		room := side.room()
		if f.stuck = room == 0; f.stuck {
			f.filled()
			break
		}
		if len(f.rest) > 0 {
			f.pass(f.rest, false)
			continue
		}
		f.takeBy = time.Time{}
		if u == nil || !u.canRead {
			break
		}
		if n == turns {
			side.later()
			return
		}
		got, e := u.read(l.in[:min(room, len(l.in))])
		switch {
		case got > 0:
			now := l.clock()
			f.x.Waited += now.Sub(f.since)
			f.since, f.by = now, f.idleBy()
			f.pass(l.in[:got], false)
		case e == syscall.EAGAIN:
		case e == 0 && f.kind == http1.UntilClose:
			f.pass(nil, true)
		default:
			f.truncate(reason.UpstreamReset)
		}
	}
	if f.side == side && f.phase == relaying {
		f.arm()
	}
}

// pass gives the client what b holds of the body, as much as it takes; the rest waits. end says that the body is over.
func (f *flight) pass(b []byte, end bool) {
	var fault error
	for len(b) > 0 && !end && fault == nil {
		room := f.side.room()
		if f.stuck = room == 0; f.stuck {
			f.filled()
			break
		}
		var piece []byte
		var used int
		if piece, used, end, fault = f.next(b[:min(len(b), room)]); len(piece) > 0 {
			f.x.BytesOut += int64(len(piece))
			f.ending.Gave(piece)
			f.side.putBody(piece)
		}
		b = b[used:]
	}
	if end {
		f.side.putEnd(f.x.Trim(f.trailer()))
	}
	f.hold(b, end)
	switch {
	case !f.side.sendOut():
		f.clientBroke()
	case fault != nil:
		f.truncate(reason.UpstreamReset)
	case end && f.conn == nil:
		f.over(f.read)
	case end:
		f.delivered(len(b))
	}
}

// next takes the next piece of the body from b, which is not empty.
func (f *flight) next(b []byte) (piece []byte, used int, end bool, err error) {
	switch f.kind {
	case http1.Counted:
		n := min(int64(len(b)), f.left)
		f.left -= n
		return b[:n], int(n), f.left == 0, nil
	case http1.InChunks:
		return f.chunks.Next(b)
	}
	return b, len(b), false, nil
}

func (f *flight) trailer() *http1.Head {
	if f.kind != http1.InChunks {
		return nil
	}
	return &f.chunks.Trailer
}

// hold keeps what the client doesn't take yet. What was read of an upstream lies in its connection then, as does the rest of
// a head's buffer; an own answer stays where it is.
func (f *flight) hold(b []byte, end bool) {
	f.rest = nil
	u := f.conn
	switch {
	case len(b) > 0 && !end:
		if u != nil && u.in == nil {
			u.in = append(f.l.buffers.out(len(b)), b...)
			b = u.in
		}
		f.rest = b
	case u != nil && u.in != nil:
		f.dropHead()
	}
}

// delivered ends an exchange whose answer has been given whole; so many bytes came behind it.
func (f *flight) delivered(surplus int) {
	u, res := f.conn, &f.res
	written := f.full || f.upload.whole
	reusable := written && surplus == 0 && len(u.out) == 0 && !res.Close && f.kind != http1.UntilClose &&
		!relay.Doubtful(res, f.kind, f.x.Head()) && f.silent()
	f.conn = nil
	if reusable {
		f.lane.put(u)
	} else {
		u.close()
	}
	f.over(written)
}

// silent says whether the upstream has nothing more to say. The last read has shown that, unless it filled the buffer.
func (f *flight) silent() bool {
	if f.conn.ended {
		return false
	}
	if f.conn.canRead {
		n, e := f.conn.read(f.l.in[:1])
		return n == 0 && e == syscall.EAGAIN
	}
	return true
}

// truncate ends an answer that is not whole. The client is told why, or must see that something is missing.
func (f *flight) truncate(why reason.Reason) {
	f.x.Truncated = true
	f.aborted = f.aborted || !f.told(why)
	f.giveUp()
	f.over(false)
}

// told ends the answer with a status, if its caller knows such and takes it now.
func (f *flight) told(why reason.Reason) bool {
	body, trailer, ok := f.ending.Say(why)
	if !ok || f.stuck || f.conn == nil || len(body) > 0 && f.side.room() < len(body) {
		return false
	}
	if len(body) > 0 {
		f.side.putBody(body)
	}
	f.side.putEnd(trailer)
	return f.side.sendOut()
}
