package http2

import "errors"

// Field is one decoded header field, valid until the next call of the decoder that gave it.
type Field struct{ Name, Value []byte }

var errHPACK = errors.New("http2: invalid header block")

const (
	tableSize    = 4096 // of the dynamic table, in the measure of RFC 7541, section 4.1; the protocol's default
	entryCost    = 32
	maxEntries   = tableSize / entryCost
	keepScratch  = 4 << 10 // what a decoder keeps between blocks
	firstTable   = 512
	maxIntegers  = 4 // bytes behind an integer's prefix: 28 bits are more than any length here
	updatesAhead = 2 // table size updates that may begin a block (RFC 7541, section 4.2)
)

// Decoder reads header blocks (RFC 7541). Its dynamic table is one piece of memory: entries are appended, and moved to its
// front when its end is reached, so each stays in one piece. It never grows beyond twice the table's size.
// The zero value is a decoder with an empty table.
type Decoder struct {
	buf     []byte
	entries [maxEntries]entry // a ring
	oldest  int
	count   int
	size    int // by section 4.1
	cut     int // how far the encoder has lowered the table's size below tableSize
	updates int // that may still come at this place of the block
	scratch []byte
}

type entry struct{ at, name, value uint16 }

// Begin prepares for a new block.
func (d *Decoder) Begin() {
	d.updates = updatesAhead
	if cap(d.scratch) > keepScratch {
		d.scratch = nil
	}
}

// Next reads the field that b, the rest of a block, begins with, and returns how much of b it took. A piece without a
// field, a table size update, has ok false. After an error the connection can't go on (RFC 9113, section 4.3).
func (d *Decoder) Next(b []byte) (f Field, n int, ok bool, err error) {
	switch c := b[0]; {
	case c&0x80 != 0:
		d.updates = 0
		i, n, err := readInt(b, 7)
		if err != nil {
			return f, 0, false, err
		}
		f, err = d.at(i)
		return f, n, true, err
	case c&0xe0 == 0x20:
		n, err := d.update(b)
		return f, n, false, err
	case c&0x40 != 0:
		if f, n, err = d.literal(b, 6); err == nil {
			f = d.insert(f)
		}
		return f, n, true, err
	}
	f, n, err = d.literal(b, 4)
	return f, n, true, err
}

// update takes a new size of the table.
func (d *Decoder) update(b []byte) (int, error) {
	size, n, err := readInt(b, 5)
	if err != nil || size > tableSize || d.updates == 0 {
		return 0, errHPACK
	}
	d.updates--
	d.cut = tableSize - size
	for d.size > size {
		d.evict()
	}
	return n, nil
}

// at is the entry with an index of both tables.
func (d *Decoder) at(i int) (Field, error) {
	switch {
	case i == 0 || i > len(static)+d.count:
		return Field{}, errHPACK
	case i <= len(static):
		return staticBytes[i-1], nil
	}
	e := &d.entries[(d.oldest+d.count-(i-len(static)))%maxEntries]
	mid := e.at + e.name
	return Field{d.buf[e.at:mid:mid], d.buf[mid : mid+e.value : mid+e.value]}, nil
}

// literal reads a field whose name may be an index.
func (d *Decoder) literal(b []byte, prefix uint8) (f Field, n int, err error) {
	d.updates = 0
	d.scratch = d.scratch[:0]
	i, n, err := readInt(b, prefix)
	if err != nil {
		return f, 0, err
	}
	if i > 0 {
		f, err = d.at(i)
	} else {
		f.Name, n, err = d.str(b, n)
	}
	if err != nil {
		return f, 0, err
	}
	f.Value, n, err = d.str(b, n)
	return f, n, err
}

// str reads the string at b[n:] and returns where it ends.
func (d *Decoder) str(b []byte, n int) ([]byte, int, error) {
	if n >= len(b) {
		return nil, 0, errHPACK
	}
	length, m, err := readInt(b[n:], 7)
	if err != nil || length > len(b)-n-m {
		return nil, 0, errHPACK
	}
	coded, end := b[n]&0x80 != 0, n+m+length
	s := b[n+m : end : end]
	if !coded {
		return s, end, nil
	}
	at := len(d.scratch)
	if d.scratch, err = appendDecoded(d.scratch, s); err != nil {
		return nil, 0, err
	}
	return d.scratch[at:len(d.scratch):len(d.scratch)], end, nil
}

func (d *Decoder) evict() {
	e := &d.entries[d.oldest]
	d.size -= int(e.name) + int(e.value) + entryCost
	d.oldest = (d.oldest + 1) % maxEntries
	d.count--
}

// insert makes f the newest entry and gives it as it lies there. One that is larger than the table empties it.
func (d *Decoder) insert(f Field) Field {
	length := len(f.Name) + len(f.Value)
	for d.count > 0 && d.size+length+entryCost > tableSize-d.cut {
		d.evict()
	}
	if length+entryCost > tableSize-d.cut {
		return f
	}
	if len(d.buf)+length > cap(d.buf) {
		f = d.room(f, length)
	}
	at := len(d.buf)
	d.buf = append(append(d.buf, f.Name...), f.Value...)
	d.entries[(d.oldest+d.count)%maxEntries] = entry{uint16(at), uint16(len(f.Name)), uint16(len(f.Value))}
	d.count++
	d.size += length + entryCost
	f, _ = d.at(len(static) + 1)
	return f
}

// room moves the entries to the front of the memory, of a larger one if less than half of it is free. The name of f may
// lie in an entry that is gone already.
func (d *Decoder) room(f Field, length int) Field {
	live := d.buf[len(d.buf):]
	if d.count > 0 {
		live = d.buf[d.entries[d.oldest].at:]
	}
	to := d.buf
	if need := len(live) + length; 2*need > cap(to) {
		to = make([]byte, 0, min(max(firstTable, 4*need), 2*tableSize))
	} else {
		d.scratch = append(d.scratch, f.Name...)
		f.Name = d.scratch[len(d.scratch)-len(f.Name):]
	}
	shift := uint16(len(d.buf) - len(live))
	for i := range d.count {
		d.entries[(d.oldest+i)%maxEntries].at -= shift
	}
	d.buf = append(to[:0], live...)
	return f
}

// readInt reads an integer with a prefix of some bits (RFC 7541, section 5.1) at the start of b.
func readInt(b []byte, prefix uint8) (v, n int, err error) {
	most := 1<<prefix - 1
	if v = int(b[0]) & most; v < most {
		return v, 1, nil
	}
	for n = 1; n <= maxIntegers && n < len(b); n++ {
		v += int(b[n]&0x7f) << (7 * (n - 1))
		if b[n]&0x80 == 0 {
			return v, n + 1, nil
		}
	}
	return 0, 0, errHPACK
}

func appendInt(dst []byte, first, prefix uint8, v int) []byte {
	most := 1<<prefix - 1
	if v < most {
		return append(dst, first|byte(v))
	}
	dst = append(dst, first|byte(most))
	for v -= most; v >= 0x80; v >>= 7 {
		dst = append(dst, byte(v)|0x80)
	}
	return append(dst, byte(v))
}
