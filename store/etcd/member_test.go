package etcd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/store/etcd"
	"github.com/cellgate/cellgate/store/etcd/server"
	"github.com/cellgate/cellgate/trust"
)

func (c *cluster) client(addrs ...netip.AddrPort) *etcd.Store {
	c.t.Helper()
	var endpoints []string
	for _, a := range addrs {
		endpoints = append(endpoints, "https://"+a.String())
	}
	s, err := etcd.Open(etcd.Config{Endpoints: endpoints, TLS: c.clientTLS(trust.RoleController)})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { s.Close() })
	return s
}

// tries repeats what may fail while members come and go.
func tries(t *testing.T, what string, do func(context.Context) error) {
	t.Helper()
	var err error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err = do(ctx)
		cancel()
		if err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

func put(t *testing.T, s store.Store, key, value string) {
	t.Helper()
	tries(t, "put "+key, func(ctx context.Context) error {
		_, err := s.Commit(ctx, nil, []store.Op{store.Put(key, []byte(value))})
		return err
	})
}

func TestMemberThatRestartsHasItsDataAndWatchesGoOn(t *testing.T) {
	t.Parallel()
	c := world(t)
	m := c.member("one", c.addr, nil)
	m.run()
	m.wait()
	s := c.client(c.addr)
	put(t, s, "a/1", "before")
	events := s.Watch(t.Context(), "a/")
	next(t, events)
	m.end()
	if _, err := s.Get(shortly(t), "a/1"); err == nil || errors.Is(err, store.ErrNotFound) {
		t.Fatalf("a member that is down answers: %v", err)
	}
	m.run()
	m.wait()
	put(t, s, "a/2", "after")
	for seen := false; !seen; {
		for _, e := range next(t, events).Entries {
			seen = seen || e.Key == "a/2"
		}
	}
	if e, err := s.Get(t.Context(), "a/1"); err != nil || string(e.Value) != "before" {
		t.Fatalf("after the restart a/1 is %q, %v", e.Value, err)
	}
}

func shortly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func TestThreeMembersGoOnWithoutOne(t *testing.T) {
	t.Parallel()
	c := world(t)
	names := []string{"one", "two", "three"}
	all := map[string]netip.AddrPort{}
	var members []*member
	var addrs []netip.AddrPort
	for _, name := range names {
		addrs = append(addrs, c.freePort())
		m := c.member(name, addrs[len(addrs)-1], func(s *server.Config) { s.Heartbeat = 50 * time.Millisecond })
		all[name] = m.config.Peer
		members = append(members, m)
	}
	for _, m := range members {
		m.config.Cluster = all
		m.run()
	}
	for _, m := range members {
		m.wait()
	}
	s := c.client(addrs...)
	put(t, s, "a/0", "all")
	events := s.Watch(t.Context(), "a/")
	next(t, events)
	for i, m := range members {
		m.end()
		key := fmt.Sprint("a/", i+1)
		put(t, s, key, "two of three")
		for seen := false; !seen; {
			for _, e := range next(t, events).Entries {
				seen = seen || e.Key == key
			}
		}
		m.run()
		m.wait()
	}
}

// A full store refuses writes with a name for it, goes on answering and watching, and its leaders keep their leases. The
// history that filled it is given up, so that it takes writes again by itself.
func TestFullStoreRefusesWritesServesOnAndHealsByItself(t *testing.T) {
	t.Parallel()
	c := world(t)
	m := c.member("one", c.addr, func(s *server.Config) { s.Quota, s.Keep = 8<<20, 4*time.Second })
	m.run()
	m.wait()
	s := c.client(c.addr)
	l, err := s.Lease(t.Context(), 3*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	leader := store.Put("leader", []byte("me"))
	leader.Lease = l
	if _, err := s.Commit(t.Context(), nil, []store.Op{leader}); err != nil {
		t.Fatal(err)
	}
	events := s.Watch(t.Context(), "fill")
	next(t, events)
	full := false
	for i := 0; i < 2000 && !full; i++ {
		_, err := s.Commit(t.Context(), nil, []store.Op{store.Put("fill", make([]byte, 256<<10))})
		if full = errors.Is(err, store.ErrFull); err != nil && !full {
			t.Fatal(err)
		}
	}
	if !full {
		t.Fatal("50 MiB went into 8")
	}
	if u, err := s.Usage(t.Context()); err != nil || len(u) != 1 || !u[0].Full || u[0].Quota != 8<<20 || u[0].Size < 7<<20 {
		t.Errorf("usage of a full store: %+v, %v", u, err)
	}
	if _, err := s.Get(t.Context(), "leader"); err != nil {
		t.Errorf("a full store forgot its leader: %v", err)
	}
	if ev := next(t, s.Watch(t.Context(), "leader")); !ev.Reset || len(ev.Entries) != 1 {
		t.Errorf("a full store's watch begins with %+v", ev)
	}
	tries(t, "a write after it was full", func(ctx context.Context) error {
		_, err := s.Commit(ctx, nil, []store.Op{store.Put("fill", []byte("room"))})
		return err
	})
	for seen := false; !seen; {
		for _, e := range next(t, events).Entries {
			seen = seen || string(e.Value) == "room"
		}
	}
	if e, err := s.Get(t.Context(), "leader"); err != nil || string(e.Value) != "me" {
		t.Errorf("the leader was lost on the way: %v", err)
	}
	if u, err := s.Usage(t.Context()); err != nil || u[0].Full || u[0].Size > 6<<20 {
		t.Errorf("usage of a healed store: %+v, %v", u, err)
	}
}

// A store that is full of what is in use cannot heal before something is deleted, which a full store allows.
func TestStoreFullOfLiveDataHealsOnceSomeIsDeleted(t *testing.T) {
	t.Parallel()
	c := world(t)
	m := c.member("one", c.addr, func(s *server.Config) { s.Quota, s.Keep = 8<<20, 300*time.Millisecond })
	m.run()
	m.wait()
	s := c.client(c.addr)
	var keys []store.Op
	refused := 0 // in a row; history may fill it at first
	for i := 0; i < 400 && refused < 10; i++ {
		key := fmt.Sprintf("fill/%03d", len(keys))
		_, err := s.Commit(t.Context(), nil, []store.Op{store.Put(key, make([]byte, 256<<10))})
		switch {
		case errors.Is(err, store.ErrFull):
			refused++
			time.Sleep(100 * time.Millisecond) // the keeper looks three times meanwhile
		case err != nil:
			t.Fatal(err)
		default:
			keys, refused = append(keys, store.Delete(key)), 0
		}
	}
	if _, err := s.Commit(t.Context(), nil, []store.Op{store.Put("more", make([]byte, 256<<10))}); !errors.Is(err, store.ErrFull) {
		t.Fatalf("%d of 8 MiB are in use, and there is room: %v", len(keys)/4, err)
	}
	if _, err := s.Commit(t.Context(), nil, keys[:len(keys)/2]); err != nil {
		t.Fatalf("a full store refuses deletions: %v", err)
	}
	tries(t, "a write after deletions", func(ctx context.Context) error {
		_, err := s.Commit(ctx, nil, []store.Op{store.Put("more", []byte("room"))})
		return err
	})
	if e, err := s.Get(t.Context(), keys[len(keys)-1].Key); err != nil || len(e.Value) != 256<<10 {
		t.Errorf("what was not deleted: %d bytes, %v", len(e.Value), err)
	}
}

// A store that was restored from an older backup starts every watch anew, rather than waiting for revisions that it had before.
func TestWatchOfAStoreThatWentBackBeginsAgain(t *testing.T) {
	t.Parallel()
	c := world(t)
	m := c.member("one", c.addr, nil)
	m.run()
	m.wait()
	s := c.client(c.addr)
	put(t, s, "a/old", "1")
	m.end()
	backup := filepath.Join(c.dir, "backup")
	if err := os.CopyFS(backup, os.DirFS(m.config.Dir)); err != nil {
		t.Fatal(err)
	}
	m.run()
	m.wait()
	for i := range 10 {
		put(t, s, fmt.Sprint("a/lost", i), "2")
	}
	events := s.Watch(t.Context(), "a/")
	if ev := next(t, events); len(ev.Entries) != 11 {
		t.Fatalf("%d entries", len(ev.Entries))
	}
	m.end()
	if err := os.RemoveAll(m.config.Dir); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(m.config.Dir, os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
	m.run()
	m.wait()
	put(t, s, "a/new", "3")
	for {
		ev := next(t, events)
		if ev.Reset {
			if len(ev.Entries) != 2 && len(ev.Entries) != 1 {
				t.Fatalf("%+v", ev)
			}
			return
		}
	}
}

func TestMembersThatCannotServeSayWhy(t *testing.T) {
	t.Parallel()
	c := start(t)
	taken := c.member("two", c.addr, nil)
	err := server.Run(t.Context(), taken.config)
	if err == nil || !strings.Contains(err.Error(), c.addr.String()) {
		t.Errorf("on a taken address: %v", err)
	}
	missing := c.member("three", c.freePort(), func(s *server.Config) { s.Key = "/does/not/exist" })
	if err := server.Run(t.Context(), missing.config); err == nil {
		t.Error("without a key")
	}
}

// The disk of a member is lost: what etcd says of it helps nobody.
func TestAMemberWhoseDirectoryIsLostOrDamagedSaysWhatToDo(t *testing.T) {
	t.Parallel()
	c := world(t)
	pair, all := []*member{c.member("one", c.freePort(), nil), c.member("two", c.freePort(), nil)}, map[string]netip.AddrPort{}
	for _, m := range pair {
		all[m.config.Name] = m.config.Peer
	}
	for _, m := range pair {
		m.config.Cluster = all
		m.run()
	}
	for _, m := range pair {
		m.wait()
	}
	gone := pair[1]
	gone.end()
	says := func(what, want string) {
		t.Helper()
		if err := server.Run(t.Context(), gone.config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	aside := gone.config.Dir + ".aside"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Rename(gone.config.Dir, aside))
	says("lost", "is empty, but the other members know this one")
	must(os.RemoveAll(gone.config.Dir))
	must(os.Rename(aside, gone.config.Dir))
	wals, _ := filepath.Glob(filepath.Join(gone.config.Dir, "member", "wal", "*.wal"))
	for _, f := range wals {
		must(os.WriteFile(f, bytes.Repeat([]byte("x"), 4096), 0o600))
	}
	says("damaged", "is damaged: put a backup of all members back")
}
