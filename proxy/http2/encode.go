package http2

import "strconv"

// Answers are encoded without a dynamic table and without Huffman's code: names of the static table take a byte, the rest
// is copied. That costs some bytes on the wire and saves memory per connection and time per answer.

// AppendField appends one field to a header block, as a literal that no table keeps. Upper case in the name is lowered.
func AppendField[N, V ~string | ~[]byte](dst []byte, name N, value V) []byte {
	if i := nameIndex(name); i > 0 {
		dst = appendInt(dst, 0, 4, i)
	} else {
		dst = appendInt(append(dst, 0), 0, 7, len(name))
		for i := range len(name) {
			c := name[i]
			if c >= 'A' && c <= 'Z' {
				c |= 0x20
			}
			dst = append(dst, c)
		}
	}
	dst = appendInt(dst, 0, 7, len(value))
	return append(dst, value...)
}

func appendStatus(dst []byte, status int) []byte {
	if i := statusIndex(status); i > 0 {
		return append(dst, 0x80|byte(i))
	}
	dst = appendInt(dst, 0, 4, statusName)
	return strconv.AppendInt(append(dst, 3), int64(status), 10)
}
