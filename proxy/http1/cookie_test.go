package http1

import "testing"

func TestCookiesAreFoundInAnyLine(t *testing.T) {
	for line, want := range map[string]string{
		"Cookie: s=1":                       "1",
		"Cookie: a=2; s=1; s=3":             "1",
		"Cookie: a=2;s=\"1\"":               "1",
		"Cookie: ss=2; S=3":                 "",
		"Cookie: s":                         "",
		"Cookie: ;;=;s=":                    "",
		"Cookie: a=1\r\ncookie: b=2; s=k=v": "k=v",
		"X-Cookie: s=1":                     "",
	} {
		var r Request
		if _, err := r.Parse([]byte("GET / HTTP/1.1\r\nHost: a\r\n" + line + "\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		if got := string(r.Cookie("s")); got != want {
			t.Errorf("%q: %q", line, got)
		}
	}
}
