package snapshot

import "bytes"

// A chunk is a piece of a YAML file that is parsed by itself, so that the node tree of a large file never stands in
// memory at once. Cutting is only a guess from line starts; it is exact because every chunk must then parse as the one
// thing it was cut as: text that ends in mid-string or mid-bracket does not, and the file is parsed whole instead.
type chunk struct {
	document int    // number of the YAML document within the file
	line     int    // number of the chunk's first line, from 1
	key      string // with items: the section whose items these are; else "" and the text is whole sections
	first    int    // with items: index of the first item
	text     []byte
}

// chunkBytes is the size from which a chunk of list items is closed.
const chunkBytes = 64 << 10

// split cuts a file; ok is false when its shape is not the plain one of block sections at the left margin.
func split(data []byte) (chunks []chunk, ok bool) {
	s := splitter{data: data}
	for s.pos < len(data) {
		if !s.step() {
			return nil, false
		}
	}
	s.close(len(data))
	return s.chunks, true
}

type splitter struct {
	data     []byte
	pos      int // start of the current line
	line     int // lines before pos
	document int
	chunks   []chunk

	open      bool // a chunk is open since start
	start     int
	startLine int
	key       string // section header that may turn out to have a list
	header    bool   // only the header of the section was seen so far
	inList    bool
	indent    int // of the list's items
	items     int // items in closed chunks
	openItems int
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
	default:
		s.header = false
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
	if rest := bytes.TrimLeft(content[i+1:], " "); len(rest) == 0 || rest[0] == '#' {
		s.header = true
	}
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
		s.openItems = 0
	} else if s.pos-s.start >= chunkBytes {
		s.cut(s.pos, s.key)
		s.items += s.openItems
		s.begin()
		s.openItems = 0
	}
	s.openItems++
}

func (s *splitter) begin() {
	s.open, s.start, s.startLine = true, s.pos, s.line+1
}

func (s *splitter) cut(end int, key string) {
	if s.open && end > s.start {
		s.chunks = append(s.chunks, chunk{s.document, s.startLine, key, s.items, s.data[s.start:end]})
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
	s.key, s.header, s.inList, s.items, s.openItems = "", false, false, 0, 0
}
