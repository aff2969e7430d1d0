package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/cellgate/cellgate/store"
)

func lease(t *testing.T, s store.Store, ttl time.Duration) store.Lease {
	t.Helper()
	l, err := s.Lease(within(t), ttl)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func lost(l store.Lease) bool {
	select {
	case <-l.Done():
		return true
	default:
		return false
	}
}

func leaseKept(t *testing.T, w World) {
	s := w.Open()
	l := lease(t, s, w.MinLease)
	commit(t, s, leased("a", l))
	time.Sleep(2*w.MinLease + w.MinLease/2)
	if absent(t, w.Open(), "a") || lost(l) {
		t.Error("a living holder has lost its lease")
	}
}

func leaseRelease(t *testing.T, w World) {
	s := w.Open()
	v := watch(t, w.Open(), "a")
	l, other := lease(t, s, time.Minute), lease(t, s, time.Minute)
	commit(t, s, leased("a1", l), leased("a2", l), leased("a3", other), store.Put("a4", nil))
	if err := l.Release(within(t)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Done", func() bool { return lost(l) })
	if !absent(t, s, "a1") || !absent(t, s, "a2") || absent(t, s, "a3") || absent(t, s, "a4") {
		t.Error("the wrong keys went with the lease")
	}
	if _, err := s.Commit(within(t), nil, []store.Op{leased("a5", l), store.Put("a6", nil)}); !errors.Is(err, store.ErrLeaseLost) {
		t.Errorf("a put under a released lease: %v", err)
	}
	if !absent(t, s, "a5") || !absent(t, s, "a6") {
		t.Error("a refused commit left something behind")
	}
	v.until(put(t, s, "a7", ""))
	if len(v.state) != 3 {
		t.Errorf("the receiver knows %v", v.state)
	}
	if err := l.Release(within(t)); err != nil {
		t.Errorf("releasing twice: %v", err)
	}
}

func leaseDeath(t *testing.T, w World) {
	holder, s := w.Open(), w.Open()
	v := watch(t, s, "a")
	l := lease(t, holder, w.MinLease)
	commit(t, holder, leased("a", l))
	if err := holder.Close(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	eventually(t, "the key of a dead holder", func() bool { return absent(t, s, "a") })
	if took := time.Since(began); took > w.MinLease+2*time.Second {
		t.Errorf("the key outlived its holder by %v, with a lease of %v", took, w.MinLease)
	}
	v.until(put(t, s, "a2", ""))
	if len(v.state) != 1 {
		t.Errorf("the receiver knows %v", v.state)
	}
}

func leaseDetach(t *testing.T, w World) {
	s := w.Open()
	l, other := lease(t, s, time.Minute), lease(t, s, time.Minute)
	commit(t, s, leased("plain", l), leased("moved", l), leased("gone", l))
	commit(t, s, store.Put("plain", []byte("2")), leased("moved", other), store.Delete("gone"))
	put(t, s, "gone", "back, without a lease")
	if err := l.Release(within(t)); err != nil {
		t.Fatal(err)
	}
	if absent(t, s, "plain") || absent(t, s, "moved") || absent(t, s, "gone") {
		t.Error("keys that had left the lease went with it")
	}
	if err := other.Release(within(t)); err != nil {
		t.Fatal(err)
	}
	if absent(t, s, "plain") || !absent(t, s, "moved") {
		t.Error("the wrong keys went with the second lease")
	}
}
