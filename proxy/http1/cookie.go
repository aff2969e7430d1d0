package http1

import "bytes"

// Cookie is the value of the first cookie of that name (RFC 6265, section 5.4), without quotes around it; nil = there is none.
func (h *Head) Cookie(name string) []byte {
	for i := range h.Fields() {
		f := &h.Fields()[i]
		if !equalFold(h.Name(f), "cookie") {
			continue
		}
		for rest := h.Value(f); len(rest) > 0; {
			var one []byte
			one, rest, _ = bytes.Cut(rest, []byte{';'})
			if key, v, ok := bytes.Cut(trim(one), []byte{'='}); ok && string(key) == name {
				return bytes.Trim(v, `"`)
			}
		}
	}
	return nil
}
