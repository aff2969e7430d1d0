package store_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/store/mem"
	"github.com/cellgate/cellgate/store/storetest"
)

// stepped is a store of which one call at a time may go on, when the schedule says so.
type stepped struct {
	store.Store
	turn chan struct{} // the actor waits for a token before each call
	idle chan struct{} // it says that it waits, or has ended
}

func (s *stepped) wait() { s.idle <- struct{}{}; <-s.turn }

func (s *stepped) Get(ctx context.Context, key string) (store.Entry, error) {
	s.wait()
	return s.Store.Get(ctx, key)
}

func (s *stepped) List(ctx context.Context, prefix string) ([]store.Entry, store.Revision, error) {
	s.wait()
	return s.Store.List(ctx, prefix)
}

func (s *stepped) Keys(ctx context.Context, prefix string) ([]store.Entry, store.Revision, error) {
	s.wait()
	return s.Store.Keys(ctx, prefix)
}

func (s *stepped) Commit(ctx context.Context, conds []store.Cond, ops []store.Op) (store.Revision, error) {
	s.wait()
	return s.Store.Commit(ctx, conds, ops)
}

const markKey = "mark"

// mark reads the mark: the condition of what follows, and whether a sweep is under way.
func mark(ctx context.Context, s store.Store) (store.Cond, bool) {
	e, err := s.Get(ctx, markKey)
	if err != nil {
		return store.Absent(markKey), false
	}
	return store.Unchanged(e), string(e.Value) == "on"
}

// publishBlob puts a blob and refers to it by the protocol of Blobs.
func publishBlob(ctx context.Context, s store.Store, ref string, blob []byte) error {
	blobs := store.NewBlobs(s)
	cond, sweeping := mark(ctx, s)
	put := blobs.Put
	if sweeping {
		put = blobs.Write
	}
	digest, err := put(ctx, blob, cond)
	if err == nil {
		_, err = s.Commit(ctx, []store.Cond{cond}, []store.Op{store.Put("ref/"+ref, []byte(digest))})
	}
	return err
}

func sweepOnce(ctx context.Context, s store.Store) error {
	cond, _ := mark(ctx, s)
	rev, err := s.Commit(ctx, []store.Cond{cond}, []store.Op{store.Put(markKey, []byte("on"))})
	if err != nil {
		return err
	}
	own := store.Cond{Key: markKey, Modified: rev}
	refs, _, err := s.List(ctx, "ref/")
	if err != nil {
		return err
	}
	needed := map[string]bool{}
	for _, e := range refs {
		needed[string(e.Value)] = true
	}
	if _, err := store.NewBlobs(s).Sweep(ctx, rev, needed, own); err != nil {
		return err
	}
	_, err = s.Commit(ctx, []store.Cond{own}, []store.Op{store.Put(markKey, nil)})
	return err
}

// However publishers and sweepers interleave: what is referred to is whole, and a sweep that nobody disturbs leaves nothing else.
func TestSweepsSpareWhatIsPublishedMeanwhile(t *testing.T) {
	contents := [][]byte{noise(10), noise(600 << 10), noise(1100 << 10)} // in one commit, in two with a head alone, in three
	rapid.Check(t, func(t *rapid.T) {
		data := mem.New()
		ctx, end := context.WithCancel(context.Background())
		defer end()
		for _, c := range contents[:rapid.IntRange(0, len(contents)).Draw(t, "forgotten")] {
			if _, err := store.NewBlobs(data).Put(ctx, c); err != nil {
				t.Fatal(err)
			}
		}
		var actors []*stepped
		start := func(do func(s store.Store)) {
			a := &stepped{Store: data.Join(), turn: make(chan struct{}), idle: make(chan struct{})}
			actors = append(actors, a)
			go func() { do(a); close(a.idle) }()
			<-a.idle
		}
		for p := range 2 {
			plan := rapid.SliceOfN(rapid.IntRange(0, len(contents)), 1, 4).Draw(t, fmt.Sprint("publisher", p))
			start(func(s store.Store) {
				for _, which := range plan {
					if which == len(contents) { // what was referred to is forgotten
						_, _ = s.Commit(ctx, nil, []store.Op{store.Delete(fmt.Sprint("ref/", p))})
						continue
					}
					_ = publishBlob(ctx, s, fmt.Sprint(p), contents[which]) // a conflict leaves an orphan
				}
			})
		}
		for range 2 {
			start(func(s store.Store) {
				for range 2 {
					_ = sweepOnce(ctx, s)
				}
			})
		}
		for live := len(actors); live > 0; {
			i := rapid.IntRange(0, len(actors)-1).Draw(t, "next")
			actors[i].turn <- struct{}{}
			if _, ok := <-actors[i].idle; !ok {
				actors = append(actors[:i], actors[i+1:]...)
				live--
			}
			complete(t, data, contents)
		}
		if err := sweepOnce(ctx, data); err != nil {
			t.Fatal(err)
		}
		referred := complete(t, data, contents)
		heads, _ := store.NewBlobs(data).List(ctx)
		chunks, _, _ := data.Keys(ctx, "chunks/")
		if len(heads) != len(referred) || len(chunks) != sum(referred) {
			t.Fatalf("%d heads and %d chunks are left of %v", len(heads), len(chunks), referred)
		}
	})
}

// complete looks for all parts of what is referred to; it gives the number of chunks of each.
func complete(t *rapid.T, s store.Store, contents [][]byte) map[string]int {
	refs, _, _ := s.List(context.Background(), "ref/")
	out := map[string]int{}
	for _, e := range refs {
		digest := string(e.Value)
		_, err := s.Get(context.Background(), "blobs/"+digest)
		chunks, _, _ := s.Keys(context.Background(), "chunks/"+digest+"/")
		for _, c := range contents {
			if digest == fmt.Sprintf("%x", sha256.Sum256(c)) {
				out[digest] = (len(c) + 256<<10 - 1) / (256 << 10)
			}
		}
		if err != nil || len(chunks) != out[digest] {
			t.Fatalf("%s: %d of %d chunks, head: %v", e.Key, len(chunks), out[digest], err)
		}
	}
	return out
}

func sum(m map[string]int) (n int) {
	for _, v := range m {
		n += v
	}
	return n
}

func TestSweepTakesTheChunksOfAPutThatNeverEnded(t *testing.T) {
	data := mem.New()
	s := &storetest.Faulty{Store: data}
	blobs := store.NewBlobs(s)
	kept, err := blobs.Put(t.Context(), noise(2<<20))
	if err != nil {
		t.Fatal(err)
	}
	commit(t, data, store.Put("ref/kept", []byte(kept)))
	s.Fail(3, false)
	if _, err := blobs.Put(t.Context(), noise(3<<20)); !errors.Is(err, storetest.ErrFault) {
		t.Fatal(err)
	}
	if err := sweepOnce(t.Context(), data); err != nil {
		t.Fatal(err)
	}
	if left, _, _ := data.Keys(t.Context(), "chunks/"); len(left) != 8 {
		t.Errorf("%d chunks are left", len(left))
	}
	if got, err := blobs.Get(t.Context(), kept); err != nil || !bytes.Equal(got, noise(2<<20)) {
		t.Error(err)
	}
}
