package snapshot

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

func everyKey(t testing.TB) *Config {
	t.Helper()
	cfg, problems := Decode([]File{testdata(t, "every-key.yaml")}, Loopback())
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return cfg
}

func sealed(t testing.TB, cfg *Config) *Snapshot {
	t.Helper()
	s, err := Seal(cfg, Meta{Number: 7, Previous: 6, Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Author: "ada", Message: "m"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// goldenForm is everything that form 1 puts on a disk or a wire, readable: the manifest and each blob.
func goldenForm(t *testing.T, s *Snapshot) []byte {
	var b bytes.Buffer
	raw, err := json.MarshalIndent(s.Manifest, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "%s\n", raw)
	for _, shard := range s.Manifest.Shards {
		fmt.Fprintf(&b, "\n%s\n%q\n", shard.Key, s.Blobs[shard.Digest])
	}
	return b.Bytes()
}

// TestStoredFormIsTheGoldenOne guards form 1: a change here needs a new Form and a reader of both.
func TestStoredFormIsTheGoldenOne(t *testing.T) {
	got := goldenForm(t, sealed(t, everyKey(t)))
	if *rewrite {
		if err := os.WriteFile("testdata/form-1.golden", got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := testdata(t, "form-1.golden").Data; !bytes.Equal(got, want) {
		t.Fatalf("the stored form has changed:\n%s", got)
	}
}

func TestCanonicalDocumentIsTheGoldenOne(t *testing.T) {
	got, err := Format(everyKey(t))
	if err != nil {
		t.Fatal(err)
	}
	if *rewrite {
		if err := os.WriteFile("testdata/every-key.golden", got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := testdata(t, "every-key.golden").Data; !bytes.Equal(got, want) {
		t.Fatalf("the canonical document has changed:\n%s", got)
	}
}

func TestOpenGivesBackWhatWasSealed(t *testing.T) {
	cfg := everyKey(t)
	again, err := Open(sealed(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	for i := range cfg.Samples {
		cfg.Samples[i].At = Place{}
	}
	cfg.ids = nil
	if !reflect.DeepEqual(cfg, again) {
		t.Fatalf("got %+v\nwant %+v", again, cfg)
	}
}

func TestTheChecksumCoversContentAlone(t *testing.T) {
	cfg := everyKey(t)
	a := sealed(t, cfg)
	b, err := Seal(cfg, Meta{Number: 9, Author: "bob", RollbackOf: 7})
	if err != nil {
		t.Fatal(err)
	}
	if a.Manifest.Checksum != b.Manifest.Checksum {
		t.Fatal("who published when is in the checksum")
	}
	cfg.Routes[0].Owner += "x"
	if c := sealed(t, cfg); c.Manifest.Checksum == a.Manifest.Checksum {
		t.Fatal("a changed owner is not in the checksum")
	}
}

func TestOneChangedRouteChangesOneShard(t *testing.T) {
	cfg, problems := Decode([]File{{"many", []byte(manyRoutes(2000, 500))}}, Allow{})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	a := sealed(t, cfg)
	cfg.Routes[17].Owner = "other"
	b := sealed(t, cfg)
	changed := 0
	for d := range b.Blobs {
		if _, ok := a.Blobs[d]; !ok {
			changed++
		}
	}
	if changed != 1 || len(a.Manifest.Shards) < 200 {
		t.Fatalf("%d of %d shards changed", changed, len(a.Manifest.Shards))
	}
}

func TestDamageIsFound(t *testing.T) {
	for name, harm := range map[string]func(s *Snapshot){
		"blob missing":       func(s *Snapshot) { delete(s.Blobs, s.Manifest.Shards[0].Digest) },
		"blob changed":       func(s *Snapshot) { s.Blobs[s.Manifest.Shards[1].Digest][5] ^= 1 },
		"blob shortened":     func(s *Snapshot) { d := s.Manifest.Shards[1].Digest; s.Blobs[d] = s.Blobs[d][:3] },
		"shard dropped":      func(s *Snapshot) { s.Manifest.Shards = s.Manifest.Shards[1:] },
		"shards reordered":   func(s *Snapshot) { slices.Reverse(s.Manifest.Shards) },
		"digest exchanged":   func(s *Snapshot) { s.Manifest.Shards[0].Digest = s.Manifest.Shards[1].Digest },
		"checksum changed":   func(s *Snapshot) { s.Manifest.Checksum = Sum(nil) },
		"newer reader asked": func(s *Snapshot) { s.Manifest.MinReader = Reader + 1 },
	} {
		s := sealed(t, everyKey(t))
		if err := s.Verify(); err != nil {
			t.Fatal(err)
		}
		harm(s)
		if err := s.Verify(); err == nil {
			t.Errorf("%s: not found", name)
		}
		if _, err := Open(s); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
}

func TestManifestSurvivesItsEncodingAndANewerWriter(t *testing.T) {
	s := sealed(t, everyKey(t))
	raw, err := EncodeManifest(&s.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	raw = bytes.Replace(raw, []byte("{"), []byte(`{"from_the_future":1,`), 1)
	m, err := DecodeManifest(raw)
	if err != nil || !reflect.DeepEqual(*m, s.Manifest) {
		t.Fatalf("%v %+v", err, m)
	}
	if _, err := DecodeManifest([]byte("{")); err == nil {
		t.Fatal("garbage is accepted")
	}
}

// TestALaterWriterMayAppendFields: a record of form 1 with more at its end is read as far as it is known.
func TestALaterWriterMayAppendFields(t *testing.T) {
	var w routeWriter
	r := Route{ID: "a", Match: Match{Host: "h", Path: "/"}, Upstream: "u", Limits: Limits{Scope: ScopeCell}} // the last that is known
	w.route(&r)
	w.string("a field of tomorrow")
	record := w.b
	w.b = []byte(routeMagic)
	w.uint(uint64(len(record)))
	blob := append(w.b, record...)
	var got []Route
	if err := ReadRoutes(blob, func(r *Route, _ string) error { got = append(got, r.clone()); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || !reflect.DeepEqual(got[0], r) {
		t.Fatalf("%+v", got)
	}
}

func TestRoutesSurviveTheirStoredForm(t *testing.T) {
	text := rapid.StringMatching(`[a-z/{}é]{0,12}`)
	rapid.Check(t, func(t *rapid.T) {
		var want []Route
		for id := range rapid.MapOfN(text, rapid.Just(0), 0, 5).Draw(t, "ids") {
			if id == "" {
				continue
			}
			r := Route{ID: id, Upstream: text.Draw(t, "upstream"), Timeout: time.Duration(rapid.Int64Range(0, 1<<50).Draw(t, "timeout"))}
			r.Match = Match{Path: text.Draw(t, "path"), Methods: nonEmpty(rapid.SliceOfN(text, 0, 3).Draw(t, "methods"))}
			if h := rapid.MapOfN(text, text, 0, 3).Draw(t, "headers"); len(h) > 0 {
				r.Match.Headers = maps.Clone(h)
			}
			r.Retry = Retry{Attempts: rapid.IntRange(0, 2).Draw(t, "attempts")}
			r.Limits.User = Rate{rapid.Uint64().Draw(t, "requests"), time.Second}
			r.Limits.Scope, r.Limits.OnStoreLoss = text.Draw(t, "scope"), text.Draw(t, "loss")
			want = append(want, r)
		}
		slices.SortFunc(want, func(a, b Route) int { return strings.Compare(a.ID, b.ID) })
		var got []Route
		if err := ReadRoutes(EncodeRoutes(want), func(r *Route, _ string) error { got = append(got, r.clone()); return nil }); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v\nwant %+v", got, want)
		}
	})
}

// FuzzReadRoutes: damaged shards are errors, never panics, and what is read can be written and read again.
func FuzzReadRoutes(f *testing.F) {
	cfg := everyKey(f)
	f.Add(EncodeRoutes(cfg.Routes))
	f.Add([]byte(routeMagic))
	f.Fuzz(func(t *testing.T, blob []byte) {
		var read []Route
		if err := ReadRoutes(blob, func(r *Route, _ string) error { read = append(read, r.clone()); return nil }); err != nil {
			return
		}
		var again []Route
		if err := ReadRoutes(EncodeRoutes(read), func(r *Route, _ string) error { again = append(again, r.clone()); return nil }); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(read, again) {
			t.Fatalf("%+v\n%+v", read, again)
		}
	})
}
