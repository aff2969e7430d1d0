package http1

import "bytes"

// Response is one response head.
type Response struct {
	Head
	Status int
	// Trails says that trailers may follow a body whose length is known. In HTTP/1 none can.
	Trails bool
}

// Parse reads a response head at the start of b and returns its length, or 0 when b ends before the head does.
func (r *Response) Parse(b []byte) (int, error) {
	n, err := r.end(b)
	if n == 0 {
		return 0, err
	}
	b = b[:n]
	r.reset(b)
	i, err := r.parseLine(b)
	if err != nil {
		return 0, err
	}
	if err := r.parseFields(b, i); err != nil {
		return 0, err
	}
	if r.Chunked && (r.Length >= 0 || r.Minor == 0) {
		return 0, ErrFraming
	}
	r.Close = r.Close || r.Minor == 0 && !r.keep
	r.Restart()
	return n, nil
}

// validStatus says whether a status is of one of the five classes (RFC 9110, section 15). What others mean is anyone's guess.
func validStatus(n int) bool { return n >= 100 && n <= 599 }

// parseLine reads HTTP/1.x, three digits, and a reason phrase that may be missing with its blank.
func (r *Response) parseLine(b []byte) (int, error) {
	if len(b) < 14 || string(b[:7]) != "HTTP/1." || b[7] != '0' && b[7] != '1' || b[8] != ' ' {
		return 0, ErrSyntax
	}
	r.Minor, r.Status = b[7]-'0', 0
	for _, c := range b[9:12] {
		if c < '0' || c > '9' {
			return 0, ErrSyntax
		}
		r.Status = r.Status*10 + int(c-'0')
	}
	if !validStatus(r.Status) || b[12] != ' ' && b[12] != '\r' {
		return 0, ErrSyntax
	}
	i := 12
	for class[b[i]]&isValue != 0 {
		i++
	}
	if b[i] != '\r' || b[i+1] != '\n' {
		return 0, ErrSyntax
	}
	return i + 2, nil
}

// Body is how the bytes after a response head are delimited.
type Body uint8

// The framings of RFC 9112, section 6.3.
const (
	NoBody Body = iota
	Counted
	InChunks
	UntilClose
)

// Body tells the framing of the answer to a request with this method. HEAD, 1xx, 204 and 304 have no body whatever
// their fields say.
func (r *Response) Body(head bool) Body {
	switch {
	case head || r.Status < 200 || r.Status == 204 || r.Status == 304:
		return NoBody
	case r.Chunked:
		return InChunks
	case r.Length == 0:
		return NoBody
	case r.Length > 0:
		return Counted
	}
	return UntilClose
}

// SetStatus makes r an empty head with this status, for a caller that adds fields of its own source.
func (r *Response) SetStatus(status int) {
	r.reset(r.buf[:0])
	r.Status, r.Minor, r.Trails = status, 1, false
}

// PutStatus reads the status of a head whose fields are put: three digits. It is false for anything else.
func (r *Response) PutStatus(v []byte) bool {
	n, ok := parseLength(v)
	r.Status = int(n)
	return ok && len(v) == 3 && validStatus(r.Status)
}

// Clone is a copy with a buffer of its own.
func (r *Response) Clone() *Response {
	c := *r
	c.buf = bytes.Clone(r.buf)
	return &c
}
