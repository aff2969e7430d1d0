// Package path is the one normalisation of request paths. It happens before routing, so that router, authorization,
// limits, cache and upstream all see the same form; a normalised path is a type of its own.
//
// Refused (the request is answered 400), because an upstream might read them differently from us:
//
//	no leading '/', longer than Max      raw '\', ';', '#', '?', space, control or non-ASCII bytes
//	%2F and %5C (encoded separators)     %00–%1F and %7F
//	% without two hex digits             %25 followed by two hex digits (double encoding)
//	".." that leaves the root            percent-encoded bytes that are not UTF-8 (overlong forms)
//
// Normalised (RFC 3986, section 6.2.2):
//
//	/./ and /../ are resolved, also when written %2E        // becomes /
//	percent-encoded unreserved characters are decoded       hex digits are upper case
//	" < > [ ] ^ ` { | } are percent-encoded
//
// A trailing slash is kept: /a and /a/ are different paths. %3B stays encoded; it is data, not a parameter separator.
package path

import (
	"errors"
	"unicode/utf8"
)

// Clean is a normalised absolute path. Only Normalize makes one.
type Clean string

// Max is the longest path that Normalize accepts, in bytes.
const Max = 8192

// ErrRefused is every refusal of Normalize; the wrapped texts say which rule.
var (
	ErrRefused   = errors.New("path refused")
	errRelative  = refusal("does not start with a slash")
	errLong      = refusal("is too long")
	errByte      = refusal("holds a byte that must not stand in a path")
	errPercent   = refusal("holds an invalid percent-encoding")
	errSeparator = refusal("holds an encoded slash or backslash")
	errControl   = refusal("holds an encoded control character")
	errDouble    = refusal("is percent-encoded twice")
	errRoot      = refusal("leaves the root")
	errUTF8      = refusal("is not UTF-8")
)

type refused struct{ text string }

func refusal(text string) error      { return &refused{"path " + text} }
func (r *refused) Error() string     { return r.text }
func (r *refused) Unwrap() error     { return ErrRefused }
func plain(c byte) bool              { return classes[c]&isPlain != 0 }
func unreserved(c byte) bool         { return classes[c]&isUnreserved != 0 }
func (c Clean) String() string       { return string(c) }
func fix(c byte) bool                { return classes[c]&isEncoded != 0 }
func upperHex(nibble byte) byte      { return "0123456789ABCDEF"[nibble&15] }
func escape(b []byte, c byte) []byte { return append(b, '%', upperHex(c>>4), upperHex(c)) }

const (
	isPlain      = 1 << iota // may stand as it is: RFC 3986 pchar without ';' and '%'
	isUnreserved             // is decoded when percent-encoded
	isEncoded                // is percent-encoded when raw
)

var classes = func() (t [256]uint8) {
	for c := range t {
		b := byte(c)
		if 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' {
			t[c] = isPlain | isUnreserved
		}
	}
	for _, b := range []byte("-._~") {
		t[b] = isPlain | isUnreserved
	}
	for _, b := range []byte("!$&'()*+,=:@") {
		t[b] = isPlain
	}
	for _, b := range []byte("\"<>[]^`{|}") {
		t[b] = isEncoded
	}
	return t
}()

// Normalize gives the clean form of a raw request path (without query). A path that is already clean is returned as it is,
// sharing raw's memory and without allocation; otherwise the form is built in dst's capacity and copied once.
func Normalize(dst []byte, raw string) (Clean, error) {
	if len(raw) == 0 || raw[0] != '/' {
		return "", errRelative
	}
	if len(raw) > Max {
		return "", errLong
	}
	if cleanAlready(raw) {
		return Clean(raw), nil
	}
	decoded, err := decode(dst[:0], raw)
	if err != nil {
		return "", err
	}
	out, err := resolve(decoded)
	if err != nil {
		return "", err
	}
	return Clean(out), nil
}

// cleanAlready says that nothing can need work: only plain bytes, no empty segment, no segment that starts with a dot.
func cleanAlready(raw string) bool {
	for i := 1; i < len(raw); i++ {
		c := raw[i]
		if plain(c) && (c != '.' || raw[i-1] != '/') {
			continue
		}
		if c != '/' || raw[i-1] == '/' {
			return false
		}
	}
	return true
}

// decode settles percent-encoding and the alphabet; slashes and dots are resolve's.
func decode(out []byte, raw string) ([]byte, error) {
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		switch {
		case plain(c) || c == '/':
			out = append(out, c)
		case fix(c):
			out = escape(out, c)
		case c == '%':
			n, grown, err := decodeEscapes(out, raw[i:])
			if err != nil {
				return nil, err
			}
			out, i = grown, i+n-1
		default:
			return nil, errByte
		}
	}
	if twice(out) {
		return nil, errDouble
	}
	return out, nil
}

// twice looks for %25 and two hex digits after decoding, since the digits may have been encoded themselves.
func twice(b []byte) bool {
	for i := 0; i+5 <= len(b); i++ {
		if b[i] != '%' || b[i+1] != '2' || b[i+2] != '5' {
			continue
		}
		_, ok1 := nibble(b[i+3])
		_, ok2 := nibble(b[i+4])
		if ok1 && ok2 {
			return true
		}
	}
	return false
}

// decodeEscapes takes one escape, or a whole UTF-8 sequence of them, from the head of s; n is the length taken.
func decodeEscapes(out []byte, s string) (n int, grown []byte, err error) {
	c, ok := unhex(s)
	if !ok {
		return 0, nil, errPercent
	}
	switch {
	case c == '/' || c == '\\':
		return 0, nil, errSeparator
	case c < 0x20 || c == 0x7f:
		return 0, nil, errControl
	case unreserved(c):
		return 3, append(out, c), nil
	case c < utf8.RuneSelf:
		return 3, escape(out, c), nil
	}
	return decodeRune(out, s)
}

func decodeRune(out []byte, s string) (n int, grown []byte, err error) {
	var seq [utf8.UTFMax]byte
	have := 0
	for have < utf8.UTFMax {
		c, ok := unhex(s[3*have:])
		if !ok {
			break
		}
		seq[have] = c
		have++
	}
	r, size := utf8.DecodeRune(seq[:have])
	if r == utf8.RuneError && size <= 1 {
		return 0, nil, errUTF8
	}
	for _, c := range seq[:size] {
		out = escape(out, c)
	}
	return 3 * size, out, nil
}

func unhex(s string) (byte, bool) {
	if len(s) < 3 || s[0] != '%' {
		return 0, false
	}
	hi, ok1 := nibble(s[1])
	lo, ok2 := nibble(s[2])
	return hi<<4 | lo, ok1 && ok2
}

func nibble(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// resolve merges slashes and removes dot segments in place. Invariant: out = b[:w] is clean and ends with '/'
// whenever a segment starts.
func resolve(b []byte) ([]byte, error) {
	w, i := 1, 1
	for i < len(b) {
		end := i
		for end < len(b) && b[end] != '/' {
			end++
		}
		last := end == len(b)
		switch segment := b[i:end]; {
		case len(segment) == 0 || string(segment) == ".":
		case string(segment) == "..":
			if w == 1 {
				return nil, errRoot
			}
			for w--; b[w-1] != '/'; w-- {
			}
		default:
			w += copy(b[w:], segment)
			if !last {
				b[w] = '/'
				w++
			}
		}
		i = end + 1
	}
	return b[:w], nil
}
