package cells

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var epoch = time.Unix(1_000_000, 0).UTC()

// anyOrders draws few cells and few moments, so that orders often speak of the same.
func anyOrders(t *rapid.T, label string) []Evacuation {
	at := func(label string, from, to int) time.Time {
		return epoch.Add(time.Duration(rapid.IntRange(from, to).Draw(t, label)) * time.Second)
	}
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Evacuation {
		e := Evacuation{
			Form: 1, Cell: CellID(rapid.SampledFrom([]string{"eu/a", "eu/b"}).Draw(t, "cell")), Reason: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "reason"),
			Started: at("start", 0, 4), Over: time.Duration(rapid.IntRange(0, 3).Draw(t, "over")) * time.Second, Expires: at("expires", 5, 12),
		}
		if rapid.IntRange(0, 3).Draw(t, "ended") == 0 {
			e.Restored = at("restored", 0, 8)
			if e.Restored.Before(e.Started) {
				e.Restored = e.Started
			}
		}
		e.Withdrawn = rapid.IntRange(0, 7).Draw(t, "withdrawn") == 0
		return e
	}), 0, 6).Draw(t, label)
}

func TestPlacesThatExchangeOrdersEndWithTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := anyOrders(t, "a"), anyOrders(t, "b"), anyOrders(t, "c")
		want := Unite(a, b, c)
		for name, got := range map[string][]Evacuation{
			"other order":    Unite(c, a, b),
			"grouped":        Unite(Unite(a, b), c),
			"grouped, right": Unite(a, Unite(b, c)),
			"repeated":       Unite(Unite(a, b, c), b, a, Unite(a, c)),
		} {
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: %v, want %v", name, got, want)
			}
		}
	})
}

func TestTheStrictestOrderWinsAndARestorationEndsWhatCameBefore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := anyOrders(t, "orders")
		now := epoch.Add(time.Duration(rapid.IntRange(0, 12).Draw(t, "now")) * time.Second)
		united := Unite(list)
		for _, one := range Strictest(united, now) {
			if !reflect.DeepEqual(Strictest([]Evacuation{one}, now), []Evacuation{one}) {
				t.Fatalf("%v is not stable", one)
			}
			standing := slices.DeleteFunc(slices.Clone(united), func(e Evacuation) bool { return e.Cell != one.Cell || !e.Standing(now) })
			if one.Standing(now) != (len(standing) > 0) {
				t.Fatalf("%v stands: %t, of %v", one, one.Standing(now), standing)
			}
			for _, e := range standing {
				if one.Expires.Before(e.Expires) || one.Started.Add(one.Over).After(e.Started.Add(e.Over)) || one.Started.After(e.Started) {
					t.Fatalf("%v is laxer than %v", one, e)
				}
			}
			// What is taken into one place as a whole changes nothing in the others.
			again := Strictest(Unite(united, []Evacuation{one}), now)
			i := slices.IndexFunc(again, func(e Evacuation) bool { return e.Cell == one.Cell })
			if one.Standing(now) && (!again[i].Expires.Equal(one.Expires) || !again[i].Started.Equal(one.Started) || again[i].Over != one.Over) {
				t.Fatalf("taking %v in gives %v", one, again[i])
			}
		}
		for _, e := range list {
			for _, u := range united {
				if u.Cell == e.Cell && !e.Restored.IsZero() && e.Restored.Before(e.Expires) && !u.Started.After(e.Restored) && u.Restored.IsZero() {
					t.Fatalf("%v survives the restoration %v", u, e)
				}
			}
		}
	})
}
