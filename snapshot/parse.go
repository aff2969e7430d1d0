package snapshot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// MaxFile bounds one document file.
const MaxFile = 128 << 20

// file decodes one file into the Config; its broken YAML hides nothing of other files.
func (d *decoder) file(f File) {
	d.name, d.line = f.Name, 0
	data, ok := d.text(f.Data)
	if !ok {
		return
	}
	cut := split
	if json.Valid(data) {
		data, cut = yamlEscapes(data), splitJSON
	}
	before := d.mark()
	if chunks, ok := cut(data, d.chunkBytes); ok && d.chunks(chunks) {
		return
	}
	d.reset(before)
	d.whole(data)
}

// text checks what must hold before anything is parsed.
func (d *decoder) text(data []byte) ([]byte, bool) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	switch {
	case len(data) > MaxFile:
		d.problem(1, "", fmt.Sprintf("the file is larger than %d MiB", MaxFile>>20), "cut it into several files")
	case len(bytes.TrimSpace(data)) == 0:
		d.problem(1, "", "the file is empty", "a document starts with version: v1")
	case !utf8.Valid(data):
		d.problem(invalidLine(data), "", "the file is not UTF-8", "save it as UTF-8 without other encodings")
	default:
		return data, true
	}
	return nil, false
}

// yamlEscapes rewrites what JSON strings may hold and YAML's parser does not read: "\/" and surrogate pairs. Lines stay.
func yamlEscapes(data []byte) []byte {
	if !bytes.Contains(data, []byte(`\/`)) && !bytes.Contains(bytes.ToLower(data), []byte(`\ud`)) {
		return data
	}
	out := make([]byte, 0, len(data))
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' { // in valid JSON a backslash stands in a string, with something after it
			out = append(out, data[i])
			continue
		}
		next := data[i+1]
		if r := surrogates(data[i:]); r != utf8.RuneError {
			out = utf8.AppendRune(out, r)
			i += 11
			continue
		}
		if next != '/' {
			out = append(out, '\\')
		}
		out = append(out, next)
		i++
	}
	return out
}

// surrogates reads the pair of escapes at the head of s; RuneError when there is none.
func surrogates(s []byte) rune {
	if len(s) < 12 || s[1] != 'u' || s[6] != '\\' || s[7] != 'u' {
		return utf8.RuneError
	}
	hi, err1 := strconv.ParseUint(string(s[2:6]), 16, 16)
	lo, err2 := strconv.ParseUint(string(s[8:12]), 16, 16)
	if err1 != nil || err2 != nil {
		return utf8.RuneError
	}
	return utf16.DecodeRune(rune(hi), rune(lo))
}

func invalidLine(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return 1 + bytes.Count(data[:i], []byte("\n"))
		}
		i += size
	}
	return 1
}

// chunks decodes the pieces of a cut file; false means that some piece is not what it was cut as.
func (d *decoder) chunks(chunks []chunk) bool {
	seen := topKeys{}
	document, sections := -1, 0
	var done map[string]int // items of each section so far
	for _, c := range chunks {
		if c.document != document {
			document, seen, done = c.document, topKeys{}, map[string]int{}
		}
		d.line = c.line - 1
		nodes, err := parse(c.yaml())
		if err != nil || len(nodes) > 1 {
			return false
		}
		if len(nodes) == 0 {
			continue // comments only
		}
		root := nodes[0].Content[0]
		d.untag(root)
		switch {
		case c.key == "" && root.Kind == yaml.MappingNode:
			sections++
			d.document(root, seen)
		case c.key != "" && root.Kind == yaml.SequenceNode:
			d.items(c.key, root, done[c.key])
			done[c.key] += len(root.Content)
		default:
			return false
		}
	}
	if sections == 0 {
		d.problem(1, "", "the file holds no document", "a document starts with version: v1")
	}
	return true
}

// whole parses the file at once: the general case, and the one that reports broken YAML.
func (d *decoder) whole(data []byte) {
	d.line = 0
	nodes, err := parse(data)
	if err != nil {
		line, text := yamlFault(err)
		d.problem(line, "", "not valid YAML: "+text, "nothing else of this file was checked")
		return
	}
	documents := 0
	for _, n := range nodes {
		root := n.Content[0]
		d.untag(root)
		if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
			continue
		}
		documents++
		if root.Kind != yaml.MappingNode {
			d.problem(root.Line, "", "a document must be a mapping", "start with version: v1 and routes:")
			continue
		}
		d.document(root, topKeys{})
	}
	if documents == 0 {
		d.problem(1, "", "the file holds no document", "a document starts with version: v1")
	}
}

// untag reports every tag, and reads on as if it weren't there: what a value is its key says alone.
func (d *decoder) untag(n *yaml.Node) {
	if n.Style&yaml.TaggedStyle != 0 {
		d.problem(d.line+n.Line, "", "has the tag "+clip(n.Tag), "leave the tag out")
		n.Style, n.Tag = n.Style&^yaml.TaggedStyle, ""
		n.Tag = n.ShortTag()
	}
	for _, c := range n.Content {
		d.untag(c)
	}
}

// parse gives every YAML document of the text; each node has one child.
func parse(text []byte) (nodes []*yaml.Node, err error) {
	defer func() {
		if r := recover(); r != nil {
			nodes, err = nil, fmt.Errorf("%v", r)
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(text))
	for {
		n := new(yaml.Node)
		err := dec.Decode(n)
		if errors.Is(err, io.EOF) {
			return nodes, nil
		}
		if err != nil {
			return nil, err
		}
		if len(n.Content) != 1 {
			continue
		}
		if nodes = append(nodes, n); len(nodes) > maxDocuments {
			return nil, fmt.Errorf("yaml: line %d: more than %d documents in one file", n.Line, maxDocuments)
		}
	}
}

const maxDocuments = 10_000

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(.*)`)

func yamlFault(err error) (line int, text string) {
	m := yamlLine.FindStringSubmatch(strings.ReplaceAll(err.Error(), "\n", " "))
	line, _ = strconv.Atoi(m[1])
	if line > 0 && strings.HasPrefix(m[2], "did not find expected") {
		line++ // the parser counts its lines from 0, the scanner from 1
	}
	return max(line, 1), m[2]
}
