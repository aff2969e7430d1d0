package snapshot

import "bytes"

// flowCutter cuts a flow list ("[{…}, {…}]") between mappings. As with block lists the cuts are guesses that hold only if
// each chunk parses by itself: text that is cut within a string, a comment or a bracket does not.
type flowCutter struct {
	size int
	data []byte
	pos  int
	line int  // lines before pos
	prev byte // last character that was no space
}

// list takes the list that starts at pos and gives its chunks; ok is false when its end is not found.
func (f *flowCutter) list(document int, key string) (chunks []chunk, ok bool) {
	f.pos++
	f.prev = '['
	start, startLine := f.pos, f.line+1
	add := func(end int) {
		chunks = append(chunks, chunk{document: document, line: startLine, key: key, flow: true, text: f.data[start:end]})
	}
	for depth := 1; f.pos < len(f.data); f.pos++ {
		c := f.data[f.pos]
		switch {
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			if depth--; depth == 0 {
				add(f.pos)
				f.pos++
				return chunks, c == ']'
			}
		case c == ',' && depth == 1 && f.pos-start >= f.size && f.between():
			add(f.pos)
			start, startLine = f.pos+1, f.line+1
		default:
			f.skip(c)
		}
		if f.pos < len(f.data) && c > ' ' {
			f.prev = c
		}
	}
	return nil, false
}

// between says whether the comma at pos stands between two mappings.
func (f *flowCutter) between() bool {
	next := bytes.TrimLeft(f.data[f.pos+1:min(len(f.data), f.pos+200)], " \r\n\t")
	return f.prev == '}' && len(next) > 0 && next[0] == '{'
}

// skip passes a string or a comment that starts at pos, and counts lines.
func (f *flowCutter) skip(c byte) {
	switch {
	case c == '\n':
		f.line++
	case c == '#' && f.data[f.pos-1] <= ' ':
		for f.pos+1 < len(f.data) && f.data[f.pos+1] != '\n' {
			f.pos++
		}
	case (c == '"' || c == '\'') && bytes.IndexByte([]byte("[{,:"), f.prev) >= 0:
		f.quoted(c)
	}
}

// quoted passes a quoted string; a doubled single quote passes as two strings.
func (f *flowCutter) quoted(quote byte) {
	for f.pos++; f.pos < len(f.data) && f.data[f.pos] != quote; f.pos++ {
		switch f.data[f.pos] {
		case '\n':
			f.line++
		case '\\':
			if quote == '"' {
				f.pos++
			}
		}
	}
	for quote == '\'' && f.pos+1 < len(f.data) && f.data[f.pos+1] == quote {
		f.pos++
		f.quoted(quote)
	}
}

// splitJSON cuts a valid JSON object into its members, and those that are lists into chunks.
func splitJSON(data []byte, size int) (chunks []chunk, ok bool) {
	f := &flowCutter{data: data, size: size}
	if !f.until('{') {
		return nil, false
	}
	f.pos++
	for f.until('"') {
		start, line := f.pos, f.line+1
		f.quoted('"')
		key := data[start+1 : min(f.pos, len(data))]
		f.pos++
		if !f.until(':') {
			return nil, false
		}
		f.pos++
		f.space()
		header := chunk{line: line, object: true}
		if f.pos >= len(data) || data[f.pos] != '[' || !isWord(key) {
			f.value()
			header.text = data[start:f.pos]
			chunks = append(chunks, header)
			continue
		}
		header.text = append(bytes.Clone(data[start:f.pos]), "[]"...)
		items, ok := f.list(0, string(key))
		if !ok {
			return nil, false
		}
		chunks = append(append(chunks, header), items...)
	}
	return chunks, true
}

// until goes on to the next c, over spaces and commas alone.
func (f *flowCutter) until(c byte) bool {
	f.space()
	for f.pos < len(f.data) && f.data[f.pos] == ',' {
		f.pos++
		f.space()
	}
	return f.pos < len(f.data) && f.data[f.pos] == c
}

func (f *flowCutter) space() {
	for ; f.pos < len(f.data) && f.data[f.pos] <= ' '; f.pos++ {
		if f.data[f.pos] == '\n' {
			f.line++
		}
	}
}

// value passes one JSON value.
func (f *flowCutter) value() {
	for depth := 0; f.pos < len(f.data); f.pos++ {
		switch c := f.data[f.pos]; c {
		case '"':
			f.quoted('"')
		case '[', '{':
			depth++
		case ']', '}', ',':
			if depth == 0 {
				return
			}
			if c != ',' {
				depth--
			}
		case '\n':
			f.line++
		}
	}
}
