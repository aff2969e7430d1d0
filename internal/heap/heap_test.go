package heap

import (
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnEighthIsMuch(t *testing.T) {
	for _, c := range []struct {
		live, now uint64
		want      bool
	}{
		{100 << 20, 112 << 20, false}, {100 << 20, 113 << 20, true}, {1 << 20, 4 << 20, false}, {1 << 20, 6 << 20, true}, {9, 0, false},
	} {
		if due(c.live, c.now) != c.want {
			t.Errorf("%d live, %d now: due is not %v", c.live, c.now, c.want)
		}
	}
}

var garbage []byte

func TestGarbageOfSwapsIsCollected(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the runtime's own collections would leave nothing to do
	synctest.Test(t, func(t *testing.T) {
		var k Keeper
		collections := func(waste int) uint32 {
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range 3 {
				garbage = make([]byte, waste/3)
				k.Swapped()
			}
			time.Sleep(settle + time.Millisecond)
			synctest.Wait()
			runtime.ReadMemStats(&after)
			return after.NumForcedGC - before.NumForcedGC
		}
		for i, c := range []struct {
			waste int
			want  uint32
		}{{0, 1}, {0, 0}, {3 * least, 1}} {
			if got := collections(c.waste); got != c.want {
				t.Errorf("swap %d, with %d bytes of garbage: %d collections, want %d", i, c.waste, got, c.want)
			}
		}
	})
}
