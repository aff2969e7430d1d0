package auth

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

const maxDepth = 16

var errJSON = errors.New("not one JSON object with each member once")

// object reads one JSON object strictly: UTF-8, surrogates in pairs, no member twice at any depth (also not under another escape),
// nothing after it, nesting of at most maxDepth. Names are exact, unlike in encoding/json's structs. Numbers stay json.Number.
func object(raw []byte) (map[string]any, error) {
	if !utf8.Valid(raw) || !paired(raw) {
		return nil, errJSON
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	v, err := value(dec, 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errJSON
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errJSON
	}
	return m, nil
}

// paired says whether escaped surrogates stand in pairs (RFC 7493, section 2.1). Alone all of them would become one character, and
// two subjects one.
func paired(raw []byte) bool {
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		switch r := escaped(raw[i:]); {
		case !utf16.IsSurrogate(r):
			i++ // what is escaped may be a backslash
		case utf16.DecodeRune(r, escaped(raw[i+6:])) == utf8.RuneError:
			return false
		default:
			i += 11
		}
	}
	return true
}

// escaped is the code unit of an escape by four hex digits; 0 = it is another one, or none.
func escaped(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0
	}
	n, _ := strconv.ParseUint(string(b[2:6]), 16, 16) // what isn't hex the decoder refuses
	return rune(n)
}

func value(dec *json.Decoder, depth int) (any, error) {
	tok, err := dec.Token()
	if err != nil || depth > maxDepth {
		return nil, errJSON
	}
	switch tok {
	case json.Delim('{'):
		return members(dec, depth)
	case json.Delim('['):
		return elements(dec, depth)
	}
	return tok, nil
}

func members(dec *json.Decoder, depth int) (any, error) {
	m := map[string]any{}
	for dec.More() {
		tok, err := dec.Token()
		name, ok := tok.(string)
		if err != nil || !ok {
			return nil, errJSON
		}
		if _, twice := m[name]; twice {
			return nil, fmt.Errorf("member %.40q stands twice", name)
		}
		if m[name], err = value(dec, depth+1); err != nil {
			return nil, err
		}
	}
	if _, err := dec.Token(); err != nil {
		return nil, errJSON
	}
	return m, nil
}

func elements(dec *json.Decoder, depth int) (any, error) {
	list := []any{}
	for dec.More() {
		v, err := value(dec, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	if _, err := dec.Token(); err != nil {
		return nil, errJSON
	}
	return list, nil
}

// decode is RFC 7515's base64url: no padding, no white space, unused bits zero.
func decode(s string) ([]byte, bool) {
	for i := range len(s) {
		if c := s[i]; c == '\r' || c == '\n' { // encoding/base64 ignores these two
			return nil, false
		}
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	return b, err == nil
}
