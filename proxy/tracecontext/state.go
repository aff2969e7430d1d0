package tracecontext

import "bytes"

// Bounds of a tracestate (sections 3.3.1.1 and 3.3.1.5): members, and bytes of all of them. What comes beyond is left out
// from the end.
const (
	maxMembers = 32
	maxState   = 512
)

// AppendState appends the members of one tracestate field to those that dst got from the fields before, where dst is
// empty at first. It is false when the field is malformed or names a key again: then the whole tracestate is worth nothing.
// It goes with a valid traceparent only.
func AppendState(dst, value []byte) (out []byte, ok bool) {
	full := false
	for len(value) > 0 {
		member := value
		if i := bytes.IndexByte(value, ','); i >= 0 {
			member, value = value[:i], value[i+1:]
		} else {
			value = nil
		}
		if member = bytes.Trim(member, " \t"); len(member) == 0 {
			continue // empty members are permitted
		}
		key, text, found := bytes.Cut(member, []byte{'='})
		if !found || !isKey(key) || !isText(text) || has(dst, key) {
			return dst, false
		}
		if full = full || bytes.Count(dst, []byte{','}) == maxMembers-1 || len(dst)+1+len(member) > maxState; full {
			continue
		}
		if len(dst) > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, member...)
	}
	return dst, true
}

// has says whether the members name the key.
func has(members, key []byte) bool {
	for len(members) > 0 {
		var member []byte
		member, members, _ = bytes.Cut(members, []byte{','})
		if len(member) > len(key) && member[len(key)] == '=' && bytes.HasPrefix(member, key) {
			return true
		}
	}
	return false
}

// isKey: a lower-case letter or digit, then up to 255 of those and "_-*/@" (level 2, section 3.3.1.3.1).
func isKey(key []byte) bool {
	if len(key) == 0 || len(key) > 256 || !alnum(key[0]) {
		return false
	}
	for _, c := range key[1:] {
		if !alnum(c) && bytes.IndexByte([]byte("_-*/@"), c) < 0 {
			return false
		}
	}
	return true
}

func alnum(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

// isText: 1 to 256 printable ASCII characters without ',' and '=' that don't end in a blank (section 3.3.1.3.2).
func isText(text []byte) bool {
	if len(text) == 0 || len(text) > 256 {
		return false
	}
	for _, c := range text {
		if c < 0x20 || c > 0x7e || c == ',' || c == '=' {
			return false
		}
	}
	return true
}
