package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/store/mem"
	"github.com/cellgate/cellgate/store/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.World {
		s := reopen(t, t.TempDir())
		return storetest.World{
			MinLease: 20 * time.Millisecond,
			Open: func() store.Store {
				h := s.Join()
				t.Cleanup(func() { h.Close() })
				return h
			},
		}
	})
}

func reopen(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// content is everything in a store with its revisions, comparable.
func content(t testing.TB, s store.Store) map[string]string {
	t.Helper()
	entries, _, err := s.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range entries {
		out[e.Key] = fmt.Sprintf("%s %d %d", e.Value, e.Created, e.Modified)
	}
	return out
}

func commit(t testing.TB, s store.Store, ops ...store.Op) store.Revision {
	t.Helper()
	rev, err := s.Commit(t.Context(), nil, ops)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

// A log cut off at any byte opens with exactly the commits that were whole by then, and goes on from there.
func TestKilledAtAnyByteLosesNothingCommitted(t *testing.T) {
	dir := t.TempDir()
	s := reopen(t, dir)
	path := filepath.Join(dir, logName)
	length := func() int64 { fi, _ := os.Stat(path); return fi.Size() }
	ends, states := []int64{length()}, []map[string]string{content(t, s)}
	for i := range 8 {
		ops := []store.Op{store.Put(fmt.Sprint("k", i%5), []byte(strings.Repeat("v", i*3))), store.Delete(fmt.Sprint("k", (i+2)%5))}
		commit(t, s, ops...)
		ends, states = append(ends, length()), append(states, content(t, s))
	}
	s.Close()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := ends[0]; cut <= int64(len(raw)); cut++ {
		for _, zeros := range []int{0, 700} { // some file systems make room before they write
			whole := 0
			for whole+1 < len(ends) && ends[whole+1] <= cut {
				whole++
			}
			dir := t.TempDir()
			tail := append(bytes.Clone(raw[:cut]), make([]byte, zeros)...)
			if err := os.WriteFile(filepath.Join(dir, logName), tail, 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := Open(dir)
			if err != nil {
				t.Fatalf("cut at %d with %d zeros: %v", cut, zeros, err)
			}
			if got := content(t, s); !maps.Equal(got, states[whole]) {
				t.Fatalf("cut at %d with %d zeros: %v instead of %v", cut, zeros, got, states[whole])
			}
			if cut%9 != 0 {
				s.Close()
				continue
			}
			commit(t, s, store.Put("after", nil))
			s.Close()
			if got := content(t, reopen(t, dir)); len(got) != len(states[whole])+1 {
				t.Fatalf("cut at %d: after a commit and another start %v", cut, got)
			}
		}
	}
}

// Damage anywhere else is an error that names file and place; nothing is dropped in silence.
func TestDamageIsNamed(t *testing.T) {
	dir := t.TempDir()
	s := reopen(t, dir)
	for i := range 5 {
		commit(t, s, store.Put(fmt.Sprint("k", i), []byte("value")))
	}
	s.Close()
	path := filepath.Join(dir, logName)
	raw, _ := os.ReadFile(path)
	for at := range raw {
		bad := bytes.Clone(raw)
		bad[at] ^= 0x10
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(dir)
		if err == nil {
			s.Close()
			t.Fatalf("byte %d of %d damaged unnoticed", at, len(raw))
		}
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), path) {
			t.Fatalf("byte %d damaged: %v", at, err)
		}
	}
	for _, junk := range [][]byte{nil, []byte("x"), []byte(header)} {
		os.WriteFile(path, junk, 0o600)
		if _, err := Open(dir); !errors.Is(err, ErrCorrupt) {
			t.Errorf("a log of %q: %v", junk, err)
		}
	}
}

func TestDirectoryIsOpenOnce(t *testing.T) {
	dir := t.TempDir()
	s := reopen(t, dir)
	if _, err := Open(dir); !errors.Is(err, ErrLocked) {
		t.Fatalf("opened twice: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Join().Commit(t.Context(), nil, []store.Op{store.Put("k", nil)}); !errors.Is(err, store.ErrClosed) {
		t.Fatalf("a commit after Close: %v", err)
	}
	reopen(t, dir)
	file := filepath.Join(t.TempDir(), "file")
	os.WriteFile(file, nil, 0o600)
	if _, err := Open(filepath.Join(file, "below")); err == nil {
		t.Fatal("opened below a file")
	}
}

func TestLeasesDieWithTheProcess(t *testing.T) {
	dir := t.TempDir()
	s := reopen(t, dir)
	l, err := s.Lease(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	leased := store.Put("leader", []byte("me"))
	leased.Lease = l
	rev := commit(t, s, leased, store.Put("k", nil))
	s.Close()
	for range 2 { // once from the log, once after it was rewritten
		s = reopen(t, dir)
		if got := content(t, s); len(got) != 1 {
			t.Fatalf("after a start: %v", got)
		}
		if next := commit(t, s, store.Put("k", nil)); next <= rev {
			t.Fatalf("revision %d after %d", next, rev)
		}
		s.Close()
	}
}

// Every step of writing fails in both ways, "failed" and "failed but done": the commit fails, the store goes on, and
// after a restart it holds what was acknowledged, with or without the commit whose outcome was unknown.
func TestEveryFaultTwice(t *testing.T) {
	boom := errors.New("disk on fire")
	for _, step := range []string{"write", "sync", "rewrite", "open"} {
		for _, done := range []bool{false, true} {
			t.Run(fmt.Sprint(step, " done ", done), func(t *testing.T) {
				dir := t.TempDir()
				armed := ""
				s, err := open(dir, func(at string, do func() error) error {
					if at != armed {
						return do()
					}
					armed = ""
					if done {
						do()
					}
					return boom
				})
				if err != nil {
					t.Fatal(err)
				}
				commit(t, s, store.Put("acknowledged", []byte("1")))
				if step == "rewrite" || step == "open" {
					armed = "sync" // the log's end is unknown, so the next commit rewrites it
					if _, err := s.Commit(t.Context(), nil, []store.Op{store.Put("unknown", nil)}); !errors.Is(err, boom) {
						t.Fatal(err)
					}
				}
				armed = step
				if _, err := s.Commit(t.Context(), nil, []store.Op{store.Put("unknown", nil)}); !errors.Is(err, boom) {
					t.Fatalf("with a failing %s: %v", step, err)
				}
				crashed := copyDir(t, dir)
				if got := content(t, reopen(t, crashed)); got["acknowledged"] != "1 1 1" || len(got) > 2 {
					t.Errorf("killed right after: %v", got)
				}
				if got := content(t, s); len(got) != 1 {
					t.Errorf("a failed commit shows: %v", got)
				}
				commit(t, s, store.Put("later", []byte("2")))
				s.Close()
				got := content(t, reopen(t, dir))
				if got["acknowledged"] != "1 1 1" || got["later"] != "2 2 2" || len(got) != 2 {
					t.Errorf("after a restart: %v", got)
				}
			})
		}
	}
}

func copyDir(t *testing.T, dir string) string {
	to := t.TempDir()
	raw, err := os.ReadFile(filepath.Join(dir, logName))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(to, logName), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return to
}

func TestLogIsRewrittenBeforeItGrowsWithoutBound(t *testing.T) {
	dir := t.TempDir()
	s := reopen(t, dir)
	value := make([]byte, store.MaxValue)
	for i := range 40 { // 20 MiB of commits on 0.5 MiB of state
		binary.LittleEndian.PutUint32(value, uint32(i))
		commit(t, s, store.Put("k", value))
	}
	fi, err := os.Stat(filepath.Join(dir, logName))
	if err != nil || fi.Size() > minGarbage+5*store.MaxValue {
		t.Fatalf("the log has %d bytes, %v", fi.Size(), err)
	}
	before := content(t, s)
	s.Close()
	if got := content(t, reopen(t, dir)); !maps.Equal(got, before) {
		t.Fatal("the rewritten log holds something else")
	}
}

// A directory that is closed and opened at random holds what a store in memory holds.
func TestReopenedStoreIsTheOneInMemory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		s, model := reopen(t, dir), mem.New()
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			if rapid.IntRange(0, 5).Draw(rt, "reopen") == 0 {
				s.Close()
				s = reopen(t, dir)
			}
			var ops []store.Op
			for i := range rapid.IntRange(0, 3).Draw(rt, "ops") {
				key := fmt.Sprint(i, rapid.IntRange(0, 2).Draw(rt, "key"))
				if rapid.Bool().Draw(rt, "delete") {
					ops = append(ops, store.Delete(key))
				} else {
					ops = append(ops, store.Put(key, rapid.SliceOfN(rapid.Byte(), 0, 8).Draw(rt, "value")))
				}
			}
			got, want := commit(t, s, ops...), commit(t, model, ops...)
			if got != want {
				rt.Fatalf("revision %d instead of %d", got, want)
			}
		}
		if got, want := content(t, s), content(t, model); !maps.Equal(got, want) {
			rt.Fatalf("%v instead of %v", got, want)
		}
		s.Close()
	})
}

func FuzzDecode(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 1))
	state := mem.State{Revision: 7, Entries: map[string]mem.Held{"a": {Entry: store.Entry{Key: "a", Value: []byte("v"), Created: 1, Modified: 7}}}}
	good := append([]byte(header), frame(encodeState(&state))...)
	good = append(good, frame(encodeCommit(8, []store.Op{store.Put("b", []byte("w")), store.Delete("a")}))...)
	f.Add(good)
	for range 10 {
		f.Add(good[:rng.IntN(len(good))])
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		state, base, size, err := decode(raw)
		if err == nil && (base <= int64(len(header)) || size < base || size > int64(len(raw)) || state.Revision < 0) {
			t.Fatalf("base %d, size %d of %d, revision %d", base, size, len(raw), state.Revision)
		}
	})
}
