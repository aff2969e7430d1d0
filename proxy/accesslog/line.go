package accesslog

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/cellgate/cellgate/proxy"
)

// The longest that strings of the client's or an author's appear in a line, in bytes.
const (
	maxPath = 160
	maxWord = 64
)

// scratch is where a line is made. Lines of the same second share the text of their date.
type scratch struct {
	line   []byte
	second int64
	date   []byte
}

// write makes the line of one exchange. Empty members are left out; times are in milliseconds.
func (s *scratch) write(r *proxy.Record) []byte {
	b := s.appendTime(append(s.line[:0], `{"time":"`...), r.Start)
	b = append(b, `","status":`...)
	b = strconv.AppendInt(b, int64(r.Status), 10)
	b = text(b, `,"reason":"`, r.Reason.String(), maxWord)
	b = text(b, `,"method":"`, r.Method, maxWord)
	b = text(b, `,"host":"`, r.Host, maxWord)
	b = text(b, `,"path":"`, r.Path, maxPath)
	b = text(b, `,"proto":"`, r.Protocol, maxWord)
	b = flag(b, `,"tls":true`, r.TLS)
	if r.Peer.IsValid() {
		b = append(b, `,"peer":"`...)
		b = r.Peer.WithZone("").AppendTo(b)
		b = append(b, '"')
	}
	b = text(b, `,"id":"`, r.RequestID, maxWord)
	b = millis(b, `,"ms":`, r.Total)
	if r.Open > 0 {
		b = millis(b, `,"open_ms":`, r.Open)
	}
	if r.Attempts > 0 {
		b = millis(b, `,"upstream_ms":`, r.Upstream)
		b = number(b, `,"attempts":`, int64(r.Attempts))
	}
	b = text(b, `,"tenant":"`, r.Tenant, maxWord)
	b = text(b, `,"route":"`, r.Route, maxWord)
	b = text(b, `,"upstream":"`, r.UpstreamID, maxWord)
	b = text(b, `,"endpoint":"`, r.Endpoint, maxWord)
	b = text(b, `,"via":"`, r.Via, maxWord)
	b = flag(b, `,"stayed":true`, r.Stayed)
	b = text(b, `,"user":"`, r.User, maxWord)
	b = text(b, `,"consumer":"`, r.Consumer, maxWord)
	b = number(b, `,"in":`, r.BytesIn)
	b = number(b, `,"out":`, r.BytesOut)
	b = flag(b, `,"truncated":true`, r.Truncated)
	b = number(b, `,"version":`, int64(r.Snapshot))
	s.line = append(b, '}', '\n')
	return s.line
}

// appendTime writes RFC 3339 in UTC with milliseconds.
func (s *scratch) appendTime(b []byte, t time.Time) []byte {
	if at := t.Unix(); at != s.second || len(s.date) == 0 {
		s.second, s.date = at, t.UTC().AppendFormat(s.date[:0], "2006-01-02T15:04:05.")
	}
	ms := t.Nanosecond() / int(time.Millisecond)
	return append(append(b, s.date...), digit(ms/100), digit(ms/10), digit(ms), 'Z')
}

func digit(n int) byte { return byte('0' + n%10) }

// The functions below append a member that isn't empty; key is all that stands before its value.

func number(b []byte, key string, n int64) []byte {
	if n == 0 {
		return b
	}
	return strconv.AppendInt(append(b, key...), n, 10)
}

func millis(b []byte, key string, d time.Duration) []byte {
	us := int(max(d, 0).Round(time.Microsecond) / time.Microsecond)
	b = strconv.AppendInt(append(b, key...), int64(us/1000), 10)
	return append(b, '.', digit(us/100), digit(us/10), digit(us))
}

func flag(b []byte, key string, v bool) []byte {
	if !v {
		return b
	}
	return append(b, key...)
}

// text writes a JSON string (RFC 8259 section 7) of at most limit bytes of s; what isn't UTF-8 becomes U+FFFD.
func text(b []byte, key, s string, limit int) []byte {
	if s == "" {
		return b
	}
	if len(s) > limit {
		for limit > 0 && !utf8.RuneStart(s[limit]) {
			limit--
		}
		s = s[:limit]
	}
	b = append(b, key...)
	plain := harmless(s)
	b = append(b, s[:plain]...)
	for i := plain; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			b = utf8.AppendRune(b, r)
			i += n
			continue
		}
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < 0x20 || c == 0x7f:
			b = append(b, `\u00`...)
			b = append(b, hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
		i++
	}
	return append(b, '"')
}

// harmless is how many bytes from the beginning of s, in steps of eight while there are as many, surely stand for themselves in
// a JSON string: printable ASCII without quotation mark and backslash.
func harmless(s string) (n int) {
	for ; len(s)-n >= 8; n += 8 {
		w := uint64(s[n]) | uint64(s[n+1])<<8 | uint64(s[n+2])<<16 | uint64(s[n+3])<<24 |
			uint64(s[n+4])<<32 | uint64(s[n+5])<<40 | uint64(s[n+6])<<48 | uint64(s[n+7])<<56
		// A byte's highest bit becomes set if it is below 0x20 or above 0x7e, or one of the two; or next to one that is.
		if ((w-0x20*ones)|(w+ones)|w|((w^'"'*ones)-ones)|((w^'\\'*ones)-ones))&(0x80*ones) != 0 {
			break
		}
	}
	for n < len(s) && s[n] >= 0x20 && s[n] < 0x7f && s[n] != '"' && s[n] != '\\' {
		n++
	}
	return n
}

const ones = 0x0101010101010101

const hex = "0123456789abcdef"
