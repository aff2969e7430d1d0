// Package http1 is a strict HTTP/1.1 codec without I/O and without allocations: heads and chunked bodies in both directions.
// What it parses it never passes through: a head goes on only as re-serialised fields, a body only as decoded data.
//
//	n, err := req.Parse(buf, 0)   // n == 0: more bytes are needed
//	for i := range req.Fields() { f := &req.Fields()[i]; req.Name(f); req.Value(f) … }
package http1

import (
	"bytes"
	"errors"
)

// The faults of a message. Every one but ErrTooMany, ErrTooLarge, ErrURL and ErrForeign is a 400; all end the connection.
var (
	ErrSyntax   = errors.New("http1: malformed message")
	ErrFraming  = errors.New("http1: ambiguous or invalid message length")
	ErrTooLarge = errors.New("http1: head too large")
	ErrTooMany  = errors.New("http1: too many fields")
	ErrURL      = errors.New("http1: target too long")
	// ErrForeign: neither target nor version of the first line is HTTP's. Whoever sends that expects no answer in HTTP.
	ErrForeign = errors.New("http1: not HTTP at all")
)

// The limits of a message (F5).
const (
	MaxFields = 100
	MaxHead   = 64 << 10
	MaxTarget = 8 << 10
	MaxMethod = 64
)

// Span is a range of a head's buffer.
type Span struct{ Start, End uint32 }

// Field is one header field. Drop is set by the parser for hop-by-hop fields (RFC 9110, section 7.6.1), those that
// Connection names, and names that a lax upstream could take for one of them; anyone may set it later.
type Field struct {
	name, value Span
	Kind        Kind
	Drop        bool
}

// Head is the part that requests and responses share. Its buffer belongs to the caller and must stay untouched while
// the head is in use.
type Head struct {
	buf    []byte
	fields [MaxFields]Field
	n      int
	seen   int // bytes already searched for the end of the head
	lines  int // start of the line that the search stands in

	Length  int64 // of Content-Length; -1 when absent
	Chunked bool
	Close   bool // the connection ends after this message
	Minor   uint8
	named   bool // Connection names fields other than close and keep-alive
	upgrade bool // Connection names upgrade
	keep    bool
}

// Fields are the parsed fields in their order.
func (h *Head) Fields() []Field { return h.fields[:h.n] }

// Name is the field's name as it came.
func (h *Head) Name(f *Field) []byte { return h.buf[f.name.Start:f.name.End] }

// Value is the field's value without surrounding blanks.
func (h *Head) Value(f *Field) []byte { return h.buf[f.value.Start:f.value.End] }

// Only returns the value of the only field of a kind; n is how many there are, and the value is nil unless n is 1.
func (h *Head) Only(k Kind) (v []byte, n int) {
	for i := range h.fields[:h.n] {
		if h.fields[i].Kind == k {
			n++
			v = h.Value(&h.fields[i])
		}
	}
	if n != 1 {
		return nil, n
	}
	return v, 1
}

// Upgrades says whether Connection names Upgrade.
func (h *Head) Upgrades() bool { return h.upgrade }

// WantsTrailers says whether "trailers" stands in a TE field, alone or in a list (RFC 9110, section 10.1.4).
func (h *Head) WantsTrailers() bool {
	for i := range h.fields[:h.n] {
		if h.fields[i].Kind != TE {
			continue
		}
		for v := h.Value(&h.fields[i]); len(v) > 0; {
			var item []byte
			if item, v = cutComma(v); equalFold(item, "trailers") {
				return true
			}
		}
	}
	return false
}

// Find returns the value of the first field with this lower-case name.
func (h *Head) Find(name string) ([]byte, bool) {
	for i := range h.fields[:h.n] {
		if f := &h.fields[i]; int(f.name.End-f.name.Start) == len(name) && equalFold(h.Name(f), name) {
			return h.Value(f), true
		}
	}
	return nil, false
}

// Is says whether a name is this one, which is in lower case.
func Is(name []byte, lower string) bool { return equalFold(name, lower) }

func (h *Head) reset(b []byte) {
	h.buf, h.n, h.Length, h.Chunked, h.Close, h.named, h.upgrade, h.keep = b, 0, -1, false, false, false, false, false
}

// Restart forgets how far a partial head was searched. Call it when the buffer holds a new message.
func (h *Head) Restart() { h.seen, h.lines = 0, 0 }

// end finds the end of the head and refuses a line that ends in a bare LF as soon as it is there. 0 means not yet.
func (h *Head) end(b []byte) (int, error) {
	for {
		i := bytes.IndexByte(b[h.seen:], '\n')
		if i < 0 {
			h.seen = len(b)
			if len(b) >= MaxHead {
				return 0, ErrTooLarge
			}
			return 0, nil
		}
		i += h.seen
		if i == 0 || b[i-1] != '\r' {
			return 0, ErrSyntax
		}
		empty := i-1 == h.lines
		h.seen, h.lines = i+1, i+1
		if i >= MaxHead {
			return 0, ErrTooLarge
		}
		if empty {
			return i + 1, nil
		}
	}
}

// parseFields reads the field lines from b[i:] up to the empty line that ends b.
func (h *Head) parseFields(b []byte, i int) error {
	for i < len(b)-2 {
		next, err := h.parseField(b, i)
		if err != nil {
			return err
		}
		i = next
	}
	if i != len(b)-2 || b[i] != '\r' || b[i+1] != '\n' {
		return ErrSyntax
	}
	if h.named {
		h.dropNamed()
	}
	return nil
}

// parseField reads one line: a token, a colon without a blank before it, a value without controls, CRLF. A folded line
// begins with a blank, which is no token.
func (h *Head) parseField(b []byte, i int) (next int, err error) {
	k0 := i
	for class[b[i]]&isToken != 0 {
		i++
	}
	if i == k0 || b[i] != ':' {
		return 0, ErrSyntax
	}
	if h.n == MaxFields {
		return 0, ErrTooMany
	}
	f := &h.fields[h.n]
	h.n++
	f.name = Span{uint32(k0), uint32(i)}
	for i++; b[i] == ' ' || b[i] == '\t'; i++ {
	}
	v0 := i
	i += plain(b[i:])
	for class[b[i]]&isValue != 0 {
		i++
	}
	if b[i] != '\r' || b[i+1] != '\n' {
		return 0, ErrSyntax
	}
	v1 := i
	for v1 > v0 && (b[v1-1] == ' ' || b[v1-1] == '\t') {
		v1--
	}
	f.value = Span{uint32(v0), uint32(v1)}
	f.Kind, f.Drop = classify(b[k0:f.name.End])
	if f.Kind != Other {
		if err := h.note(f); err != nil {
			return 0, err
		}
	}
	return i + 2, nil
}

// note takes in what a field says about the message itself.
func (h *Head) note(f *Field) error {
	v := h.Value(f)
	switch f.Kind {
	case ContentLength:
		n, ok := parseLength(v)
		if !ok || h.Length >= 0 {
			return ErrFraming
		}
		h.Length = n
	case TransferEncoding:
		if h.Chunked || !equalFold(v, "chunked") {
			return ErrFraming
		}
		h.Chunked = true
	case Connection:
		return h.noteConnection(v)
	}
	return nil
}

// noteConnection reads the options of one Connection line; empty elements are legal in a list (RFC 9110, section 5.6.1).
func (h *Head) noteConnection(v []byte) error {
	for len(v) > 0 {
		var item []byte
		item, v = cutComma(v)
		switch {
		case len(item) == 0:
		case equalFold(item, "close"):
			h.Close = true
		case equalFold(item, "keep-alive"):
			h.keep = true
		default:
			if !isTokenBytes(item) {
				return ErrSyntax
			}
			h.upgrade = h.upgrade || equalFold(item, "upgrade")
			h.named = true
		}
	}
	return nil
}

// dropNamed marks the fields that Connection names. Fields that frame or route the message can't be named away:
// they are rebuilt anyway.
func (h *Head) dropNamed() {
	for i := range h.fields[:h.n] {
		if h.fields[i].Kind != Connection {
			continue
		}
		for v := h.Value(&h.fields[i]); len(v) > 0; {
			var item []byte
			if item, v = cutComma(v); len(item) > 0 {
				h.dropAll(item)
			}
		}
	}
}

func (h *Head) dropAll(name []byte) {
	for i := range h.fields[:h.n] {
		f := &h.fields[i]
		if f.Kind != Host && bytes.EqualFold(h.Name(f), name) {
			f.Drop = true
		}
	}
}

// parseLength takes 1 to 18 digits and nothing else (RFC 9110, section 8.6).
func parseLength(v []byte) (n int64, ok bool) {
	if len(v) == 0 || len(v) > 18 {
		return 0, false
	}
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// cutComma splits off the first list element, without its surrounding blanks.
func cutComma(v []byte) (item, rest []byte) {
	i := bytes.IndexByte(v, ',')
	if i < 0 {
		return trim(v), nil
	}
	return trim(v[:i]), v[i+1:]
}

func trim(v []byte) []byte {
	for len(v) > 0 && (v[0] == ' ' || v[0] == '\t') {
		v = v[1:]
	}
	for len(v) > 0 && (v[len(v)-1] == ' ' || v[len(v)-1] == '\t') {
		v = v[:len(v)-1]
	}
	return v
}
