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

func TestACookieIsTakenOutAndTheOthersStay(t *testing.T) {
	for line, want := range map[string]string{
		"Cookie: s=1":                               "",
		"Cookie: s=1; a=2":                          "Cookie: a=2\r\n",
		"Cookie: a=2; s=1":                          "Cookie: a=2\r\n",
		"Cookie: a=2; s=1; b=3":                     "Cookie: a=2; b=3\r\n",
		"Cookie: a=2;s=1;b=3":                       "Cookie: a=2;b=3\r\n",
		"Cookie: s=1; s=2; a=s=3; s = 4 ;s":         "Cookie: a=s=3\r\n",
		"Cookie: s=1;  ; s=2;":                      "",
		"Cookie: ss=1; S=2; as=3":                   "Cookie: ss=1; S=2; as=3\r\n",
		"Cookie: ; a=1 ;":                           "Cookie: ; a=1 ;\r\n",
		"Cookie: s=1\r\nX-A: b\r\ncookie: a=2; s=1": "X-A: b\r\ncookie: a=2\r\n",
		"X-Cookie: s=1":                             "X-Cookie: s=1\r\n",
	} {
		var r Request
		if _, err := r.Parse([]byte("GET / HTTP/1.1\r\nHost: a\r\n" + line + "\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		for range 2 { // taking it out again changes nothing
			r.DropCookie("s")
			if got := string(r.AppendFields(nil)); got != want {
				t.Errorf("%q: %q", line, got)
			}
		}
		if r.Cookie("s") != nil && want == "" {
			t.Errorf("%q: it is still found", line)
		}
	}
	var r Request
	if _, err := r.Parse([]byte("GET / HTTP/1.1\r\nHost: a\r\nCookie: a=1; s=2; b=3\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { r.DropCookie("b"); r.DropCookie("s") }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
