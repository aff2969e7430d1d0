package http1

import "bytes"

// Chunks decodes a chunked body (RFC 9112, section 7.1) incrementally and strictly: CRLF only, no blanks around the size,
// sizes of at most 15 hex digits, bounded extensions, which are dropped. Trailers are parsed into Trailer.
// The zero value expects the first chunk.
type Chunks struct {
	state chunkState
	left  uint64 // of the chunk's data
	size  uint64
	n     int // digits, or bytes of the extension
	total int // bytes of all extensions
	quote quote
	buf   []byte
	// Trailer is complete once Next said done. Its buffer belongs to the decoder and lasts until Reset.
	Trailer Head
}

// quote is where in an extension's quoted string the decoder stands (RFC 9112, section 7.1.1). One that doesn't end in its line
// is refused: others read on behind the line for its end (CVE-2026-2332).
type quote uint8

const (
	unquoted quote = iota
	quoted
	escaped
)

func (q quote) next(b byte) quote {
	switch {
	case q == escaped, q == unquoted && b == '"':
		return quoted
	case q == quoted && b == '"':
		return unquoted
	case q == quoted && b == '\\':
		return escaped
	}
	return q
}

type chunkState uint8

const (
	inSize chunkState = iota
	inExtension
	afterSize // LF expected
	inData
	afterData   // CR expected
	afterDataCR // LF expected
	inTrailer
	chunksDone
)

// The bounds of what is not data. Extensions have no use here and cost an attacker nothing (CVE-2023-39326).
const (
	maxExtension  = 256
	maxExtensions = 4 << 10
	maxTrailer    = 8 << 10
)

// Reset makes c ready for another body and keeps its buffer.
func (c *Chunks) Reset() {
	c.state, c.left, c.size, c.n, c.total, c.quote, c.buf = inSize, 0, 0, 0, 0, unquoted, c.buf[:0]
	c.Trailer.Restart()
	c.Trailer.n = 0
}

// Next decodes from b. It returns the next data, a part of b, how many bytes of b it has used, and whether the body is
// complete. No data and not done means: more bytes are needed, and b is used up.
func (c *Chunks) Next(b []byte) (data []byte, used int, done bool, err error) {
	for used < len(b) {
		switch c.state {
		case inData:
			n := int(min(c.left, uint64(len(b)-used)))
			data = b[used : used+n]
			if c.left -= uint64(n); c.left == 0 {
				c.state = afterData
			}
			return data, used + n, false, nil
		case inTrailer:
			n, done, err := c.trailer(b[used:])
			return nil, used + n, done, err
		case chunksDone:
			return nil, used, true, nil
		}
		if err := c.step(b[used]); err != nil {
			return nil, used, false, err
		}
		used++
	}
	return nil, used, c.state == chunksDone, nil
}

// step takes one byte outside of data and trailers.
func (c *Chunks) step(b byte) error {
	switch c.state {
	case inSize:
		return c.sizeByte(b)
	case inExtension:
		if b == '\r' && c.quote == unquoted {
			c.state = afterSize
			return nil
		}
		c.n++
		c.total++
		c.quote = c.quote.next(b)
		if class[b]&isValue == 0 || c.n > maxExtension || c.total > maxExtensions {
			return ErrFraming
		}
		return nil
	case afterSize:
		if b != '\n' {
			return ErrFraming
		}
		c.left, c.size, c.n = c.size, 0, 0
		c.state = inData
		if c.left == 0 {
			c.state = inTrailer
		}
		return nil
	case afterData:
		if b != '\r' {
			return ErrFraming
		}
		c.state = afterDataCR
		return nil
	case afterDataCR:
		if b != '\n' {
			return ErrFraming
		}
		c.state = inSize
	}
	return nil
}

func (c *Chunks) sizeByte(b byte) error {
	switch {
	case class[b]&isHex != 0:
		if c.n++; c.n > 15 {
			return ErrFraming
		}
		c.size = c.size<<4 | uint64(unhex(b))
		return nil
	case c.n == 0:
		return ErrFraming
	case b == '\r':
		c.state = afterSize
		return nil
	case b == ';':
		c.state, c.n = inExtension, 0
		return nil
	}
	return ErrFraming
}

// trailer collects the trailer section, which is small, and parses it once it is whole.
func (c *Chunks) trailer(b []byte) (used int, done bool, err error) {
	for used < len(b) {
		i := bytes.IndexByte(b[used:], '\n')
		if i < 0 {
			c.buf = append(c.buf, b[used:min(len(b), used+maxTrailer+1)]...)
			if len(c.buf) > maxTrailer {
				return used, false, ErrTooLarge
			}
			return len(b), false, nil
		}
		c.buf = append(c.buf, b[used:min(used+i+1, used+maxTrailer+1)]...)
		used += i + 1
		if len(c.buf) > maxTrailer {
			return used, false, ErrTooLarge
		}
		n, err := c.Trailer.end(c.buf)
		if err != nil {
			return used, false, err
		}
		if n > 0 {
			err := c.finish(n)
			return used, err == nil, err
		}
	}
	return used, false, nil
}

// finish parses the trailer fields. Those that frame, route or identify are marked Drop (RFC 9110, section 6.5.1).
func (c *Chunks) finish(n int) error {
	t := &c.Trailer
	t.reset(c.buf[:n])
	if err := t.parseFields(c.buf[:n], 0); err != nil {
		return err
	}
	c.state = chunksDone
	t.DropKnown()
	return nil
}

// DropKnown marks the fields that a trailer must not bring in past the checks: every one that means something to the
// gateway, and those that say ahead of a body what it is or how to answer (RFC 9110, section 6.5.1).
func (h *Head) DropKnown() {
	for i := range h.fields[:h.n] {
		f := &h.fields[i]
		f.Drop = f.Drop || f.Kind != Other || leads(h.Name(f))
	}
}

func leads(name []byte) bool {
	if len(name) > 3 && foldUnder(name[:3], "if-") {
		return true
	}
	for _, s := range [...]string{"cookie", "set-cookie", "content-type", "content-encoding", "content-range", "cache-control", "pragma", "range",
		"max-forwards", "www-authenticate"} {
		if Alike(name, s) {
			return true
		}
	}
	return false
}

func unhex(b byte) byte {
	switch {
	case b <= '9':
		return b - '0'
	case b <= 'F':
		return b - 'A' + 10
	}
	return b - 'a' + 10
}
