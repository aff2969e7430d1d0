//go:build linux

package loop

import (
	"syscall"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/relay"
)

// copied is what is copied behind what else is to be written; more is written from where it lies.
const copied = 8 << 10

// more passes on what there is of the upstream's body. Nothing is read before the client has taken what was read before.
func (f *flight) more() {
	u, c, l := f.conn, f.client, f.l
	for n := 0; f.phase == relaying && f.conn == u && u.canRead && len(c.out) == 0; n++ {
		if n == turns {
			l.later(c)
			return
		}
		got, e := u.read(l.in)
		switch {
		case got > 0:
			now := l.clock()
			f.x.Waited += now.Sub(f.since)
			f.since, f.by = now, f.idleBy()
			f.pass(l.out[:0], l.in[:got], false)
		case e == syscall.EAGAIN:
		case e == 0 && f.kind == http1.UntilClose:
			f.pass(l.out[:0], nil, true)
		default:
			f.truncate()
		}
	}
	if f.client == c && f.phase == relaying {
		f.arm()
	}
}

// pass gives the client what out and b hold; b is the next of the upstream's body. end says that the body is over.
func (f *flight) pass(out, b []byte, end bool) {
	var tail []byte // of b, written from where it lies
	var fault error
	switch f.kind {
	case http1.Counted:
		n := min(int64(len(b)), f.left)
		tail, b = b[:n], b[n:]
		f.left -= n
		f.x.BytesOut += n
		end = f.left == 0
	case http1.UntilClose:
		f.x.BytesOut += int64(len(b))
		tail, b = b, nil
	case http1.InChunks:
		out, b, end, fault = f.rechunk(out, b)
	}
	switch {
	case f.framing.Chunked && len(tail) > 0:
		out, tail = appendChunk(out, tail), nil
	case len(tail) <= copied:
		out, tail = append(out, tail...), nil
	}
	if end && f.framing.Chunked {
		var trailer *http1.Head
		if f.kind == http1.InChunks {
			trailer = &f.chunks.Trailer
		}
		out = http1.AppendLastChunk(out, trailer)
	}
	f.l.out = out[:0]
	switch {
	case len(out)+len(tail) > 0 && !f.client.send(out, tail):
		f.clientBroke()
	case fault != nil:
		f.truncate()
	case end:
		f.delivered(len(b))
	}
}

// rechunk decodes an upstream's chunks from b and appends the data as this client gets it.
func (f *flight) rechunk(out, b []byte) (_, rest []byte, end bool, err error) {
	for len(b) > 0 && !end && err == nil {
		var piece []byte
		var used int
		piece, used, end, err = f.chunks.Next(b)
		b = b[used:]
		f.x.BytesOut += int64(len(piece))
		switch {
		case len(piece) == 0:
		case f.framing.Chunked:
			out = appendChunk(out, piece)
		default:
			out = append(out, piece...)
		}
	}
	return out, b, end, err
}

// delivered ends an exchange whose answer has been given whole; so many bytes came behind it.
func (f *flight) delivered(surplus int) {
	u, res := f.conn, &f.res
	written := f.full || f.upload.whole
	reusable := written && surplus == 0 && len(u.out) == 0 && !res.Close && f.kind != http1.UntilClose &&
		!relay.Doubtful(res, f.kind, f.x.Head()) && f.silent()
	f.conn = nil
	if u.in != nil {
		f.l.buffers.put(u.in)
		u.in = nil
	}
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

// truncate ends an answer that the client must see is not whole.
func (f *flight) truncate() {
	f.x.Truncated, f.aborted = true, true
	f.giveUp()
	f.over(false)
}
