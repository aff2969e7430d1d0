package transform

import (
	"slices"
	"strings"
	"testing"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/path"
	"github.com/cellgate/cellgate/snapshot"
	"pgregory.net/rapid"
)

func headOf(t interface{ Fatal(...any) }, fields string) *http1.Request {
	r := new(http1.Request)
	if n, err := r.Parse([]byte("GET / HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n")); err != nil || n == 0 {
		t.Fatal(n, err)
	}
	return r
}

func edited(t interface{ Fatal(...any) }, fields string, by ...snapshot.Edits) string {
	var policies []*snapshot.Transform
	for _, e := range by {
		policies = append(policies, &snapshot.Transform{Request: snapshot.RequestEdits{Edits: e}})
	}
	return string(Compile(policies, &snapshot.Match{}).Request.AppendFields(nil, &headOf(t, fields).Head))
}

func TestEditsTakeTheirTurn(t *testing.T) {
	type m = map[string]string
	const sent = "A: 1\r\nb: 2\r\nA: 3\r\n"
	for want, by := range map[string][]snapshot.Edits{
		"A: 1\r\nb: 2\r\nA: 3\r\n":                 {{}},
		"b: 2\r\n":                                 {{Remove: []string{"a"}}},
		"c: 1\r\nb: 2\r\nc: 3\r\n":                 {{Rename: m{"a": "c"}}},
		"b: 2\r\na: x\r\n":                         {{Set: m{"a": "x"}}},
		"A: 1\r\nb: 2\r\nA: 3\r\na: x\r\n":         {{Add: m{"a": "x"}}},
		"c: 2\r\na: y\r\n":                         {{Remove: []string{"a"}, Rename: m{"b": "c"}, Set: m{"a": "x"}}, {Set: m{"a": "y"}}},
		"b: 2\r\n\r\n":                             {{Rename: m{"a": "c"}, Add: m{"c": "x"}}, {Remove: []string{"c"}}},
		"d: 1\r\nb: 2\r\nd: 3\r\nd: x\r\n":         {{Rename: m{"a": "c"}, Add: m{"c": "x"}}, {Rename: m{"c": "d"}}},
		"A: 1\r\nA: 3\r\na: 2\r\n":                 {{Rename: m{"b": "a"}}, {Rename: m{"a": "a"}}},
		"A: 1\r\nb: 2\r\nA: 3\r\nz: 1\r\nz: 2\r\n": {{Add: m{"z": "1"}}, {Add: m{"z": "2"}}},
	} {
		got := edited(t, sent, by...)
		a, b := strings.Fields(strings.ReplaceAll(got, ": ", ":")), strings.Fields(strings.ReplaceAll(want, ": ", ":"))
		slices.Sort(a)
		slices.Sort(b)
		if !slices.Equal(a, b) {
			t.Errorf("%+v\ngot  %q\nwant %q", by, got, want)
		}
	}
}

// To an upstream that puts fields into environment variables X_T is X-T: what is edited doesn't come under the other name.
func TestAnUnderscoreHidesNoName(t *testing.T) {
	type m = map[string]string
	const sent = "x-t: 1\r\nX_t: 2\r\nx-u_v: 3\r\nx_u-v: 4\r\nx-w: 5\r\n"
	for want, by := range map[string]snapshot.Edits{
		"x-u_v: 3\r\nx_u-v: 4\r\nx-w: 5\r\n":                     {Remove: []string{"x-t"}},
		"y: 1\r\nx-u_v: 3\r\nx_u-v: 4\r\nx-w: 5\r\n":             {Rename: m{"x-t": "y"}},
		"y: 1\r\nz: 2\r\nx-u_v: 3\r\nx_u-v: 4\r\nx-w: 5\r\n":     {Rename: m{"x-t": "y", "x_t": "z"}},
		"x-t: 1\r\nX_t: 2\r\nx-w: 5\r\nx_u_v: 6\r\n":             {Set: m{"x_u_v": "6"}},
		"x-t: 1\r\nX_t: 2\r\nx-u_v: 3\r\nx_u-v: 4\r\nx-w: 5\r\n": {Remove: []string{"x-t-"}},
	} {
		if got := edited(t, sent, by); got != want {
			t.Errorf("%+v\ngot  %q\nwant %q", by, got, want)
		}
	}
}

// What policies come to together is what they come to one after the other.
func TestPropertyPoliciesTogetherAreOneAfterTheOther(t *testing.T) {
	names := []string{"a", "b", "c", "x-d"}
	one := rapid.Custom(func(t *rapid.T) snapshot.Edits {
		m := func(value []string) map[string]string {
			return rapid.MapOfN(rapid.SampledFrom(names), rapid.SampledFrom(value), 0, 3).Draw(t, "m")
		}
		return snapshot.Edits{Remove: rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, 2, rapid.ID[string]).Draw(t, "r"), Rename: m(names), Set: m([]string{"1", "2"}), Add: m([]string{"3", "4"})}
	})
	rapid.Check(t, func(t *rapid.T) {
		var sent strings.Builder
		for _, n := range rapid.SliceOfN(rapid.SampledFrom(append(names, "other")), 0, 6).Draw(t, "sent") {
			sent.WriteString(n + ": 0\r\n")
		}
		policies := rapid.SliceOfN(one, 1, 4).Draw(t, "policies")
		step := sent.String()
		for _, p := range policies {
			step = edited(t, step, p)
		}
		sorted := func(s string) string {
			lines := strings.Split(s, "\r\n")
			slices.Sort(lines)
			return strings.Join(lines, "|")
		}
		if whole := edited(t, sent.String(), policies...); sorted(whole) != sorted(step) {
			t.Fatalf("%q: together %q, one by one %q", sent.String(), whole, step)
		}
	})
}

func TestPathsAreRewrittenWithinTheirForm(t *testing.T) {
	for _, c := range []struct {
		edits snapshot.RequestEdits
		match snapshot.Match
		from  string
		want  string
	}{
		{snapshot.RequestEdits{PathPrefix: "/v2"}, snapshot.Match{PathPrefix: "/v1"}, "/v1", "/v2"},
		{snapshot.RequestEdits{PathPrefix: "/v2"}, snapshot.Match{PathPrefix: "/v1"}, "/v1/a/", "/v2/a/"},
		{snapshot.RequestEdits{PathPrefix: "/"}, snapshot.Match{PathPrefix: "/v1"}, "/v1", "/"},
		{snapshot.RequestEdits{PathPrefix: "/"}, snapshot.Match{PathPrefix: "/v1"}, "/v1/a", "/a"},
		{snapshot.RequestEdits{PathPrefix: "/in"}, snapshot.Match{PathPrefix: "/"}, "/a", "/in/a"},
		{snapshot.RequestEdits{Path: "/o/{id}/of/{who}"}, snapshot.Match{Path: "/v1/{who}/orders/{id}"}, "/v1/me/orders/7%2C", "/o/7%2C/of/me"},
		{snapshot.RequestEdits{Path: "/{id}/{id}/"}, snapshot.Match{Path: "/{id}"}, "/x", "/x/x/"},
		{snapshot.RequestEdits{Path: "/fixed"}, snapshot.Match{Path: "/{id}"}, "/x", "/fixed"},
	} {
		r := Compile([]*snapshot.Transform{{Request: c.edits}}, &c.match)
		if got, ok := r.Path.Append(nil, c.from); !ok || string(got) != c.want {
			t.Errorf("%+v: %q became %q, not %q", c.edits, c.from, got, c.want)
		}
	}
	long := Compile([]*snapshot.Transform{{Request: snapshot.RequestEdits{Path: "/{id}/{id}"}}}, &snapshot.Match{Path: "/{id}"})
	if got, ok := long.Path.Append(nil, "/"+strings.Repeat("x", 5000)); ok {
		t.Errorf("a path of %d bytes passes", len(got))
	}
}

// Whatever a client asks for, what becomes of it is in the normal form that routing goes by, so that nothing escapes a prefix.
func FuzzRewrittenPathsStayInNormalForm(f *testing.F) {
	f.Add("/v1/a/../b//c%2e/")
	f.Add("/v1/%41%2C")
	prefix := Compile([]*snapshot.Transform{{Request: snapshot.RequestEdits{PathPrefix: "/in/side"}}}, &snapshot.Match{PathPrefix: "/v1"})
	template := Compile([]*snapshot.Transform{{Request: snapshot.RequestEdits{Path: "/in/{a}/{b}"}}}, &snapshot.Match{Path: "/v1/{a}/{b}"})
	f.Fuzz(func(t *testing.T, raw string) {
		clean, err := path.Normalize(nil, raw)
		if err != nil || !strings.HasPrefix(string(clean)+"/", "/v1/") {
			return
		}
		for _, r := range []*Rules{prefix, template} {
			if r == template && (strings.Count(string(clean), "/") != 3 || strings.Contains(string(clean), "//") || strings.HasSuffix(string(clean), "/")) {
				continue
			}
			got, ok := r.Path.Append(nil, string(clean))
			if !ok {
				continue
			}
			again, err := path.Normalize(nil, string(got))
			if err != nil || string(again) != string(got) || !strings.HasPrefix(string(got), "/in/") {
				t.Fatalf("%q became %q, which is %q, %v", clean, got, again, err)
			}
		}
	})
}

func TestStatusesAreMappedInTurn(t *testing.T) {
	r := Compile([]*snapshot.Transform{
		{Response: snapshot.ResponseEdits{Status: map[int]int{502: 503, 200: 201}}},
		{Response: snapshot.ResponseEdits{Status: map[int]int{503: 500, 502: 501}}},
	}, &snapshot.Match{})
	for from, want := range map[int]int{502: 500, 503: 500, 200: 201, 404: 404} {
		if got := r.Status(from); got != want {
			t.Errorf("%d became %d, not %d", from, got, want)
		}
	}
}

// The two lists of what tells of the inside, the parser's and the document's, are one; and what the parser knows for something
// else no transform may touch, but credentials, which it may remove.
func TestTheParserAndTheDocumentKnowTheSameFields(t *testing.T) {
	for _, name := range snapshot.InternalFields() {
		if k := headOf(t, name+": x\r\n").Fields()[1].Kind; k != http1.Internal {
			t.Errorf("%s is of kind %d to the parser", name, k)
		}
	}
	for _, name := range http1.Known() {
		if snapshot.Untouchable(name) {
			continue
		}
		if name != "authorization" && name != "x-api-key" && !slices.Contains(snapshot.InternalFields(), name) {
			t.Errorf("a transform may touch %s", name)
		}
	}
}

func TestWhatTellsOfTheInsideIsHidden(t *testing.T) {
	const sent = "Server: x\r\nX-Powered-By: y\r\nA: z\r\n"
	h := headOf(t, sent)
	(*Rules)(nil).Hide(&h.Head)
	if got := string(h.AppendFields(nil)); got != "A: z\r\n" {
		t.Errorf("%q", got)
	}
	h = headOf(t, sent)
	Compile([]*snapshot.Transform{{Response: snapshot.ResponseEdits{Keep: []string{"server"}}}}, &snapshot.Match{}).Hide(&h.Head)
	if got := string(h.AppendFields(nil)); got != "Server: x\r\nA: z\r\n" {
		t.Errorf("%q", got)
	}
}

func TestTransformsAllocateNothing(t *testing.T) {
	r := Compile([]*snapshot.Transform{{Request: snapshot.RequestEdits{Path: "/in/{a}", Edits: snapshot.Edits{Remove: []string{"a"}, Rename: map[string]string{"b": "c"}, Set: map[string]string{"d": "e"}}}}}, &snapshot.Match{Path: "/{a}"})
	h, buf := headOf(t, "A: 1\r\nB: 2\r\nC: 3\r\n"), make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(100, func() {
		r.Hide(&h.Head)
		buf = r.Request.AppendFields(buf[:0], &h.Head)
		buf, _ = r.Path.Append(buf[:0], "/x")
		r.Request.Each(&h.Head, func(name, value string) { buf = append(buf, name...) })
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
