package store_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/store/mem"
	"github.com/cellgate/cellgate/store/storetest"
)

func noise(n int) []byte {
	b := make([]byte, n)
	rng := rand.New(rand.NewPCG(uint64(n), 1))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func TestBlobsComeBackWholeAndOnce(t *testing.T) {
	s := &storetest.Faulty{Store: mem.New()}
	blobs := store.NewBlobs(s)
	for _, size := range []int{0, 1, 256 << 10, 256<<10 + 1, 3 << 20} {
		blob := noise(size)
		digest, err := blobs.Put(t.Context(), blob)
		if err != nil {
			t.Fatal(err)
		}
		got, err := blobs.Get(t.Context(), digest)
		if err != nil || !bytes.Equal(got, blob) {
			t.Fatalf("%d bytes came back as %d: %v", size, len(got), err)
		}
		before := s.Commits()
		if again, err := blobs.Put(t.Context(), blob); err != nil || again != digest || s.Commits() != before {
			t.Errorf("the same %d bytes again: %s, %v, %d commits", size, again, err, s.Commits()-before)
		}
	}
	if _, err := blobs.Put(t.Context(), make([]byte, store.MaxBlob+1)); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("a blob above the bound: %v", err)
	}
}

func TestBlobPutThatFailedAnywhereIsFinishedByTheNext(t *testing.T) {
	blob := noise(2 << 20)
	for _, persisted := range []bool{false, true} {
		for at := 1; ; at++ {
			s := &storetest.Faulty{Store: mem.New()}
			blobs := store.NewBlobs(s)
			s.Fail(at, persisted)
			_, err := blobs.Put(t.Context(), blob)
			if err == nil {
				break // there is no such commit
			}
			if !errors.Is(err, storetest.ErrFault) {
				t.Fatal(err)
			}
			digest, err := blobs.Put(t.Context(), blob)
			if err != nil {
				t.Fatalf("again, after commit %d (persisted: %v): %v", at, persisted, err)
			}
			if got, err := blobs.Get(t.Context(), digest); err != nil || !bytes.Equal(got, blob) {
				t.Fatalf("after commit %d failed (persisted: %v): %v", at, persisted, err)
			}
		}
	}
}

func TestDamagedBlobsAreNamed(t *testing.T) {
	s := mem.New()
	blobs := store.NewBlobs(s)
	digest, err := blobs.Put(t.Context(), noise(600<<10))
	if err != nil {
		t.Fatal(err)
	}
	entries, _, err := s.List(t.Context(), "")
	if err != nil || len(entries) != 4 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	for _, e := range entries {
		for _, op := range []store.Op{store.Delete(e.Key), store.Put(e.Key, append([]byte("x"), e.Value...))} {
			commit(t, s, op)
			_, err := blobs.Get(t.Context(), digest)
			if err == nil || !strings.Contains(err.Error(), digest) || !errors.Is(err, store.ErrCorrupt) && !errors.Is(err, store.ErrNotFound) {
				t.Errorf("with %s changed: %v", e.Key, err)
			}
			commit(t, s, store.Put(e.Key, e.Value))
		}
	}
	if _, err := blobs.Get(t.Context(), digest); err != nil {
		t.Error(err)
	}
	for _, wrong := range []string{"", "../x", strings.ToUpper(digest), digest + "/", strings.Repeat("0", 64)} {
		if _, err := blobs.Get(t.Context(), wrong); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("digest %q: %v", wrong, err)
		}
	}
}

func commit(t *testing.T, s store.Store, ops ...store.Op) {
	t.Helper()
	if _, err := s.Commit(context.Background(), nil, ops); err != nil {
		t.Fatal(err)
	}
}

func TestDeletedBlobsLeaveNothingAndOthersStay(t *testing.T) {
	s := mem.New()
	blobs := store.NewBlobs(s)
	gone, err := blobs.Put(t.Context(), noise(700<<10))
	if err != nil {
		t.Fatal(err)
	}
	stays, err := blobs.Put(t.Context(), noise(300<<10))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing to delete
		if err := blobs.Delete(t.Context(), gone); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := blobs.List(t.Context()); err != nil || len(list) != 1 || list[0] != stays {
		t.Errorf("left: %v, %v", list, err)
	}
	if entries, _, err := s.List(t.Context(), ""); err != nil || len(entries) != 3 {
		t.Errorf("%d entries are left, %v", len(entries), err)
	}
	if _, err := blobs.Get(t.Context(), stays); err != nil {
		t.Error(err)
	}
}
