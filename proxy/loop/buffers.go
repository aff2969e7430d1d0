//go:build linux

package loop

// The sizes of buffers: what a head is read into, what can be read at once, what is kept of it when the other side is slow.
const (
	inSize   = 4 << 10
	readSize = 64 << 10
	bigSize  = readSize + 8<<10
)

// buffers are a loop's free ones, the last used first. What doesn't fit in, or was grown, is left to the garbage collector.
type buffers struct{ small, big [][]byte }

const (
	keepSmall = 512 // 2 MB
	keepBig   = 32  // 2.3 MB
)

// in gives a buffer of inSize bytes.
func (b *buffers) in() []byte {
	if n := len(b.small); n > 0 {
		p := b.small[n-1]
		b.small = b.small[:n-1]
		return p
	}
	return make([]byte, inSize)
}

// out gives an empty buffer with room for n bytes.
func (b *buffers) out(n int) []byte {
	switch {
	case n > bigSize:
		return make([]byte, 0, n)
	case n <= inSize:
		return b.in()[:0]
	}
	if k := len(b.big); k > 0 {
		p := b.big[k-1]
		b.big = b.big[:k-1]
		return p
	}
	return make([]byte, 0, bigSize)
}

// put takes a buffer back; nobody may look at it any more.
func (b *buffers) put(p []byte) {
	switch {
	case cap(p) == inSize && len(b.small) < keepSmall:
		b.small = append(b.small, p[:inSize])
	case cap(p) == bigSize && len(b.big) < keepBig:
		b.big = append(b.big, p[:0])
	}
}
