package http1

import (
	"errors"
	"testing"
)

func TestResponseFraming(t *testing.T) {
	for name, c := range map[string]struct {
		head   string
		isHead bool
		want   Body
	}{
		"counted":                {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", false, Counted},
		"empty":                  {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false, NoBody},
		"chunked":                {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", false, InChunks},
		"until close":            {"HTTP/1.1 200 OK\r\n\r\n", false, UntilClose},
		"no phrase":              {"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\n", false, Counted},
		"HEAD with length (G37)": {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", true, NoBody},
		"HEAD, chunked":          {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", true, NoBody},
		"204 with length":        {"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n", false, NoBody},
		"304 with length (G37)":  {"HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", false, NoBody},
		"100":                    {"HTTP/1.1 100 Continue\r\n\r\n", false, NoBody},
	} {
		var r Response
		n, err := r.Parse([]byte(c.head))
		if err != nil || n != len(c.head) || r.Body(c.isHead) != c.want {
			t.Errorf("%s: %d %v, body %d, want %d", name, n, err, r.Body(c.isHead), c.want)
		}
	}
}

func TestRefusedResponses(t *testing.T) {
	for name, head := range map[string]string{
		"garbage":            "SSH-2.0-OpenSSH\r\n\r\n",
		"two digits":         "HTTP/1.1 20 OK\r\n\r\n",
		"below 100":          "HTTP/1.1 099 OK\r\n\r\n",
		"length and chunked": "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
		"two lengths":        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
		"folded":             "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
		"bare LF":            "HTTP/1.1 200 OK\nA: b\n\n",
		"chunked 1.0":        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
		"other coding":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
	} {
		var r Response
		if _, err := r.Parse([]byte(head)); !errors.Is(err, ErrSyntax) && !errors.Is(err, ErrFraming) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
