package hops

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cellgate/cellgate/proxy/http1"
)

func head(t testing.TB, fields ...string) *http1.Head {
	t.Helper()
	var r http1.Request
	raw := "GET / HTTP/1.1\r\nHost: a.example\r\n" + strings.Join(append(fields, ""), "\r\n") + "\r\n"
	if n, err := r.Parse([]byte(raw)); err != nil || n != len(raw) {
		t.Fatalf("%q: %v", raw, err)
	}
	return &r.Head
}

func trusted(t testing.TB) Trusted {
	t.Helper()
	all, err := Parse([]string{"10.0.0.0/8", "2001:db8:aa::/48", "192.0.2.77"})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// F7, CASES G41: from right to left, over all lines, up to the first that isn't trusted.
func TestTheClientIsTheRightmostThatIsNotTrusted(t *testing.T) {
	const xff, fwd = "X-Forwarded-For: ", "Forwarded: "
	for name, c := range map[string]struct {
		peer   string
		fields []string
		want   string
	}{
		"nothing said":                     {"10.0.0.1", nil, "10.0.0.1"},
		"an untrusted peer":                {"192.0.2.1", []string{xff + "7.7.7.7"}, "192.0.2.1"},
		"one hop":                          {"10.0.0.1", []string{xff + "7.7.7.7"}, "7.7.7.7"},
		"an address that is trusted alone": {"192.0.2.77", []string{xff + "7.7.7.7"}, "7.7.7.7"},
		"what the client made up":          {"10.0.0.1", []string{xff + "1.1.1.1, 10.3.3.3, 7.7.7.7"}, "7.7.7.7"},
		"through two proxies":              {"10.0.0.1", []string{xff + "1.1.1.1, 7.7.7.7, 10.0.0.2"}, "7.7.7.7"},
		"several lines":                    {"10.0.0.1", []string{xff + "1.1.1.1", "X-Other: 1", "x-forwarded-FOR:7.7.7.7", xff + "10.0.0.2,10.0.0.3"}, "7.7.7.7"},
		"only proxies":                     {"10.0.0.1", []string{xff + "10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		"IPv6":                             {"2001:db8:aa::1", []string{xff + "2001:db8:1::5"}, "2001:db8:1::5"},
		"IPv4 in IPv6 is IPv4":             {"10.0.0.1", []string{xff + "7.7.7.7, ::ffff:10.0.0.2"}, "7.7.7.7"},
		"ports":                            {"10.0.0.1", []string{xff + "7.7.7.7:4711, 10.0.0.2:80"}, "7.7.7.7"},
		"IPv6 with port":                   {"10.0.0.1", []string{xff + "[2001:db8::7]:4711"}, "2001:db8::7"},
		"IPv6 in brackets":                 {"10.0.0.1", []string{xff + "[2001:db8::7]"}, "2001:db8::7"},
		"empty items":                      {"10.0.0.1", []string{xff + ", 7.7.7.7,, ,", xff}, "7.7.7.7"},
		"malformed to the left":            {"10.0.0.1", []string{xff + "<script>, 7.7.7.7"}, "7.7.7.7"},
		"malformed at the end":             {"10.0.0.1", []string{xff + "7.7.7.7, unknown"}, "10.0.0.1"},
		"malformed between":                {"10.0.0.1", []string{xff + "7.7.7.7, 999.1.1.1, 10.0.0.2"}, "10.0.0.2"},
		"a zone":                           {"10.0.0.1", []string{xff + "fe80::1%eth0"}, "10.0.0.1"},
		"leading zeros":                    {"10.0.0.1", []string{xff + "07.7.7.7"}, "10.0.0.1"},
		"a name":                           {"10.0.0.1", []string{xff + "localhost"}, "10.0.0.1"},
		"a network":                        {"10.0.0.1", []string{xff + "7.7.7.0/24"}, "10.0.0.1"},
		"very long":                        {"10.0.0.1", []string{xff + strings.Repeat("7", 5000)}, "10.0.0.1"},
		"underscores are no hyphens":       {"10.0.0.1", []string{"X_Forwarded_For: 7.7.7.7"}, "10.0.0.1"},

		"Forwarded":                {"10.0.0.1", []string{fwd + "for=7.7.7.7;proto=https;by=10.0.0.1"}, "7.7.7.7"},
		"Forwarded, several":       {"10.0.0.1", []string{fwd + `for=1.1.1.1, For="7.7.7.7:80" ; by="a,b;for=8.8.8.8"`, fwd + "for=10.0.0.2"}, "7.7.7.7"},
		"Forwarded, IPv6":          {"10.0.0.1", []string{fwd + `for="[2001:db8::7]:4711"`}, "2001:db8::7"},
		"Forwarded, bare IPv6":     {"10.0.0.1", []string{fwd + `for="2001:db8::7"`}, "10.0.0.1"},
		"Forwarded, unquoted IPv6": {"10.0.0.1", []string{fwd + `for=[2001:db8::7]`}, "10.0.0.1"},
		"Forwarded, hidden":        {"10.0.0.1", []string{fwd + "for=7.7.7.7, for=_hidden, for=10.0.0.2"}, "10.0.0.2"},
		"Forwarded, no for":        {"10.0.0.1", []string{fwd + "for=7.7.7.7, by=10.0.0.2"}, "10.0.0.1"},
		"Forwarded, two":           {"10.0.0.1", []string{fwd + "for=7.7.7.7;for=8.8.8.8"}, "10.0.0.1"},
		"Forwarded, open quotes":   {"10.0.0.1", []string{fwd + `for=7.7.7.7, for="8.8.8.8, for=9.9.9.9`}, "10.0.0.1"},
		"Forwarded, escapes":       {"10.0.0.1", []string{fwd + `by="\", for=8.8.8.8";for=7.7.7.7`}, "7.7.7.7"},

		"both agree":    {"10.0.0.1", []string{xff + "7.7.7.7", fwd + "for=7.7.7.7"}, "7.7.7.7"},
		"both disagree": {"10.0.0.1", []string{xff + "7.7.7.7", fwd + "for=8.8.8.8"}, "10.0.0.1"},
	} {
		if got := trusted(t).Client(netip.MustParseAddr(c.peer), head(t, c.fields...)); got.String() != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestTheProxysWordOnTLSHasToBeClear(t *testing.T) {
	const proto = "X-Forwarded-Proto: "
	for name, c := range map[string]struct {
		fields    []string
		https, ok bool
	}{
		"none": {nil, false, false}, "https": {[]string{proto + "HTTPS"}, true, true}, "http": {[]string{proto + "http"}, false, true},
		"a list": {[]string{proto + "https, http"}, false, false}, "twice": {[]string{proto + "https", proto + "https"}, false, false},
		"another": {[]string{proto + "wss"}, false, false},
	} {
		if https, ok := HTTPS(head(t, c.fields...)); https != c.https || ok != c.ok {
			t.Errorf("%s: %v %v", name, https, ok)
		}
	}
}

func TestNetworksOfTrustedProxiesAreParsedStrictly(t *testing.T) {
	for _, bad := range []string{"", "all", "10.0.0.0/33", "0.0.0.0/0", "::/0", "::ffff:10.0.0.0/104", "10.0.0.0/8 ", "fe80::1%eth0", "lb.example"} {
		if got, err := Parse([]string{"10.0.0.0/8", bad}); err == nil {
			t.Errorf("%q became %v", bad, got)
		}
	}
	if _, err := Parse(make([]string, maxNetworks+1)); err == nil {
		t.Error("more than the bound")
	}
	got, err := Parse([]string{"10.1.2.3/8", "::ffff:192.0.2.1"})
	if err != nil || !got.Has(netip.MustParseAddr("10.200.0.1")) || !got.Has(netip.MustParseAddr("192.0.2.1")) || got.Has(netip.MustParseAddr("11.0.0.1")) {
		t.Fatalf("%v %v", got, err)
	}
	if Trusted(nil).Has(netip.MustParseAddr("127.0.0.1")) {
		t.Fatal("nobody is trusted by default")
	}
}

func TestFindingTheClientAllocatesNothing(t *testing.T) {
	all, peer := trusted(t), netip.MustParseAddr("10.0.0.1")
	h := head(t, "X-Forwarded-For: 1.1.1.1, 7.7.7.7, 10.0.0.2", `Forwarded: for=7.7.7.7`)
	if n := testing.AllocsPerRun(1000, func() { all.Client(peer, h) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

// Whatever is said, the client is an address that was named, or the peer; and what stands left of an untrusted hop is nothing.
func FuzzClient(f *testing.F) {
	f.Add("1.1.1.1, 7.7.7.7, 10.0.0.2", `for="[::1]:80", for=10.0.0.2`)
	f.Fuzz(func(t *testing.T, plain, standard string) {
		all, peer := trusted(t), netip.MustParseAddr("10.0.0.1")
		for _, c := range []struct{ name, value string }{{"X-Forwarded-For", plain}, {"Forwarded", standard}} {
			var r http1.Request
			if n, err := r.Parse([]byte("GET / HTTP/1.1\r\nHost: a.example\r\n" + c.name + ": " + c.value + "\r\n\r\n")); err != nil || n == 0 {
				continue
			}
			got := all.Client(peer, &r.Head)
			if !got.IsValid() || got.Zone() != "" || got.Is4In6() {
				t.Fatalf("%s: %q gives %v", c.name, c.value, got)
			}
			last := map[string]string{"X-Forwarded-For": "X-Forwarded-For: 7.7.7.7", "Forwarded": "Forwarded: for=7.7.7.7"}[c.name]
			h := head(t, c.name+": "+strings.TrimSpace(c.value), last)
			if got := all.Client(peer, h); got.String() != "7.7.7.7" {
				t.Fatalf("%q made %v of a client that a trusted proxy named", c.value, got)
			}
		}
	})
}
