package path

import (
	"errors"
	"strings"
	"testing"
)

func TestPathsAreNormalisedOnceOrRefused(t *testing.T) {
	normal := map[string]string{
		"/": "/", "/a": "/a", "/a/": "/a/", "/a/b.c/d-e_f~g": "/a/b.c/d-e_f~g", "/...": "/...", "/.a/..b": "/.a/..b",
		"//": "/", "//a///b": "/a/b", "/a//": "/a/",
		"/./a": "/a", "/a/./b": "/a/b", "/a/.": "/a/", "/.": "/",
		"/a/../b": "/b", "/a/b/..": "/a/", "/a/b/../": "/a/", "/a/..": "/", "/a//../b": "/b",
		"/%61%2D%7e": "/a-~", "/%2e/a": "/a", "/a/%2E%2e/b": "/b", "/a/.%2e/b": "/b",
		"/a%20b": "/a%20b", "/a%c3%a9": "/a%C3%A9", "/%e2%82%ac%F0%9f%98%80": "/%E2%82%AC%F0%9F%98%80",
		"/a%3bb": "/a%3Bb", "/a%25": "/a%25", "/100%25x": "/100%25x", "/a%3Fb%23c": "/a%3Fb%23c",
		"/a|b": "/a%7Cb", "/{id}": "/%7Bid%7D", "/[x]": "/%5Bx%5D", `/"`: "/%22",
		"/!$&'()*+,=:@": "/!$&'()*+,=:@",
	}
	for raw, want := range normal {
		if got, err := Normalize(nil, raw); err != nil || string(got) != want {
			t.Errorf("Normalize(%q) = %q, %v; want %q", raw, got, err, want)
		}
	}
	refused := []string{
		"", "a", "*", "/../a", "/..", "/a/../../b", "/%2e%2e", "/a/..//../b",
		"/a%2fb", "/a%2Fb", "/a%5cb", "/a%5Cb", `/a\b`, "/a;b", "/..;/a", "/a;jsessionid=1/b",
		"/%252f", "/%252e%252e/a", "/%2525", "/%25aa",
		"/%", "/%4", "/%zz", "/a%0", "/%00", "/%0a", "/%7f", "/%1F",
		"/a b", "/a\tb", "/a\x00", "/a\x7f", "/é", "/a#b", "/a?b",
		"/%c0%af", "/%80", "/%e2%82", "/%ed%a0%80", "/%c3/a9", "/%ff", "/%f0%9f%98/a",
		"/" + strings.Repeat("a", Max),
	}
	for _, raw := range refused {
		if got, err := Normalize(nil, raw); !errors.Is(err, ErrRefused) {
			t.Errorf("Normalize(%q) = %q, %v; want a refusal", raw, got, err)
		}
	}
}

func TestCleanPathsCostNoAllocation(t *testing.T) {
	n := testing.AllocsPerRun(100, func() {
		if _, err := Normalize(nil, "/v1/orders/12345.json"); err != nil {
			t.Fatal(err)
		}
		if _, err := Host("api.example.com:8443"); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestHostsTakeTheirRoutingForm(t *testing.T) {
	for raw, want := range map[string]string{
		"api.example.com": "api.example.com", "API.Example.COM.:443": "api.example.com", "localhost:": "localhost",
		"10.0.0.1:80": "10.0.0.1", "[::1]:8080": "::1", "[2001:DB8:0::1]": "2001:db8::1", "a_b.c-d": "a_b.c-d",
	} {
		if got, err := Host(raw); err != nil || got != want {
			t.Errorf("Host(%q) = %q, %v; want %q", raw, got, err, want)
		}
	}
	for _, raw := range []string{
		"", ".", "a..b", ".a", "a b", "a/b", "a@b", "a:b", "a:123456", "[::1", "[::1]x", "[fe80::1%25eth0]", "[1.2.3.4]", "é.com", "a:1:2",
		strings.Repeat("a", 64), strings.Repeat("a.", 127) + "aa", "*", "*.example.com",
	} {
		if got, err := Host(raw); !errors.Is(err, ErrHost) {
			t.Errorf("Host(%q) = %q, %v; want a refusal", raw, got, err)
		}
	}
}

// FuzzNormalize: what is accepted is a fixed point, absolute, without anything that another reader could see differently.
func FuzzNormalize(f *testing.F) {
	for _, seed := range []string{"/", "/a/../b", "/%2e%2E/x", "/a%252fb", "//a/./b;c", "/%e2%82%ac", "/a|b%7c", "/..;/", "/a/%2e%2e/%2e"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		clean, err := Normalize(nil, raw)
		if err != nil {
			return
		}
		again, err := Normalize(make([]byte, 0, 8), string(clean))
		if err != nil && len(clean) <= Max || err == nil && again != clean {
			t.Fatalf("%q → %q → %q, %v", raw, clean, again, err)
		}
		if clean[0] != '/' || strings.Contains(string(clean), "//") || strings.ContainsAny(string(clean), "\\;#? \x00") {
			t.Fatalf("%q → %q", raw, clean)
		}
		for segment := range strings.SplitSeq(string(clean[1:]), "/") {
			if lower := strings.ToLower(segment); lower == "." || lower == ".." || strings.Contains(lower, "%2e") || strings.Contains(lower, "%2f") {
				t.Fatalf("%q → %q", raw, clean)
			}
		}
	})
}

func FuzzHost(f *testing.F) {
	for _, seed := range []string{"a.b:1", "[::1]:2", "A.", "1.2.3.4"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		host, err := Host(raw)
		if err != nil {
			return
		}
		again := host
		if strings.Contains(host, ":") {
			again = "[" + host + "]"
		}
		if again, err = Host(again); err != nil || again != host {
			t.Fatalf("%q → %q → %q, %v", raw, host, again, err)
		}
	})
}
