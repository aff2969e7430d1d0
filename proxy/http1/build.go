package http1

// A head that doesn't come as HTTP/1 is built: Build, the parts in any order, Built. Its buffer is its own; everything
// that is put into it is copied.

// Build makes r an empty head; scratch, emptied, becomes its buffer.
func (r *Request) Build(scratch []byte) {
	r.reset(scratch[:0])
	r.Minor = 1
	r.method, r.target, r.authority, r.protocol = Span{}, Span{}, Span{}, Span{}
	r.Expect, r.Upgrade = false, false
}

func (h *Head) put(v []byte) Span {
	at := uint32(len(h.buf))
	h.buf = append(h.buf, v...)
	return Span{at, uint32(len(h.buf))}
}

// PutMethod sets the method.
func (r *Request) PutMethod(v []byte) { r.method = r.put(v) }

// PutProtocol sets what an extended CONNECT asks for. ErrSyntax says that it is no token.
func (r *Request) PutProtocol(v []byte) error {
	if !isTokenBytes(v) {
		return ErrSyntax
	}
	r.protocol = r.put(v)
	return nil
}

// Bodiless takes a request that is to be sent on for one without a body; what comes behind its head is something else.
func (r *Request) Bodiless() { r.Length, r.Chunked = 0, false }

// PutTarget sets path and query, or "*". ErrURL says that it is too long.
func (r *Request) PutTarget(v []byte) error {
	if len(v) > MaxTarget {
		return ErrURL
	}
	r.target = r.put(v)
	return nil
}

// PutAuthority sets host and port. Without it the Host field counts.
func (r *Request) PutAuthority(v []byte) { r.authority = r.put(v) }

// Put appends a field under the rules of HTTP/2 and HTTP/3 (RFC 9113, section 8.2.1): a lower-case name, no blanks around
// the value. ErrSyntax breaks them; ErrTooMany, ErrTooLarge and ErrFraming mean what they mean in a parsed head.
func (h *Head) Put(name, value []byte) (Kind, error) {
	if h.n == MaxFields {
		return Other, ErrTooMany
	}
	if len(h.buf)+len(name)+len(value) > MaxHead {
		return Other, ErrTooLarge
	}
	if !isLowerBytes(name) || !isFieldValue(value) {
		return Other, ErrSyntax
	}
	f := &h.fields[h.n]
	h.n++
	f.name, f.value = h.put(name), h.put(value)
	f.Kind, f.Drop = classify(name)
	if f.Kind != ContentLength {
		return f.Kind, nil
	}
	n, ok := parseLength(value)
	if !ok || h.Length >= 0 {
		return ContentLength, ErrFraming
	}
	h.Length = n
	return ContentLength, nil
}

// Extend appends to the value of the last field with this lower-case name: HTTP/2 may cut a Cookie field into several
// (RFC 9113, section 8.2.3). It is false when there is none.
func (h *Head) Extend(name string, separator string, value []byte) (bool, error) {
	if len(h.buf)+len(separator)+len(value) > MaxHead {
		return false, ErrTooLarge
	}
	for i := h.n - 1; i >= 0; i-- {
		f := &h.fields[i]
		if !equalFold(h.Name(f), name) {
			continue
		}
		if !isFieldValue(value) {
			return false, ErrSyntax
		}
		if int(f.value.End) != len(h.buf) { // something else came in between
			if len(h.buf)+len(separator)+len(value)+len(h.Value(f)) > MaxHead {
				return false, ErrTooLarge
			}
			f.value = h.put(h.Value(f))
		}
		h.buf = append(append(h.buf, separator...), value...)
		f.value.End = uint32(len(h.buf))
		return true, nil
	}
	return false, nil
}

// Built checks what needs the whole head. body says whether a body may follow; a body without a length is sent in chunks.
func (r *Request) Built(body bool) error {
	if !body && r.Length > 0 {
		return ErrFraming
	}
	if !body {
		r.Length = 0
	}
	r.Chunked = r.Length < 0
	if err := r.checkTarget(); err != nil {
		return err
	}
	if _, err := r.checkHost(); err != nil {
		return err
	}
	if !validAuthority(r.Authority()) {
		return ErrSyntax
	}
	return r.checkExpect()
}

func (r *Request) checkTarget() error {
	method, t := r.Method(), r.Target()
	if !isTokenBytes(method) || len(method) > MaxMethod || len(t) == 0 {
		return ErrSyntax
	}
	for _, c := range t {
		if class[c]&isTarget == 0 {
			return ErrSyntax
		}
	}
	if !validEscapes(t) || t[0] != '/' && (string(t) != "*" || string(method) != "OPTIONS") {
		return ErrSyntax
	}
	return nil
}

func isLowerBytes(b []byte) bool {
	for _, c := range b {
		if class[c]&isLower == 0 {
			return false
		}
	}
	return len(b) > 0
}

func isFieldValue(b []byte) bool {
	for _, c := range b {
		if class[c]&isValue == 0 {
			return false
		}
	}
	return len(b) == 0 || !isBlank(b[0]) && !isBlank(b[len(b)-1])
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// Empty makes h a head without fields, over scratch.
func (h *Head) Empty(scratch []byte) { h.reset(scratch[:0]) }

// Scratch gives the buffer of a built head back for the next Build.
func (h *Head) Scratch() []byte { return h.buf[:0] }
