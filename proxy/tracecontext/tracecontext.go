// Package tracecontext reads and writes the fields by which a trace goes from one process to the next (W3C Trace Context,
// https://www.w3.org/TR/trace-context-2/).
//
//	c, ok := tracecontext.Parse(traceparent)         // of the request; !ok = there is none
//	own := c.Child(random)                           // the same trace, a span of ours
//	dst = own.AppendLines(dst, c, head)              // what the next process gets
//
// Nothing here allocates.
package tracecontext

import (
	"encoding/binary"
	"encoding/hex"

	"github.com/cellgate/cellgate/proxy/http1"
)

// Length is that of a traceparent of the version that is written.
const Length = 55

// The flags that are known; others are cleared, as section 3.2.2.5 asks.
const (
	Sampled = 1 << iota // the caller may have recorded the trace
	Random              // at least the last 7 bytes of the trace's id are random

	known = Sampled | Random
)

// Context names a span of a trace. The zero value names none.
type Context struct {
	Trace [16]byte
	Span  [8]byte
	Flags uint8
}

// New begins a trace whose id is written as 32 hex digits, in lower case, of random bits; span is 64 more of them. It is for
// callers that have such an id already: whoever knows it finds the trace. It is sampled if it belongs to the share.
func New(id []byte, span uint64, sampled Ratio) Context {
	c := Context{Flags: Random}
	_, _ = hex.Decode(c.Trace[:], id) // what isn't hex stays zero
	if sampled.Takes(c) {
		c.Flags |= Sampled
	}
	return c.Child(span)
}

// Child is another span of the same trace, named by random bits.
func (c Context) Child(random uint64) Context {
	binary.BigEndian.PutUint64(c.Span[:], random)
	c.mend()
	return c
}

// Attempt is the span of the n-th attempt at what c is the span of; n = 0 gives c. Whoever knows c finds it, so that nobody has to
// keep it (the finalizer of SplitMix64).
func (c Context) Attempt(n uint8) Context {
	if n == 0 {
		return c
	}
	z := binary.BigEndian.Uint64(c.Span[:]) + uint64(n)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return c.Child(z ^ z>>31)
}

// Ratio is a share of all traces, in units of 2⁻⁵⁶. The zero value is none.
type Ratio uint64

const whole = 1 << 56

// RatioOf is that of a share from 0 to 1.
func RatioOf(share float64) Ratio { return Ratio(share * whole) }

// Takes says whether the trace belongs to the share: by the 56 random bits of its id, so that everybody who samples by them takes
// the same ones, and who takes more takes these as well (https://opentelemetry.io/docs/specs/otel/trace/tracestate-probability-sampling/).
func (r Ratio) Takes(c Context) bool {
	return binary.BigEndian.Uint64(c.Trace[8:])&(whole-1) >= whole-uint64(r)
}

// mend keeps ids from being zero, which would make them invalid.
func (c *Context) mend() {
	if c.Trace == [16]byte{} {
		c.Trace[15] = 1
	}
	if c.Span == [8]byte{} {
		c.Span[7] = 1
	}
}

// Valid says whether it names anything.
func (c Context) Valid() bool { return c.Trace != [16]byte{} && c.Span != [8]byte{} }

// Sampled says whether the trace may have been recorded so far.
func (c Context) Sampled() bool { return c.Flags&Sampled != 0 }

// Parse reads the value of the only traceparent field. Of versions to come it reads what version 00 has (section 3.2.4).
func Parse(value []byte) (c Context, ok bool) {
	if len(value) < Length || value[2] != '-' || value[35] != '-' || value[52] != '-' {
		return Context{}, false
	}
	var version, flags [1]byte
	if !lower(version[:], value[:2]) || !lower(c.Trace[:], value[3:35]) || !lower(c.Span[:], value[36:52]) || !lower(flags[:], value[53:Length]) {
		return Context{}, false
	}
	switch {
	case version[0] == 0xff, !c.Valid():
		return Context{}, false
	case len(value) > Length && (version[0] == 0 || value[Length] != '-'):
		return Context{}, false
	}
	c.Flags = flags[0] & known
	return c, true
}

// AppendParent appends the value of a traceparent field, of version 00.
func (c Context) AppendParent(dst []byte) []byte {
	dst = append(dst, "00-"...)
	dst = hex.AppendEncode(dst, c.Trace[:])
	dst = append(dst, '-')
	dst = hex.AppendEncode(dst, c.Span[:])
	dst = append(dst, '-')
	return hex.AppendEncode(dst, []byte{c.Flags})
}

// AppendLines appends both fields as lines. The tracestate of head goes along with its own trace alone, as far as it is sound;
// from is the traceparent beside it.
func (c Context) AppendLines(dst []byte, from Context, head *http1.Head) []byte {
	dst = c.AppendParent(append(dst, "Traceparent: "...))
	dst = append(dst, "\r\n"...)
	if c.Trace != from.Trace {
		return dst
	}
	const name = "Tracestate: "
	start := len(dst)
	dst = append(dst, name...)
	at, fields := len(dst), head.Fields()
	for i := range fields {
		if fields[i].Kind != http1.Tracestate {
			continue
		}
		state, ok := AppendState(dst[at:], head.Value(&fields[i]))
		if dst = append(dst[:at], state...); !ok {
			return dst[:start]
		}
	}
	if len(dst) == at {
		return dst[:start]
	}
	return append(dst, "\r\n"...)
}

// lower decodes hex digits without capitals into all of dst.
func lower(dst, digits []byte) bool {
	for _, d := range digits {
		if (d < '0' || d > '9') && (d < 'a' || d > 'f') {
			return false
		}
	}
	_, err := hex.Decode(dst, digits)
	return err == nil
}
