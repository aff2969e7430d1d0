package cors

import (
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/reply"
	"github.com/cellgate/cellgate/snapshot"
)

func asking(origin, method, headers string) *Ask {
	return &Ask{Origin: []byte(origin), Method: []byte(method), Headers: []byte(headers)}
}

func TestOriginsAreComparedWhole(t *testing.T) {
	p := Compile(&snapshot.CORS{Origins: []string{"https://app.example.com", "https://*.shop.example.com", "http://dev.example.com:8080"}})
	for origin, want := range map[string]Verdict{
		"":                                          Same,
		"https://app.example.com":                   Allowed,
		"https://eu.shop.example.com":               Allowed,
		"http://dev.example.com:8080":               Allowed,
		"http://app.example.com":                    Origin,
		"https://app.example.com:444":               Origin,
		"https://app.example.com.evil.test":         Origin,
		"https://evil-app.example.com":              Origin,
		"https://appXexample.com":                   Origin,
		"https://APP.example.com":                   Origin,
		"https://shop.example.com":                  Origin,
		"https://.shop.example.com":                 Origin,
		"https://a.b.shop.example.com":              Origin,
		"https://evil.test/.shop.example.com":       Origin,
		"https://evil.test#.shop.example.com":       Origin,
		"https://user@x.shop.example.com":           Origin,
		"https://evilshop.example.com":              Origin,
		"https://eu.shop.example.com:8443":          Origin,
		"https://eu.shop.example.com.evil.test":     Origin,
		"null":                                      Origin,
		"*":                                         Origin,
		"https://app.example.com https://evil.test": Origin,
	} {
		if got := p.Judge(asking(origin, "", "")); got != want {
			t.Errorf("%q: %v, not %v", origin, got, want)
		}
	}
	if p := Compile(&snapshot.CORS{Origins: []string{"null"}}); p.Judge(asking("null", "", "")) != Allowed {
		t.Error("null is not taken where it is named")
	}
}

func said(put func(*reply.Reply)) string {
	var r reply.Reply
	put(&r)
	return string(r.AppendFields(nil))
}

func TestAPreflightIsHeldAgainstMethodAndHeaders(t *testing.T) {
	origin := []byte("https://app.example.com")
	p := Compile(&snapshot.CORS{Origins: []string{string(origin)}, Methods: []string{"GET", "PUT"}, Headers: []string{"content-type", "x-a"}, MaxAge: 10 * time.Minute, Credentials: true, PrivateNetwork: true})
	for _, c := range []struct {
		origin, method, headers string
		want                    Verdict
	}{
		{string(origin), "PUT", "", Allowed},
		{string(origin), "PUT", "X-A ,,\tcontent-type", Allowed},
		{string(origin), "put", "", Method},
		{string(origin), "DELETE", "", Method},
		{string(origin), "PUT", "x-a, x-b", Header},
		{string(origin), "PUT", strings.Repeat("x-a,", 1100), Header},
		{"https://evil.test", "PUT", "", Origin},
		{"", "PUT", "", Origin},
	} {
		if got := p.Preflight(asking(c.origin, c.method, c.headers)); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	ask := asking(string(origin), "PUT", "")
	ask.Private = true
	got := said(func(r *reply.Reply) { p.PutPreflight(r, ask) })
	want := "Access-Control-Allow-Origin: https://app.example.com\r\nAccess-Control-Allow-Credentials: true\r\nAccess-Control-Allow-Methods: GET, PUT\r\n" +
		"Access-Control-Allow-Headers: content-type, x-a\r\nAccess-Control-Max-Age: 600\r\nAccess-Control-Allow-Private-Network: true\r\nVary: Origin, "
	if !strings.HasPrefix(got, want) {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestEveryOriginIsAnsweredAlike(t *testing.T) {
	p := Compile(&snapshot.CORS{Origins: []string{"*"}, Headers: []string{"*"}, Expose: []string{"x-total"}})
	for _, origin := range []string{"", "null", "https://a.test"} {
		if got := said(func(r *reply.Reply) { p.Share(r, nil, *asking(origin, "", "")) }); got != "Access-Control-Allow-Origin: *\r\nAccess-Control-Expose-Headers: x-total\r\n" {
			t.Errorf("%q: %s", origin, got)
		}
	}
	if v := p.Preflight(asking("null", "PUT", "x-anything")); v != Allowed {
		t.Error(v)
	}
	if v := p.Preflight(asking("null", "PUT", "Authorization")); v != Header {
		t.Error("a wildcard covers Authorization")
	}
}

func TestAnswersSayThatTheyDependOnTheOrigin(t *testing.T) {
	p := Compile(&snapshot.CORS{Origins: []string{"https://a.test"}, Expose: []string{"x-total"}})
	for _, origin := range []string{"", "https://b.test"} {
		if got := said(func(r *reply.Reply) { p.Share(r, nil, *asking(origin, "", "")) }); got != "Vary: Origin\r\n" {
			t.Errorf("%q: %s", origin, got)
		}
	}
}

func TestJudgingAllocatesNothing(t *testing.T) {
	p := Compile(&snapshot.CORS{Origins: []string{"https://a.test", "https://*.b.test"}, Headers: []string{"x-a"}})
	var r reply.Reply
	var req http1.Request
	head := []byte("OPTIONS / HTTP/1.1\r\nHost: a\r\nOrigin: https://x.b.test\r\nAccess-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-a, x-a\r\n\r\n")
	if _, err := req.Parse(head); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		r.Reset()
		ask := Read(&req)
		if p.Preflight(&ask) != Allowed {
			t.Fatal("refused")
		}
		p.PutPreflight(&r, &ask)
		p.Share(&r, nil, ask)
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func FuzzOnlyWholeOriginsPass(f *testing.F) {
	f.Add("https://x.b.test")
	p := Compile(&snapshot.CORS{Origins: []string{"https://a.test", "https://*.b.test"}})
	f.Fuzz(func(t *testing.T, origin string) {
		if p.Judge(asking(origin, "", "")) != Allowed || origin == "https://a.test" {
			return
		}
		label, ok := strings.CutPrefix(origin, "https://")
		label, end := strings.CutSuffix(label, ".b.test")
		if !ok || !end || label == "" || strings.ContainsAny(label, "./:@?# ") {
			t.Fatalf("%q passes", origin)
		}
	})
}

func TestAFieldThatStandsThereTwiceDoesntCount(t *testing.T) {
	p := Compile(&snapshot.CORS{Origins: []string{"https://a.test"}})
	for head, want := range map[string]Verdict{
		"OPTIONS / HTTP/1.1\r\nHost: a\r\nOrigin: https://a.test\r\nAccess-Control-Request-Method: PUT\r\n\r\n":                                       Allowed,
		"OPTIONS / HTTP/1.1\r\nHost: a\r\nOrigin: https://a.test\r\norigin: https://a.test\r\nAccess-Control-Request-Method: PUT\r\n\r\n":             Origin,
		"OPTIONS / HTTP/1.1\r\nHost: a\r\nOrigin: https://a.test\r\nAccess-Control-Request-Method: PUT\r\nAccess-Control-Request-Method: GET\r\n\r\n": Origin,
	} {
		var r http1.Request
		if _, err := r.Parse([]byte(head)); err != nil {
			t.Fatal(err)
		}
		if ask := Read(&r); !ask.Preflight || p.Preflight(&ask) != want {
			t.Errorf("%q: %v", head, p.Preflight(&ask))
		}
	}
}
