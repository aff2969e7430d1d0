package http2

import "errors"

// codeLengths are the lengths in bits of the codes of RFC 7541, appendix B. The code is canonical: codes of one length
// are consecutive in the order of their symbols, so the lengths are the whole table. The last is EOS.
var codeLengths = [257]uint8{
	13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
	28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
	6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
	5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
	13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
	7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
	15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
	6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
	20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
	24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
	22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
	21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
	26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
	19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
	20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
	26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
	30,
}

const (
	shortBits = 10 // a look-up tells everything about codes up to here: all of printable text but seven characters
	longest   = 30
	eos       = 256
)

// short is what the next shortBits bits say: up to two symbols and the bits that they take; 0 symbols for longer codes.
type short struct {
	first, second uint8
	symbols, bits uint8
}

// code is the whole code. Within each length, codes count up from first[length] and name symbols[base[length]:].
type code struct {
	bits    [257]uint32
	short   [1 << shortBits]short
	first   [longest + 2]uint32
	base    [longest + 2]int
	symbols [257]uint16
}

var huffman = func() (h code) {
	next, at := uint32(0), 0
	for length := uint8(1); length <= longest; length++ {
		next <<= 1
		h.first[length], h.base[length] = next, at
		for s, l := range codeLengths {
			if l == length {
				h.bits[s], h.symbols[at] = next, uint16(s)
				next, at = next+1, at+1
			}
		}
	}
	h.first[longest+1], h.base[longest+1] = next<<1, at
	h.fillShort()
	return h
}()

func (h *code) fillShort() {
	each := func(prefix uint32, used uint8, give func(symbol, bits uint8, code uint32)) {
		for s := range 256 {
			if bits := used + codeLengths[s]; bits <= shortBits {
				give(uint8(s), bits, prefix<<codeLengths[s]|h.bits[s])
			}
		}
	}
	fill := func(e short, code uint32) {
		rest := shortBits - e.bits
		for i := range uint32(1) << rest {
			h.short[code<<rest|i] = e
		}
	}
	each(0, 0, func(first, bits uint8, code uint32) {
		fill(short{first, 0, 1, bits}, code)
		each(code, bits, func(second, bits uint8, code uint32) { fill(short{first, second, 2, bits}, code) })
	})
}

var errHuffman = errors.New("http2: invalid Huffman code")

// appendDecoded appends the string that src codes. EOS within it, padding of a whole byte, and padding that is not the
// beginning of EOS are errors (RFC 7541, section 5.2).
func appendDecoded(dst, src []byte) ([]byte, error) {
	var acc uint64 // the next bits stand at its top
	n := uint8(0)  // how many
	for {
		for n <= 56 && len(src) > 0 {
			acc |= uint64(src[0]) << (56 - n)
			n += 8
			src = src[1:]
		}
		e := huffman.short[acc>>(64-shortBits)]
		switch {
		case e.symbols > 0 && e.bits <= n:
			dst = append(dst, e.first)
			if e.symbols == 2 {
				dst = append(dst, e.second)
			}
			acc, n = acc<<e.bits, n-e.bits
		case e.symbols == 2 && codeLengths[e.first] <= n: // the second one was made of what isn't there
			dst = append(dst, e.first)
			bits := codeLengths[e.first]
			acc, n = acc<<bits, n-bits
		case n <= 7:
			if acc != ^uint64(0)<<(64-n) {
				return dst, errHuffman
			}
			return dst, nil
		default:
			symbol, bits := huffman.long(uint32(acc >> (64 - longest)))
			if symbol == eos || bits > n {
				return dst, errHuffman
			}
			dst = append(dst, uint8(symbol))
			acc, n = acc<<bits, n-bits
		}
	}
}

// long finds the symbol whose code the longest bits begin with.
func (h *code) long(bits uint32) (symbol uint16, length uint8) {
	for length = shortBits; length < longest; length++ {
		code := bits >> (longest - length)
		if i := int(code) - int(h.first[length]); i >= 0 && i < h.base[length+1]-h.base[length] {
			return h.symbols[h.base[length]+i], length
		}
	}
	return h.symbols[h.base[longest]+int(bits-h.first[longest])], longest
}
