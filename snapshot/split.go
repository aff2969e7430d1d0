package snapshot

import "bytes"

// A chunk is a piece of a YAML file that is parsed by itself, so that the node tree of a large file never stands in
// memory at once. Cutting is only a guess from line starts; it is exact because every chunk must then parse as the one
// thing it was cut as: text that ends in mid-string or mid-bracket does not, and the file is parsed whole instead.
type chunk struct {
	document int    // number of the YAML document within the file
	line     int    // number of the chunk's first line, from 1
	key      string // with items: the section whose items these are; else "" and the text is whole sections
	flow     bool   // the text is items in flow style, without the list's brackets
	object   bool   // the text is members of a JSON object, without its braces
	text     []byte
}

// yaml is the chunk as a YAML document of its own.
func (c chunk) yaml() []byte {
	switch {
	case c.flow:
		return bytes.Join([][]byte{[]byte("["), c.text, []byte("]")}, nil)
	case c.object:
		return bytes.Join([][]byte{[]byte("{"), c.text, []byte("}")}, nil)
	}
	return c.text
}

// chunkBytes is the size from which a chunk of list items is closed.
const chunkBytes = 64 << 10

// split cuts a file into chunks of about size bytes; ok is false when its shape is not the plain one of block sections at the left margin.
func split(data []byte, size int) (chunks []chunk, ok bool) {
	s := splitter{data: data, size: size}
	for s.pos < len(data) {
		if !s.step() {
			return nil, false
		}
	}
	s.close(len(data))
	return s.chunks, true
}

type splitter struct {
	size     int
	data     []byte
	pos      int // start of the current line
	line     int // lines before pos
	document int
	chunks   []chunk

	open       bool // a chunk is open since start
	start      int
	startLine  int
	key        string // section header that may turn out to have a list
	header     bool   // only the header of the section was seen so far
	inList     bool
	indent     int // of the list's items
	resume     int // with a flow list taken: where and
	resumeLine int // after how many lines to go on
}

// step takes one line.
func (s *splitter) step() bool {
	line := s.data[s.pos:]
	next := len(s.data)
	if i := bytes.IndexByte(line, '\n'); i >= 0 {
		line, next = line[:i], s.pos+i+1
	}
	content := bytes.TrimLeft(line, " ")
	indent := len(line) - len(content)
	content = bytes.TrimRight(content, " \t\r")
	switch {
	case len(content) == 0 || content[0] == '#':
	case indent == 0 && string(content) == "---":
		s.close(s.pos)
		s.document++
		s.pos, s.line = next, s.line+1
		return true
	case indent == 0 && !s.margin(content):
		return false
	case s.isItem(content, indent):
		s.item(indent)
	case indent == 0: // margin has begun a section
	case s.key == "": // indented text that belongs to no section
		return false
	default:
		s.header = false
	}
	if s.resume > 0 {
		s.pos, s.line, s.resume = s.resume, s.resumeLine, 0
		return true
	}
	if !s.open {
		s.begin()
	}
	s.pos, s.line = next, s.line+1
	return true
}

// margin takes a line at the left margin: an item of the open section, or the start of a section.
func (s *splitter) margin(content []byte) bool {
	if content[0] == '-' {
		return s.key != "" && (len(content) == 1 || content[1] == ' ') && (s.header || s.inList && s.indent == 0)
	}
	i := bytes.IndexByte(content, ':')
	if i <= 0 || !isWord(content[:i]) {
		return false
	}
	s.close(s.pos)
	s.begin()
	s.key, s.header = string(content[:i]), false
	rest := bytes.TrimLeft(content[i+1:], " ")
	if len(rest) == 0 || rest[0] == '#' {
		s.header = s.key != "version" // which is no list: a whole section says what is wrong with it
	}
	if len(rest) > 0 && rest[0] == '[' && content[i+1] == ' ' {
		return s.flow(s.pos + len(content) - len(rest))
	}
	return true
}

// flow takes a section whose value is a flow list that starts at bracket, up to the end of the list's last line.
func (s *splitter) flow(bracket int) bool {
	f := &flowCutter{data: s.data, size: s.size, pos: bracket, line: s.line}
	items, ok := f.list(s.document, s.key)
	if !ok {
		return false
	}
	header := append(bytes.Clone(s.data[s.start:bracket]), "[]"...)
	s.chunks = append(s.chunks, chunk{document: s.document, line: s.startLine, text: header})
	s.chunks = append(s.chunks, items...)
	s.open, s.key = false, ""
	tail := s.data[f.pos:]
	if i := bytes.IndexByte(tail, '\n'); i >= 0 {
		tail = tail[:i]
	}
	rest := bytes.Trim(tail, " \t\r")
	if len(rest) > 0 && (rest[0] != '#' || tail[0] > ' ') {
		return false
	}
	s.resume, s.resumeLine = min(f.pos+len(tail)+1, len(s.data)), f.line+1
	return true
}

func isWord(b []byte) bool {
	for _, c := range b {
		if (c < 'a' || c > 'z') && c != '_' {
			return false
		}
	}
	return true
}

func (s *splitter) isItem(content []byte, indent int) bool {
	dash := content[0] == '-' && (len(content) == 1 || content[1] == ' ')
	return dash && (s.header || s.inList && indent == s.indent)
}

// item starts a list with its first item, or closes a chunk that has grown enough before the next one.
func (s *splitter) item(indent int) {
	if !s.inList {
		s.inList, s.header, s.indent = true, false, indent
		s.cut(s.pos, "") // the header alone; its empty value is a null list
		s.begin()
	} else if s.pos-s.start >= s.size {
		s.cut(s.pos, s.key)
		s.begin()
	}
}

func (s *splitter) begin() {
	s.open, s.start, s.startLine = true, s.pos, s.line+1
}

func (s *splitter) cut(end int, key string) {
	if s.open && end > s.start {
		s.chunks = append(s.chunks, chunk{document: s.document, line: s.startLine, key: key, text: s.data[s.start:end]})
	}
	s.open = false
}

// close ends the open section before end.
func (s *splitter) close(end int) {
	key := ""
	if s.inList {
		key = s.key
	}
	s.cut(end, key)
	s.key, s.header, s.inList = "", false, false
}
