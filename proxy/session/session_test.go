package session

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/proxy/http1"
)

func keysOf(t testing.TB, ids ...string) *Keys {
	t.Helper()
	var all []string
	for _, id := range ids {
		all = append(all, fmt.Sprintf(`{"id":%q,"secret":%q}`, id, base64.StdEncoding.EncodeToString([]byte(fmt.Sprintf("%32s", id)))))
	}
	k, err := ParseKeys([]byte(`{"keys":[` + strings.Join(all, ",") + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

var scope = Scope{Tenant: "shop", Policy: "web", Cookie: "__Host-s", Encrypted: true}

func seal(t testing.TB, k *Keys, s Scope, claims string) string {
	t.Helper()
	c, err := k.Seal(s, []byte(claims), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestACookieIsGoodForItsScopeAlone(t *testing.T) {
	k := keysOf(t, "a")
	for _, encrypted := range []bool{true, false} {
		s := scope
		s.Encrypted = encrypted
		c := seal(t, k, s, `{"sub":"alice"}`)
		if got, ok := k.Open(s, c); !ok || string(got) != `{"sub":"alice"}` {
			t.Fatalf("%q %v", got, ok)
		}
		if plain, _ := base64.RawURLEncoding.DecodeString(strings.Split(c, ".")[3]); bytes.Contains(plain, []byte("alice")) == encrypted {
			t.Errorf("encrypted %v: %q", encrypted, plain)
		}
		for _, other := range []Scope{
			{"other", s.Policy, s.Cookie, encrypted}, {s.Tenant, "other", s.Cookie, encrypted}, {s.Tenant, s.Policy, "other", encrypted},
			{s.Tenant, s.Policy, s.Cookie, !encrypted}, {s.Tenant + s.Policy, "", s.Cookie, encrypted}, {},
		} {
			if _, ok := k.Open(other, c); ok {
				t.Errorf("good for %+v", other)
			}
		}
		if seal(t, k, s, `{"sub":"alice"}`) == c {
			t.Error("two cookies are equal")
		}
	}
}

func TestKeysRotate(t *testing.T) {
	old := seal(t, keysOf(t, "a"), scope, "{}")
	both := keysOf(t, "b", "a")
	if _, ok := both.Open(scope, old); !ok {
		t.Error("the key before opens no more")
	}
	if now := seal(t, both, scope, "{}"); !strings.HasPrefix(now, "e1.b.") {
		t.Error("the first key doesn't seal: " + now)
	}
	if _, ok := keysOf(t, "b").Open(scope, old); ok {
		t.Error("a key that is gone opens")
	}
	renamed := keysOf(t, "a")
	renamed.all[0].secret = keysOf(t, "b").all[0].secret
	if _, ok := renamed.Open(scope, old); ok {
		t.Error("another secret of that name opens")
	}
}

func TestNoChangedCookieOpens(t *testing.T) {
	k := keysOf(t, "a", "b")
	rapid.Check(t, func(t *rapid.T) {
		s := scope
		s.Encrypted = rapid.Bool().Draw(t, "encrypted")
		c, _ := k.Seal(s, rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(t, "claims"), bytes.NewReader(rapid.SliceOfN(rapid.Byte(), saltLen, saltLen).Draw(t, "salt")))
		b := []byte(c)
		switch i := rapid.IntRange(0, len(b)-1).Draw(t, "at"); rapid.IntRange(0, 2).Draw(t, "how") {
		case 0:
			b[i] = rapid.Byte().Draw(t, "byte")
		case 1:
			b = b[:i]
		default:
			b = append(b[:i:i], append([]byte{rapid.Byte().Draw(t, "byte")}, b[i:]...)...)
		}
		if _, ok := k.Open(s, string(b)); ok && string(b) != c {
			t.Fatalf("%q opens, %q was sealed", b, c)
		}
	})
}

func FuzzOpen(f *testing.F) {
	k := keysOf(f, "a")
	f.Add(seal(f, k, scope, "{}"))
	f.Add("e1.a..")
	good := seal(f, k, scope, `{"a":1}`)
	f.Fuzz(func(t *testing.T, cookie string) {
		if claims, ok := k.Open(scope, cookie); ok && string(claims) != "{}" && cookie != good {
			t.Fatalf("%q opens", cookie)
		}
	})
}

func TestWhatIsNoFileOfKeysIsRefusedAndNotTold(t *testing.T) {
	secret := base64.StdEncoding.EncodeToString(make([]byte, 32))
	one := fmt.Sprintf(`{"id":"a","secret":%q}`, secret)
	for _, file := range []string{
		"", "{}", `{"keys":[]}`, `{"keys":[` + one + `,` + one + `]}`, `{"keys":[{"id":"a","secret":"c2hvcnQ="}]}`, `{"keys":[{"id":"a.b","secret":"` + secret + `"}]}`,
		`{"keys":[{"secret":"` + secret + `"}]}`, `{"keys":[` + strings.Repeat(one+",", 16) + one + `]}`, `{"keys":[{"id":"hidden","secret":"not base64"}]}`,
	} {
		if _, err := ParseKeys([]byte(file)); err == nil || strings.Contains(err.Error(), "hidden") || strings.Contains(err.Error(), secret) {
			t.Errorf("%.60s: %v", file, err)
		}
	}
	if _, err := keysOf(t, "a").Seal(scope, make([]byte, MaxCookie), rand.Reader); err == nil {
		t.Error("a cookie that no browser keeps is sealed")
	}
	if _, err := keysOf(t, "a").Seal(scope, nil, bytes.NewReader(nil)); err == nil {
		t.Error("sealed without chance")
	}
}

func request(t testing.TB, line string, fields ...string) *http1.Request {
	t.Helper()
	var r http1.Request
	head := line + " HTTP/1.1\r\nHost: app.example.com\r\n" + strings.Join(fields, "\r\n")
	if len(fields) > 0 {
		head += "\r\n"
	}
	if n, err := r.Parse([]byte(head + "\r\n")); n == 0 || err != nil {
		t.Fatal(err)
	}
	return &r
}

func TestWhatPagesOfOtherSitesMakeBrowsersSendIsKnown(t *testing.T) {
	origins := []string{"https://partner.example.com"}
	for _, c := range []struct {
		line   string
		fields string
		cross  bool
	}{
		{"POST /", "", false}, // no page
		{"POST /", "Sec-Fetch-Site: same-origin", false},
		{"POST /", "Sec-Fetch-Site: none", false},
		{"POST /", "Sec-Fetch-Site: same-site", true},
		{"POST /", "Sec-Fetch-Site: cross-site", true},
		{"POST /", "Sec-Fetch-Site: Same-Origin", true},
		{"POST /", "Sec-Fetch-Site: ", true},
		{"POST /", "Sec-Fetch-Site: same-origin|Sec-Fetch-Site: same-origin", true},
		{"POST /", "Sec-Fetch-Site: cross-site|Origin: https://app.example.com", true},
		{"POST /", "Sec-Fetch-Site: cross-site|Origin: https://partner.example.com", false},
		{"POST /", "Origin: https://app.example.com", false},
		{"POST /", "Origin: https://APP.example.com", false},
		{"POST /", "Origin: https://evil.example", true},
		{"POST /", "Origin: https://app.example.com.evil.example", true},
		{"POST /", "Origin: https://app.example.com:8443", true},
		{"POST /", "Origin: null", true},
		{"POST /", "Origin: ", true},
		{"POST /", "Origin: https://app.example.com|Origin: https://evil.example", true},
		{"POST /", "Origin: https://partner.example.com", false},
		{"DELETE /", "Origin: https://evil.example", true},
		{"PUT /", "Sec-Fetch-Site: cross-site", true},
		{"GET /", "Sec-Fetch-Site: cross-site", false},
		{"HEAD /", "Origin: https://evil.example", false},
		{"GET /", "Origin: https://evil.example|Connection: upgrade|Upgrade: websocket", true},
		{"GET /", "Origin: https://app.example.com|Connection: upgrade|Upgrade: websocket", false},
	} {
		var fields []string
		if c.fields != "" {
			fields = strings.Split(c.fields, "|")
		}
		if got := Read(request(t, c.line, fields...), "s", origins); got.CrossSite != c.cross {
			t.Errorf("%s %s: cross-site %v", c.line, c.fields, got.CrossSite)
		}
	}
}

func TestTheCookieIsFoundAndASecondOneNoticed(t *testing.T) {
	for fields, want := range map[string]string{
		"Cookie: a=1; s=x; b=2": "x", `Cookie: s="x"`: "x", "Cookie: S=x": "", "Cookie: as=x": "", "Cookie: s=": "empty", "": "",
		"Cookie: s=x; s=y": "twice", "Cookie: s=x|Cookie: s=x": "twice", "Cookie: a=s=x": "", "Cookie: s=a=b": "a=b",
	} {
		got := Read(request(t, "GET /", slices.DeleteFunc(strings.Split(fields, "|"), func(s string) bool { return s == "" })...), "s", nil)
		switch {
		case got.Twice != (want == "twice"), want == "" && got.Cookie != nil, want == "empty" && (got.Cookie == nil || len(got.Cookie) > 0):
			t.Errorf("%s: %+v", fields, got)
		case want != "twice" && want != "empty" && string(got.Cookie) != want:
			t.Errorf("%s: %q", fields, got.Cookie)
		}
	}
}
