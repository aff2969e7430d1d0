package apikey

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestAKeyIsWellAndNoChangedOneIs(t *testing.T) {
	key, id := New(rand.Reader)
	if other, _ := New(rand.Reader); other == key {
		t.Fatal("two keys are one")
	}
	if !Well([]byte(key)) || !strings.HasPrefix(key, Prefix+id+"_") {
		t.Fatalf("%s of %s", key, id)
	}
	for i := range key {
		for _, c := range []byte("0z_ Z\x00") {
			changed := []byte(key)
			if changed[i] == c {
				continue
			}
			changed[i] = c
			if Well(changed) {
				t.Errorf("%s is well", changed)
			}
		}
	}
	for _, bad := range []string{"", "cg_", key[:len(key)-1], key + "0", "cg_acme"} {
		if Well([]byte(bad)) {
			t.Errorf("%q is well", bad)
		}
	}
	raw := []byte(key)
	if n := testing.AllocsPerRun(100, func() { Well(raw); SHA256.Of(raw); SHA512_256.Of(raw) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// The form is stored at clients: what was issued once must be well for ever.
func TestTheGoldenKeyIsWell(t *testing.T) {
	key, id := New(bytes.NewReader(bytes.Repeat([]byte{1, 7, 31, 16}, 11)))
	if key != "cg_17zg17zg17_zg17zg17zg17zg17zg17zg17zg17zg17bt2egh3" || id != "17zg17zg17" {
		t.Errorf("%s, %s", key, id)
	}
}

func TestHashesAreTaggedAndReadBack(t *testing.T) {
	for by := range Algorithms {
		h := by.Of([]byte("cg_acme"))
		back, err := Parse(h.String())
		if err != nil || back != h {
			t.Errorf("%s: %v %v", h, back, err)
		}
		if upper, err := Parse(tags()[by] + strings.ToUpper(strings.TrimPrefix(h.String(), tags()[by]))); err != nil || upper != h {
			t.Errorf("%s in capitals: %v", h, err)
		}
	}
	if a, b := SHA256.Of(nil), SHA512_256.Of(nil); a.Sum == b.Sum {
		t.Error("both algorithms say the same")
	}
	good := SHA256.Of(nil).String()
	for _, bad := range []string{"", "sha256:", "md5:" + good[7:], good + "00", good[:len(good)-2], "sha256:zz" + good[9:], "SHA256:" + good[7:]} {
		if _, err := Parse(bad); err == nil {
			t.Errorf("%q is a hash", bad)
		}
	}
}

func TestListsAreReadWholeOrNotAtAll(t *testing.T) {
	good := List{Form: Form, At: time.Unix(1, 5).UTC(), Consumers: []Consumer{{"acme", []string{SHA256.Of(nil).String()}}}}
	raw, err := json.Marshal(good)
	if err != nil {
		t.Fatal(err)
	}
	l, err := Decode(raw)
	if err != nil || l.Number() != 1_000_000_005 || len(l.Consumers) != 1 {
		t.Errorf("%+v %v", l, err)
	}
	if want := `{"form":1,"at":"1970-01-01T00:00:01.000000005Z","consumers":[{"id":"acme","hashes":["sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"]}]}`; string(raw) != want {
		t.Errorf("the sent form is %s", raw)
	}
	many := strings.Repeat(`"`+SHA256.Of(nil).String()+`",`, MaxKeys)
	for name, bad := range map[string]string{
		"nothing": "", "no form": "{}", "a later form": `{"form":2}`, "a hash": `{"form":1,"consumers":[{"id":"a","hashes":["sha256:00"]}]}`,
		"no id": `{"form":1,"consumers":[{"hashes":[]}]}`, "too many": `{"form":1,"consumers":[{"id":"a","hashes":[` + many + `"x"]}]}`,
	} {
		if _, err := Decode([]byte(bad)); err == nil {
			t.Errorf("%s is read", name)
		}
	}
}
