package snapshot

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/problem"
)

func TestTrapsOfYAMLAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string // prefixes of the problems; none = valid
	}{
		"empty":            {"", []string{"doc.yaml:1: the file is empty"}},
		"only comments":    {"# nothing\n", []string{"doc.yaml:1: the file holds no document"}},
		"byte order mark":  {"\xef\xbb\xbfversion: v1\n", nil},
		"UTF-16":           {"\xff\xfev\x00", []string{"doc.yaml:1: the file is not UTF-8"}},
		"Latin-1":          {"version: v1\n# caf\xe9\n", []string{"doc.yaml:2: the file is not UTF-8"}},
		"tab":              {"version: v1\nroutes:\n\t- id: a\n", []string{"doc.yaml:3: not valid YAML"}},
		"section twice":    {"version: v1\nroutes: []\nroutes: []\n", []string{"doc.yaml:3: routes: the key stands here twice"}},
		"key twice":        {"version: v1\nplans:\n  - id: a\n    id: b\n", []string{"doc.yaml:4: plans[0].id: the key stands here twice"}},
		"list":             {"- a\n", []string{"doc.yaml:1: a document must be a mapping"}},
		"scalar":           {"hello\n", []string{"doc.yaml:1: a document must be a mapping"}},
		"other keys":       {"version: v1\n1: a\n? [x]\n: b\n", []string{"doc.yaml:2: a key must be a string", "doc.yaml:3: a key must be a string"}},
		"alias":            {"version: v1\nplans:\n  - id: a\n    rate_per_sec: &r 5\n  - {id: b, rate_per_sec: *r}\n", nil},
		"circle":           {"version: v1\nplans: &a [*a]\n", []string{"doc.yaml:2: plans[0]: must be a mapping"}},
		"merge key":        {"version: v1\nplans:\n  - &x {id: a}\n  - {<<: *x, id: b}\n", []string{"doc.yaml:4: plans[1].<<: unknown key (merge keys"}},
		"tag":              {"version: v1\nplans: [{id: !!python/object x}]\n", []string{"doc.yaml:2: has the tag !!python/object (leave the tag out)"}},
		"tags of lists":    {"version: !!str v1\nplans: !mine\n  - !!map {id: a}\nroutes: !!python/x []\n", []string{"doc.yaml:1: has the tag !!str", "doc.yaml:2: has the tag !mine", "doc.yaml:3: has the tag !!map", "doc.yaml:4: has the tag !!python/x"}},
		"tag of all":       {"!!map\nversion: v1\n", []string{"doc.yaml:1: has the tag !!map"}},
		"not a number":     {"version: v1\nplans: [{id: a, rate_per_sec: .nan}]\n", []string{"doc.yaml:2: plans[0].rate_per_sec: must be a whole number"}},
		"octal":            {"version: v1\nplans: [{id: a, rate_per_sec: 0o17}]\n", []string{"doc.yaml:2: plans[0].rate_per_sec: 0o17 is not a number"}},
		"boolean id":       {"version: v1\nplans: [{id: yes}, {id: true}]\n", []string{"doc.yaml:2: plans[1].id: must be a string, not a boolean"}},
		"null list":        {"version: v1\nroutes:\nplans: null\n", nil},
		"other version":    {"version: v2\n", []string{`doc.yaml:1: version: "v2" is not a version`}},
		"item inside text": {"version: v1\nplans:\n  - id: \"a\n  - id: b\"\n", []string{`doc.yaml:3: plans[0].id: "a - id: b" is not an id`}},
		"less indented":    {"version: v1\nplans:\n  - id: a\n - id: b\n", []string{"doc.yaml:4: not valid YAML"}},
		"open string":      {"version: v1\nplans:\n  - id: \"a\n  - id: b\n", []string{"doc.yaml:3: not valid YAML"}},
		"text after end":   {"version: v1\n...\nplans: [\n", []string{"doc.yaml:3: not valid YAML"}},
		"JSON":             {"{\n\t\"version\": \"v1\",\n\t\"plans\": [{\"id\": \"a\\/b\"}]\n}", []string{`doc.yaml:3: plans[0].id: "a/b" is not an id`}},
		"two documents":    {"version: v1\nplans: [{id: a}]\n---\nplans: [{id: b}]\n---\nplans: [{id: b}]\n", []string{`doc.yaml:6: plans[0].id: "b" is used twice, first at doc.yaml:4`}},
		"deep":             {"version: v1\nroutes: " + strings.Repeat("[", 200_000), []string{"doc.yaml:2: not valid YAML"}},
		"control byte":     {"version: v1\nplans: [{id: \"a\\x01\"}]\n", []string{"doc.yaml:2: plans[0].id: holds control characters"}},
		"Windows lines":    {"version: v1\r\nplans:\r\n  - id: a\r\n  - id: a\r\n", []string{`doc.yaml:4: plans[1].id: "a" is used twice`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, got := decodeText(c.text)
			if len(got) != len(c.want) {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], c.want[i]) {
					t.Errorf("got %q, want %q", got[i], c.want[i])
				}
			}
		})
	}
}

func TestAnAliasBombIsBounded(t *testing.T) {
	text := "version: v1\nplans:\n  - &a {id: a}\n" + strings.Repeat("  - *a\n", maxAliases+10)
	_, problems := Decode([]File{{"bomb", []byte(text)}}, Allow{})
	if len(problems) != maxProblems+1 || !strings.Contains(problems[len(problems)-1].Message, "more problems are not shown") {
		t.Fatalf("%d problems, the last %v", len(problems), problems[len(problems)-1])
	}
}

func TestBrokenYAMLInOneFileHidesNothingOfTheOthers(t *testing.T) {
	_, problems := Decode([]File{
		{"a", []byte("version: v1\nplans:\n  - {id: a, colour: 1}\n  - {id: broken\n")},
		{"b", []byte("version: v1\nconsumers: [{id: c, plan: gone}]\n")},
		{"c", []byte("version: v1\nplans: [{id: a, rate_per_sec: x}]\n")},
	}, Allow{})
	var got []string
	for _, p := range problems {
		got = append(got, fmt.Sprintf("%s:%d:%s", p.File, p.Line, p.Path))
	}
	if want := []string{"a:4:", "b:2:consumers[0].plan", "c:2:plans[0].rate_per_sec"}; !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

// FuzzDecode: no document makes the decoder panic, every problem has a file and a line, and what is valid survives
// formatting with its checksum.
func FuzzDecode(f *testing.F) {
	for _, name := range []string{"design.yaml", "design-flat.yaml", "ten-faults.yaml"} {
		f.Add(testdata(f, name).Data)
	}
	f.Add([]byte("version: v1\nplans: [&a {id: a}, *a]\n---\n{routes: [}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, problems := Decode([]File{{"f", data}}, Loopback())
		inPieces(t, data, cfg, problems)
		for _, p := range problems {
			if p.File != "f" || p.Line < 1 || p.Message == "" || p.Hint == "" || !utf8.ValidString(p.String()) {
				t.Fatalf("%+v", p)
			}
		}
		if len(problems) == 0 {
			survives(t, cfg)
		}
	})
}

// inPieces decodes again with the smallest chunks, and without any: both must give what Decode gave.
func inPieces(t interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}, data []byte, cfg *Config, problems problem.List) {
	t.Helper()
	for _, size := range []int{1, 1 << 30} {
		d := newDecoder(Loopback())
		d.chunkBytes = size
		if size == 1 {
			d.file(File{"f", data})
		} else if text, ok := d.textOf(data); ok {
			d.whole(text)
		}
		d.references()
		d.conflicts()
		again, others := d.finish()
		if !slices.Equal(problems, others) || checksum(t, cfg) != checksum(t, again) {
			t.Fatalf("chunks of %d bytes:\n%v\nwant\n%v", size, others, problems)
		}
	}
}

// textOf is what file does before it parses.
func (d *decoder) textOf(data []byte) ([]byte, bool) {
	d.name = "f"
	text, ok := d.text(data)
	if ok && json.Valid(text) {
		text = yamlEscapes(text)
	}
	return text, ok
}

func TestCuttingAFileChangesNothing(t *testing.T) {
	item := rapid.SampledFrom([]string{
		"{id: a}", "{id: b, rate_per_sec: 5}", "{id: 'it''s', x: \"]\\\"}\"}", "{id: c}, {id: d} # }, {", "{id: e,\n # {\n }", "&a {id: f}", "*a", "{id: \"g\n  - {id: h}\"}", "",
	})
	rapid.Check(t, func(t *rapid.T) {
		items := rapid.SliceOfN(item, 0, 6).Draw(t, "items")
		text := "version: v1\nplans: [" + strings.Join(items, ",\n ") + "]\n"
		if rapid.Bool().Draw(t, "block") {
			text = "version: v1\nplans:\n  - " + strings.Join(items, "\n  - ") + "\n"
		}
		data := []byte(text + rapid.SampledFrom([]string{"", "consumers: [{id: x, plan: a}] # end\n", "---\nplans: [{id: z}]\n", "routes:\n"}).Draw(t, "rest"))
		cfg, problems := Decode([]File{{"f", data}}, Loopback())
		inPieces(t, data, cfg, problems)
	})
}

func survives(t testing.TB, cfg *Config) {
	t.Helper()
	text, err := Format(cfg)
	if err != nil {
		t.Fatal(err)
	}
	again, problems := Decode([]File{{"formatted", text}}, Loopback())
	if len(problems) > 0 || checksum(t, again) != checksum(t, cfg) {
		t.Fatalf("%v\n%s", problems, text)
	}
	if twice, err := Format(again); err != nil || string(twice) != string(text) {
		t.Fatalf("formatting is not idempotent: %v\n%s\n%s", err, text, twice)
	}
}

func TestFormattingKeepsTheMeaningAndIsIdempotent(t *testing.T) {
	cfg, problems := Decode([]File{testdata(t, "every-key.yaml")}, Loopback())
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	survives(t, cfg)
}
