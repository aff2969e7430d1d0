package route

import "unsafe"

// Pack moves what the tables hold into one piece of memory, each in cache lines of its own, and gives that. They are nobody
// else's yet. Look-ups then meet one place in memory instead of a few for every host, and large pages can back it.
func Pack(tables []*Table) []byte {
	n := 0
	for _, t := range tables {
		n += lines(t.nodes) + lines(t.edges) + lines(t.rules) + lines(t.preds) + lines(t.tails) + lines([]byte(t.text))
	}
	all := make([]byte, n)
	rest := all
	for _, t := range tables {
		t.nodes, rest = move(rest, t.nodes)
		t.edges, rest = move(rest, t.edges)
		t.rules, rest = move(rest, t.rules)
		t.preds, rest = move(rest, t.preds)
		t.tails, rest = move(rest, t.tails)
		var text []byte
		text, rest = move(rest, []byte(t.text))
		t.text = unsafe.String(unsafe.SliceData(text), len(text))
	}
	return all
}

// lines is the size of s in bytes, in whole cache lines.
func lines[T any](s []T) int {
	var one T
	return (len(s)*int(unsafe.Sizeof(one)) + 63) &^ 63
}

// move copies from, which holds no pointers, to the head of to.
func move[T any](to []byte, from []T) (moved []T, rest []byte) {
	if len(from) == 0 {
		return nil, to
	}
	moved = unsafe.Slice((*T)(unsafe.Pointer(&to[0])), len(from))
	copy(moved, from)
	return moved, to[lines(from):]
}
