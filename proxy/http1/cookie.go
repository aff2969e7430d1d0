package http1

import "bytes"

// DropCookie takes every cookie of that name out of the request, in place; the others stay as they are. No name is no cookie.
// It doesn't allocate.
func (h *Head) DropCookie(name string) {
	if name == "" {
		return
	}
	for i := range h.fields[:h.n] {
		if f := &h.fields[i]; !f.Drop && equalFold(h.Name(f), "cookie") {
			h.dropFrom(f, name)
		}
	}
}

func (h *Head) dropFrom(f *Field, name string) {
	v, cut := h.Value(f), false
	for at := 0; at < len(v); {
		end := len(v)
		if i := bytes.IndexByte(v[at:], ';'); i >= 0 {
			end = at + i + 1
		}
		key, _, _ := bytes.Cut(v[at:end], []byte{'='})
		if string(trim(key)) != name {
			at = end
			continue
		}
		v, cut = v[:at+copy(v[at:], v[end:])], true
	}
	if !cut {
		return
	}
	kept := bytes.TrimRight(v, "; \t")
	f.value.End = f.value.Start + uint32(len(kept))
	f.value.Start = f.value.End - uint32(len(bytes.TrimLeft(kept, "; \t")))
	f.Drop = f.value.Start == f.value.End
}

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
