package http3

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/quic-go/qpack"

	"github.com/cellgate/cellgate/proxy/http1"
)

// The limits of field sections. An encoded one is bounded before it is read.
const (
	MaxBlock   = http1.MaxHead
	maxSection = http1.MaxHead
)

// ParseRequest makes r the head that a field section describes; scratch, emptied, becomes its buffer. What is left to do
// is r.Built. The error is a Code, or one of http1's, which deserves an answer.
func ParseRequest(r *http1.Request, scratch, block []byte) error {
	r.Build(scratch)
	p := fields{head: &r.Head, request: r}
	if err := p.all(block); err != nil {
		return err
	}
	return p.complete()
}

// ParseTrailers makes h, over scratch, the trailers that a field section describes, without those that mean something
// ahead of a body only. Errors are those of ParseRequest.
func ParseTrailers(h *http1.Head, scratch, block []byte) error {
	h.Empty(scratch)
	p := fields{head: h, regular: true}
	if err := p.all(block); err != nil {
		return err
	}
	h.DropKnown()
	return nil
}

// fields takes the fields of a section by the rules of RFC 9114, section 4.2 and 4.3.
type fields struct {
	head    *http1.Head
	request *http1.Request // nil in trailers
	pseudo  uint8          // those that have come
	regular bool           // no more of them may come
}

const (
	pseudoMethod = 1 << iota
	pseudoScheme
	pseudoPath
	pseudoAuthority
)

func (p *fields) all(block []byte) error {
	next := qpack.NewDecoder().Decode(block)
	for {
		f, err := next()
		if errors.Is(err, io.EOF) {
			if len(block) < 2 { // the section's own prefix
				return DecompressionFailed
			}
			return nil
		}
		if err != nil {
			return DecompressionFailed
		}
		if err := p.take(f); err != nil {
			return err
		}
	}
}

func (p *fields) take(f qpack.HeaderField) error {
	name, value := []byte(f.Name), []byte(f.Value)
	if f.IsPseudo() {
		if p.regular {
			return http1.ErrSyntax
		}
		return p.takePseudo(f.Name, value)
	}
	p.regular = true
	if f.Name == "cookie" && p.request != nil { // it may come in pieces (section 4.2.1)
		if done, err := p.head.Extend("cookie", "; ", value); done || err != nil {
			return err
		}
	}
	kind, err := p.head.Put(name, value)
	if err == nil && !allowed(kind, f) {
		return http1.ErrSyntax
	}
	return err
}

// takePseudo takes a pseudo-header field: each once, those of requests only.
func (p *fields) takePseudo(name string, value []byte) error {
	bit, ok := pseudoBits(name)
	if !ok || p.pseudo&bit != 0 || len(value) == 0 {
		return http1.ErrSyntax
	}
	p.pseudo |= bit
	if bit == pseudoPath {
		return p.request.PutTarget(value)
	}
	if len(value) > http1.MaxTarget {
		return http1.ErrTooLarge
	}
	switch bit {
	case pseudoMethod:
		p.request.PutMethod(value)
	case pseudoAuthority:
		p.request.PutAuthority(value)
	case pseudoScheme:
		if string(value) != "https" && string(value) != "http" {
			return http1.ErrSyntax
		}
	}
	return nil
}

func pseudoBits(name string) (bit uint8, ok bool) {
	switch name {
	case ":method":
		return pseudoMethod, true
	case ":scheme":
		return pseudoScheme, true
	case ":path":
		return pseudoPath, true
	case ":authority":
		return pseudoAuthority, true
	}
	return 0, false
}

// complete says whether the pseudo-header fields that a request needs are there. CONNECT has its own (section 4.4); it
// gets a target, so that the pipeline can refuse it.
func (p *fields) complete() error {
	const need = pseudoMethod | pseudoScheme | pseudoPath
	if string(p.request.Method()) == "CONNECT" {
		if p.pseudo != pseudoMethod|pseudoAuthority {
			return http1.ErrSyntax
		}
		return p.request.PutTarget([]byte{'/'})
	}
	if p.pseudo&need != need {
		return http1.ErrSyntax
	}
	return nil
}

// allowed refuses the fields of HTTP/1 connections (section 4.2).
func allowed(kind http1.Kind, f qpack.HeaderField) bool {
	switch kind {
	case http1.Connection, http1.TransferEncoding, http1.Upgrade:
		return false
	case http1.TE:
		return f.Value == "trailers"
	case http1.Hop:
		return f.Name != "keep-alive" && f.Name != "proxy-connection"
	}
	return true
}

// Section encodes the head of an answer, or trailers. The zero value is ready for Begin.
type Section struct {
	block bytes.Buffer
	enc   *qpack.Encoder
}

// Begin begins a section: with the status of an answer, or 0 for trailers.
func (s *Section) Begin(status int) {
	s.block.Reset()
	if s.enc == nil {
		s.enc = qpack.NewEncoder(&s.block)
	}
	_ = s.enc.Close() // begins anew
	if status > 0 {
		s.Put(":status", strconv.Itoa(status))
	}
}

// Put adds a field. Upper case in the name is lowered.
func (s *Section) Put(name, value string) {
	_ = s.enc.WriteField(qpack.HeaderField{Name: strings.ToLower(name), Value: value}) // into memory
}

// AppendFrame appends the section as a HEADERS frame.
func (s *Section) AppendFrame(dst []byte) []byte {
	return append(AppendFrameHead(dst, FrameHeaders, uint64(s.block.Len())), s.block.Bytes()...)
}
