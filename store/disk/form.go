package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"

	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/store/mem"
)

// The form of the log, integers in records as varints, elsewhere little-endian:
//
//	header | record(state) | record(commit)…
//	record  = uint32 length of payload | uint32 CRC-32C of payload | uint32 CRC-32C of these 8 bytes | payload
//	state   = 's' revision n (key value created modified leased)ⁿ 0xA5
//	commit  = 'c' revision n (key kind value)ⁿ 0xA5         kind: 'd' delete without value, 'p' put, 'l' put under a lease
//
// The length has a checksum of its own, so that a damaged length is not taken for a cut-off record. The last byte of a
// payload is never zero, so that a record that the file system only made room for is told from a damaged one.
const (
	header     = "cellgate store 1"
	frameBytes = 12
	endMark    = 0xA5
)

// ErrCorrupt says that the log is damaged at a place that a crash can't damage.
var ErrCorrupt = errors.New("store: the log is damaged")

func frame(payload []byte) []byte {
	table := crc32.MakeTable(crc32.Castagnoli)
	b := make([]byte, frameBytes, frameBytes+len(payload))
	binary.LittleEndian.PutUint32(b[0:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(payload, table))
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b[:8], table))
	return append(b, payload...)
}

// unframe cuts the first record off. torn: it was never written whole, and nothing is behind it.
func unframe(b []byte) (payload, rest []byte, torn bool, err error) {
	table := crc32.MakeTable(crc32.Castagnoli)
	if len(b) < frameBytes || zeros(b[frameBytes:]) { // no payload is nothing but zeros
		return nil, nil, true, nil
	}
	n := int64(binary.LittleEndian.Uint32(b[0:]))
	if binary.LittleEndian.Uint32(b[8:]) != crc32.Checksum(b[:8], table) {
		return nil, nil, false, errors.New("checksum of a length")
	}
	if n > int64(len(b)-frameBytes) {
		return nil, nil, true, nil
	}
	payload, rest = b[frameBytes:frameBytes+n], b[frameBytes+n:]
	if binary.LittleEndian.Uint32(b[4:]) == crc32.Checksum(payload, table) {
		return payload, rest, false, nil
	}
	if n > 0 && payload[n-1] == 0 && zeros(rest) {
		return nil, nil, true, nil
	}
	return nil, nil, false, errors.New("checksum of a record")
}

func zeros(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// decode reads a whole file: the state at its end, the length of the state at its beginning, and of all that is whole.
func decode(raw []byte) (state mem.State, base, size int64, err error) {
	at := int64(len(header))
	corrupt := func(why any) error { return fmt.Errorf("%w: at byte %d: %v", ErrCorrupt, at, why) }
	if !bytes.HasPrefix(raw, []byte(header)) {
		return state, 0, 0, fmt.Errorf("%w: it does not begin with %q", ErrCorrupt, header)
	}
	for rest := raw[at:]; len(rest) > 0; {
		payload, after, torn, err := unframe(rest)
		if err != nil {
			return state, 0, 0, corrupt(err)
		}
		if torn {
			break
		}
		first := base == 0
		if first {
			state, err = decodeState(payload)
		} else {
			err = applyCommit(payload, &state)
		}
		if err != nil {
			return state, 0, 0, corrupt(err)
		}
		at, rest = at+int64(len(rest)-len(after)), after
		if first {
			base = at
		}
	}
	if base == 0 { // the state came with the file's name, so it can't be missing
		return state, 0, 0, corrupt("the state is cut off")
	}
	return state, base, at, nil
}

func encodeState(s *mem.State) []byte {
	b := []byte{'s'}
	b = binary.AppendUvarint(b, uint64(s.Revision))
	b = binary.AppendUvarint(b, uint64(len(s.Entries)))
	for _, key := range slices.Sorted(maps.Keys(s.Entries)) {
		h := s.Entries[key]
		b = appendBytes(b, []byte(key))
		b = appendBytes(b, h.Value)
		b = binary.AppendUvarint(b, uint64(h.Created))
		b = binary.AppendUvarint(b, uint64(h.Modified))
		leased := uint64(0)
		if h.Leased {
			leased = 1
		}
		b = binary.AppendUvarint(b, leased)
	}
	return append(b, endMark)
}

func encodeCommit(rev store.Revision, ops []store.Op) []byte {
	b := []byte{'c'}
	b = binary.AppendUvarint(b, uint64(rev))
	b = binary.AppendUvarint(b, uint64(len(ops)))
	for _, op := range ops {
		b = appendBytes(b, []byte(op.Key))
		switch {
		case op.Delete:
			b = append(b, 'd')
			continue
		case op.Lease != nil:
			b = append(b, 'l')
		default:
			b = append(b, 'p')
		}
		b = appendBytes(b, op.Value)
	}
	return append(b, endMark)
}

func appendBytes(b, field []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(field)))
	return append(b, field...)
}

// reader takes a payload apart; after the first fault everything is zero and bad is set.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) byte() byte {
	if len(r.rest) == 0 {
		r.bad = true
		return 0
	}
	b := r.rest[0]
	r.rest = r.rest[1:]
	return b
}

func (r *reader) number() uint64 {
	n, used := binary.Uvarint(r.rest)
	if used <= 0 {
		r.bad, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[used:]
	return n
}

func (r *reader) bytes() []byte {
	n := r.number()
	if n > uint64(len(r.rest)) {
		r.bad, r.rest = true, nil
		return nil
	}
	field := r.rest[:n:n]
	r.rest = r.rest[n:]
	return field
}

func (r *reader) end() error {
	if r.byte() != endMark || r.bad || len(r.rest) != 0 {
		return errors.New("a record that makes no sense")
	}
	return nil
}

func decodeState(payload []byte) (mem.State, error) {
	r := &reader{rest: payload}
	s := mem.State{Entries: map[string]mem.Held{}}
	if r.byte() != 's' {
		return s, errors.New("no state at the beginning")
	}
	s.Revision = store.Revision(r.number())
	for n := r.number(); n > 0 && !r.bad; n-- {
		var h mem.Held
		h.Key = string(r.bytes())
		h.Value = bytes.Clone(r.bytes())
		h.Created, h.Modified = store.Revision(r.number()), store.Revision(r.number())
		h.Leased = r.number() != 0
		s.Entries[h.Key] = h
	}
	return s, r.end()
}

func applyCommit(payload []byte, s *mem.State) error {
	r := &reader{rest: payload}
	if r.byte() != 'c' {
		return errors.New("no commit")
	}
	rev := store.Revision(r.number())
	var ops []store.Op
	for n := r.number(); n > 0 && !r.bad; n-- {
		op := store.Op{Key: string(r.bytes())}
		switch kind := r.byte(); kind {
		case 'd':
			op.Delete = true
		case 'l':
			op.Lease = buried{}
			fallthrough
		case 'p':
			op.Value = bytes.Clone(r.bytes())
		default:
			r.bad = true
		}
		ops = append(ops, op)
	}
	if err := r.end(); err != nil {
		return err
	}
	if rev != s.Revision+1 {
		return fmt.Errorf("revision %d after %d", rev, s.Revision)
	}
	s.Apply(rev, ops)
	return nil
}

// buried marks what was put under a lease whose holder is dead.
type buried struct{ store.Lease }
