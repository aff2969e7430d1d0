package http2

// static is the table of RFC 7541, appendix A; index 1 is its first entry.
var static = [...]struct{ name, value string }{
	{":authority", ""}, {":method", "GET"}, {":method", "POST"}, {":path", "/"}, {":path", "/index.html"},
	{":scheme", "http"}, {":scheme", "https"}, {":status", "200"}, {":status", "204"}, {":status", "206"},
	{":status", "304"}, {":status", "400"}, {":status", "404"}, {":status", "500"}, {"accept-charset", ""},
	{"accept-encoding", "gzip, deflate"}, {"accept-language", ""}, {"accept-ranges", ""}, {"accept", ""},
	{"access-control-allow-origin", ""}, {"age", ""}, {"allow", ""}, {"authorization", ""}, {"cache-control", ""},
	{"content-disposition", ""}, {"content-encoding", ""}, {"content-language", ""}, {"content-length", ""},
	{"content-location", ""}, {"content-range", ""}, {"content-type", ""}, {"cookie", ""}, {"date", ""}, {"etag", ""},
	{"expect", ""}, {"expires", ""}, {"from", ""}, {"host", ""}, {"if-match", ""}, {"if-modified-since", ""},
	{"if-none-match", ""}, {"if-range", ""}, {"if-unmodified-since", ""}, {"last-modified", ""}, {"link", ""},
	{"location", ""}, {"max-forwards", ""}, {"proxy-authenticate", ""}, {"proxy-authorization", ""}, {"range", ""},
	{"referer", ""}, {"refresh", ""}, {"retry-after", ""}, {"server", ""}, {"set-cookie", ""},
	{"strict-transport-security", ""}, {"transfer-encoding", ""}, {"user-agent", ""}, {"vary", ""}, {"via", ""},
	{"www-authenticate", ""},
}

// staticBytes are the same entries as bytes, side by side.
var staticBytes = func() (t [len(static)]Field) {
	var all []byte
	for _, e := range static {
		all = append(append(all, e.name...), e.value...)
	}
	for i, e := range static {
		n, v := len(e.name), len(e.value)
		t[i] = Field{Name: all[:n:n], Value: all[n : n+v : n+v]}
		all = all[n+v:]
	}
	return t
}()

// statusIndex is the entry of a whole ":status" field, 0 for the others.
func statusIndex(status int) int {
	switch status {
	case 200:
		return 8
	case 204:
		return 9
	case 206:
		return 10
	case 304:
		return 11
	case 400:
		return 12
	case 404:
		return 13
	case 500:
		return 14
	}
	return 0
}

// statusName is an entry with the name ":status".
const statusName = 8

// nameIndex finds the entry with a name by a hash under which no two names collide; cases don't matter.
func nameIndex[S ~string | ~[]byte](name S) int {
	if len(name) < 2 {
		return 0
	}
	i := names[nameHash(len(name), name[0], name[len(name)-1], name[len(name)/2])]
	if i == 0 || !sameName(static[i-1].name, name) {
		return 0
	}
	return int(i)
}

func nameHash(n int, first, last, mid byte) uint8 {
	return uint8(uint32(n)*nameMulA+uint32(first|0x20)*nameMulB+uint32(last|0x20)*nameMulC+uint32(mid|0x20)*nameMulD) & 127
}

var names = func() (t [128]uint8) {
	for i := len(static) - 1; i >= 0; i-- {
		n := static[i].name
		t[nameHash(len(n), n[0], n[len(n)-1], n[len(n)/2])] = uint8(i + 1)
	}
	return t
}()

// sameName compares with a lower-case name.
func sameName[S ~string | ~[]byte](lower string, name S) bool {
	if len(lower) != len(name) {
		return false
	}
	for i := range len(lower) {
		c := name[i]
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// The factors were searched for: they give every name of the table a place of its own.
const nameMulA, nameMulB, nameMulC, nameMulD = 51, 74, 91, 163
