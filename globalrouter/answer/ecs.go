package answer

import "encoding/binary"

// OptionECS is EDNS Client Subnet (RFC 7871).
const OptionECS = 8

// ECS is a client subnet option as it came: Echo is its whole data, to be sent back with only the scope changed.
type ECS struct {
	Echo   [20]byte
	Len    uint8
	Family uint16
	Source uint8
}

// Parse reads the option's data. It is false for an unknown family, a scope in a query, a wrong length or host bits (RFC 7871
// section 7.1.2: FORMERR).
func (e *ECS) Parse(data []byte) bool {
	if len(data) < 4 || len(data) > len(e.Echo) {
		return false
	}
	family, source := binary.BigEndian.Uint16(data), data[2]
	width := [...]uint8{0, 32, 128}
	if family > 2 || source > width[family] || data[3] != 0 || len(data)-4 != (int(source)+7)/8 {
		return false
	}
	if r := source % 8; r != 0 && data[len(data)-1]<<r != 0 {
		return false
	}
	e.Echo = [20]byte{}
	e.Len, e.Family, e.Source = uint8(copy(e.Echo[:], data)), family, source
	return true
}

// client is the subnet's first address; it is false when the option asks not to be used (source 0).
func (e *ECS) client() (client, bool) {
	if e.Len == 0 || e.Source == 0 {
		return client{}, false
	}
	if e.Family == 1 {
		return client{hi: uint64(binary.BigEndian.Uint32(e.Echo[4:])) << 32, four: true, ecs: true}, true
	}
	return client{hi: binary.BigEndian.Uint64(e.Echo[4:]), lo: binary.BigEndian.Uint64(e.Echo[12:]), ecs: true}, true
}
