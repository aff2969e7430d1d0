package denylist

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/cells"
)

var epoch = time.Unix(1_000_000, 0).UTC()

func anyEntries(t *rapid.T, label string) []Entry {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Entry {
		at := epoch.Add(time.Duration(rapid.IntRange(0, 5).Draw(t, "at")) * time.Second)
		return Entry{
			Kind: rapid.SampledFrom([]Kind{User, Token}).Draw(t, "kind"), ID: rapid.SampledFrom([]string{"ann", "bob"}).Draw(t, "id"),
			Region: cells.RegionID(rapid.SampledFrom([]string{"", "eu"}).Draw(t, "region")), Reason: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "why"),
			At: at, Expires: at.Add(time.Duration(rapid.IntRange(1, 5).Draw(t, "for")) * time.Second), Removed: rapid.Bool().Draw(t, "removed"),
		}
	}), 0, 8).Draw(t, label)
}

func TestPlacesThatExchangeDenialsEndWithTheSameList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := anyEntries(t, "a"), anyEntries(t, "b"), anyEntries(t, "c")
		want := Unite(a, b, c)
		for name, got := range map[string][]Entry{
			"other order": Unite(c, a, b), "grouped": Unite(Unite(a, b), c), "repeated": Unite(Unite(a, b, c), b, Unite(a, c)),
		} {
			if !reflect.DeepEqual(got, want) || Digest(got) != Digest(want) {
				t.Fatalf("%s: %v, want %v", name, got, want)
			}
		}
		for _, w := range want {
			for _, e := range append(append(a, b...), c...) {
				if e.Name() == w.Name() && (e.At.After(w.At) || e.At.Equal(w.At) && w.Removed && !e.Removed) {
					t.Fatalf("%v counts although %v is the later word", w, e)
				}
			}
		}
	})
}

func TestEntriesAreToldApartWhateverTheirBytes(t *testing.T) {
	seen := map[string]Entry{}
	parts := []string{"", "\x00", "\x01", "a", "a\x00", "\x00a", "\x010", "\x011", "\x00\x00"}
	for _, issuer := range parts {
		for _, id := range parts {
			e := Entry{Kind: User, Issuer: issuer, ID: id}
			if other, ok := seen[e.Name()]; ok {
				t.Errorf("%q of %q and %q of %q have one name", e.ID, e.Issuer, other.ID, other.Issuer)
			}
			seen[e.Name()] = e
		}
	}
}

func TestASetDeniesWhomItNamesAndNobodyElse(t *testing.T) {
	sum := sha256.Sum256([]byte("cg_leaked"))
	id := "sha256:" + hex.EncodeToString(sum[:])
	s := Compile([]Entry{
		{Kind: User, ID: "ann"}, {Kind: User, ID: "bob", Issuer: "https://a"}, {Kind: Token, ID: "t1"},
		{Kind: Key, ID: id[:len("sha256:")+16]}, {Kind: Route, ID: "orders"},
	})
	for name, got := range map[string]bool{
		"any issuer": s.User("https://b", "ann"), "its issuer": s.User("https://a", "bob"), "token": s.Token("https://a", "t1"),
		"key by the start of its hash": s.Key([]byte("cg_leaked")), "route": s.Route("orders"),
		"whole hash": Compile([]Entry{{Kind: Key, ID: id}}).Key([]byte("cg_leaked")),
	} {
		if !got {
			t.Errorf("%s is not denied", name)
		}
	}
	var none *Set
	for name, got := range map[string]bool{
		"other issuer": s.User("https://b", "bob"), "other user": s.User("", "carol"), "no user": s.User("", ""), "user as token": s.Token("", "ann"),
		"other key": s.Key([]byte("cg_other")), "other route": s.Route("orders2"), "nil": none.User("", "ann") || none.Key([]byte("cg_leaked")) || none.Route("orders") || none.Token("", "t1"),
	} {
		if got {
			t.Errorf("%s is denied", name)
		}
	}
	key := []byte("cg_leaked")
	if n := testing.AllocsPerRun(100, func() { s.User("https://b", "bob"); s.Token("x", "y"); s.Route("r"); s.Key(key) }); n > 0 {
		t.Errorf("a look-up allocates %v times", n)
	}
}

func TestWhatIsNotUnderstoodIsRefusedWhole(t *testing.T) {
	good := Entry{Kind: User, ID: "ann", Reason: "x", At: epoch, Expires: epoch.Add(time.Hour)}
	spoiled := func(change func(*Entry)) Entry { e := good; change(&e); return e }
	for name, e := range map[string]Entry{
		"kind": spoiled(func(e *Entry) { e.Kind = "ip" }), "no id": spoiled(func(e *Entry) { e.ID = "" }),
		"long id": spoiled(func(e *Entry) { e.ID = strings.Repeat("x", 300) }), "short hash": spoiled(func(e *Entry) { e.Kind, e.ID = Key, "sha256:abcd" }),
		"a key itself": spoiled(func(e *Entry) { e.Kind, e.ID = Key, "cg_secret" }), "issuer of a route": spoiled(func(e *Entry) { e.Kind, e.Issuer = Route, "https://a" }),
	} {
		raw, _ := json.Marshal(NewList("eu", []Entry{good, e}, epoch))
		if _, err := Decode(raw); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	for _, raw := range []string{"", "{}", `{"form":2}`, `{"form":1,"entries":[{}]}`} {
		if _, err := Decode([]byte(raw)); err == nil {
			t.Errorf("%q is accepted", raw)
		}
	}
	raw, _ := json.Marshal(NewList("eu", []Entry{good}, epoch))
	l, err := Decode(raw)
	if err != nil || len(l.Entries) != 1 || l.Digest != Digest(l.Entries) || l.NewBeat(epoch).Digest != l.Digest {
		t.Errorf("%+v %v", l, err)
	}
}

func TestExpiredEntriesAndTheOldestRemovalsAreForgotten(t *testing.T) {
	var all []Entry
	for i := range maxRemoved + 10 {
		all = append(all, Entry{Kind: User, ID: fmt.Sprint("u", i), Removed: true, At: epoch.Add(-time.Duration(i) * time.Second), Expires: epoch.Add(time.Hour)})
	}
	all = append(all, Entry{Kind: User, ID: "ann", Expires: epoch.Add(time.Second)}, Entry{Kind: User, ID: "bob", Expires: epoch})
	kept := Current(all, epoch)
	if len(kept) != maxRemoved+1 || len(Live(kept, epoch)) != 1 {
		t.Errorf("%d are kept, %d deny", len(kept), len(Live(kept, epoch)))
	}
	if n := len(In([]Entry{{Region: "eu"}, {}, {Region: "us"}}, "eu")); n != 2 {
		t.Errorf("%d hold in the region", n)
	}
}
