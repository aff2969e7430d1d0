package waiter

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestAWaitEndsWithASignalOrItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, begun := New(), time.Now()
		if w.Wait(begun) || w.Wait(begun.Add(time.Second)) || time.Since(begun) != time.Second {
			t.Fatalf("after %v", time.Since(begun))
		}
		for range 3 { // they are one, and kept
			w.Signal()
		}
		if !w.Wait(time.Now().Add(time.Second)) || w.Wait(time.Now().Add(time.Second)) {
			t.Fatal("three signals are not one")
		}
		go func() { time.Sleep(time.Second); w.Signal() }()
		if !w.Wait(time.Now().Add(time.Minute)) || time.Since(begun) != 3*time.Second {
			t.Fatalf("after %v", time.Since(begun))
		}
		w.Signal()
		w.Clear()
		w.Clear()
		if w.Wait(time.Now().Add(time.Second)) {
			t.Fatal("a signal that was cleared came")
		}
	})
}

func TestAWaitAllocatesNothing(t *testing.T) {
	w := New()
	w.Wait(time.Now().Add(time.Microsecond))
	if n := testing.AllocsPerRun(100, func() { w.Signal(); w.Wait(time.Now().Add(time.Hour)) }); n > 0 {
		t.Fatalf("%v allocations", n)
	}
}
