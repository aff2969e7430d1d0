package memo

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func keyOf(parts ...string) Key {
	h := NewHash("t")
	for _, p := range parts {
		if p == "none" {
			h.None()
			continue
		}
		h.Text(p)
	}
	return h.Key()
}

func TestNoTwoListsOfPartsHaveOneKey(t *testing.T) {
	long := strings.Repeat("x", 33)
	seen := map[Key][]string{}
	for _, parts := range [][]string{
		{}, {""}, {"", ""}, {"none"}, {"", "none"}, {"none", ""}, {"a"}, {"a", ""}, {"", "a"}, {"a", "b"}, {"ab"}, {"b", "a"},
		{long}, {long + "x"}, {long, long}, {long[:32]}, {long[:32], "x"},
		slices.Repeat([]string{"a"}, 40), slices.Repeat([]string{"a"}, 41), slices.Repeat([]string{long}, 20), slices.Repeat([]string{long}, 21),
	} {
		k := keyOf(parts...)
		if other, taken := seen[k]; taken {
			t.Errorf("%.60q and %.60q", parts, other)
		}
		seen[k] = parts
	}
	other := NewHash("u")
	if other.Text("a").Key() == keyOf("a") {
		t.Error("two tenants have one key")
	}
}

func TestKeysAreEqualForEqualPartsAlone(t *testing.T) {
	part := rapid.StringMatching(`[ab]{0,40}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.SliceOfN(part, 0, 30).Draw(t, "a"), rapid.SliceOfN(part, 0, 30).Draw(t, "b")
		if (keyOf(a...) == keyOf(b...)) != slices.Equal(a, b) {
			t.Fatalf("%q %q", a, b)
		}
	})
}

func TestAnAnswerIsKnownUntilItIsDroppedOrGivesWay(t *testing.T) {
	table := New[string](64, 1000)
	k := keyOf("a")
	if v, _ := table.Get(k, 0); v != nil {
		t.Fatal("an empty table knows something")
	}
	table.Put(k, "one", 3, 10, 0)
	if v, holds := table.Get(k, 9); v == nil || *v != "one" || !holds {
		t.Fatalf("%v holds %v", v, holds)
	}
	table.Put(k, "three", 5, 20, 5)
	if v, holds := table.Get(k, 20); *v != "three" || holds || table.bytes.Load() != 5 {
		t.Errorf("%v holds %v, %d bytes", *v, holds, table.bytes.Load())
	}
	table.Forget(func(v *string) bool { return *v == "one" })
	if v, _ := table.Get(k, 0); v == nil {
		t.Error("forgotten without being named")
	}
	if table.Drop(k); table.bytes.Load() != 0 {
		t.Errorf("%d bytes of nothing", table.bytes.Load())
	}
	table.Put(k, "one", 3, 10, 0)
	table.Forget(nil)
	if v, _ := table.Get(k, 0); v != nil || table.bytes.Load() != 0 {
		t.Error("not forgotten")
	}
}

func TestWhatWasPutAtATimeThatHasNotComeDoesNotHold(t *testing.T) {
	table, at := New[string](64, 1000), int64(3600e9)
	table.Put(keyOf("a"), "one", 3, at+30e9, at)
	for now, want := range map[int64]bool{at: true, at - early: true, at - early - 1: false, 0: false, at + 30e9 - 1: true, at + 30e9: false} {
		if v, holds := table.Get(keyOf("a"), now); v == nil || holds != want {
			t.Errorf("%d ns after it was put: %v, holds %v", now-at, v, holds)
		}
	}
}

// in makes a key of the first set.
func in(n int) (k Key) {
	binary.LittleEndian.PutUint64(k[9:], uint64(n))
	return k
}

func TestWhatIsOverGivesWayFirst(t *testing.T) {
	table := New[int](1, 1<<20)
	for n := range ways {
		table.Put(in(n), n, 1, int64(100+n), 0)
	}
	table.Put(in(9), 9, 1, 500, 102) // 100, 101 and 102 are over
	left := 0
	for n := range ways {
		if v, _ := table.Get(in(n), 0); v != nil {
			left++
		}
	}
	if v, _ := table.Get(in(3), 0); v == nil || left != ways-1 {
		t.Errorf("%d left, the one that still holds: %v", left, v)
	}
}

func TestTheTableIsBoundedInPlacesAndBytes(t *testing.T) {
	table := New[int](64, 5000)
	for n := range 10_000 {
		table.Put(keyOf(fmt.Sprint(n)), n, 100, 1<<40, 0)
	}
	if b := table.bytes.Load(); b > 5000 {
		t.Errorf("%d bytes", b)
	}
	known := 0
	for n := range 10_000 {
		if v, _ := table.Get(keyOf(fmt.Sprint(n)), 0); v != nil {
			known++
		}
	}
	if known == 0 || known > 50 {
		t.Errorf("%d answers of 100 bytes in 5,000", known)
	}
	if table.Put(keyOf("huge"), 1, 6000, 1<<40, 0) {
		t.Error("an answer larger than the table is kept")
	}
}

func TestBytesAreCountedRightUnderContention(t *testing.T) {
	table := New[int](16, 1<<40)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for n := range 2000 {
				k := keyOf(fmt.Sprint(n % 200))
				table.Put(k, n, n%50, int64(n), int64(n))
				if n%3 == g%3 {
					table.Drop(k)
				}
			}
		})
	}
	wg.Wait()
	if table.Forget(nil); table.bytes.Load() != 0 {
		t.Errorf("%d bytes of nothing", table.bytes.Load())
	}
}

func TestLookingUpDoesNotAllocate(t *testing.T) {
	table := New[string](64, 1000)
	token := []byte(strings.Repeat("t", 300))
	h := NewHash("tenant")
	table.Put(h.Text("policy").Bytes(token).Key(), "x", 1, 1, 0)
	if n := testing.AllocsPerRun(1000, func() {
		h := NewHash("tenant")
		if v, _ := table.Get(h.Text("policy").Bytes(token).Key(), 0); v == nil {
			t.Fatal("missed")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
