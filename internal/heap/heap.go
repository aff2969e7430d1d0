// Package heap keeps small what snapshots leave behind. A process that answers without allocating collects its garbage hardly
// ever; left to itself, it would hold what reading its first snapshot took until the runtime's two minutes are over, and let
// later ones double it.
package heap

import (
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"
)

const (
	// settle is how long after a swap what it needed is let go of.
	settle = 500 * time.Millisecond
	// A heap that has grown by an eighth and by least since the last collection is collected.
	least = 4 << 20
)

// Names of runtime/metrics.
const (
	live    = "/gc/heap/live:bytes"                // what the last collection has left
	objects = "/memory/classes/heap/objects:bytes" // with the garbage since
)

// Keeper is safe for concurrent use; its zero value is ready.
type Keeper struct {
	busy    atomic.Bool
	started bool // of the one who is busy
}

// Swapped is told of each snapshot that came into service and returns at once. After the first one, and where later ones have
// left much garbage, it is collected beside everything else, and what is free goes back to the system.
func (k *Keeper) Swapped() {
	if k.busy.CompareAndSwap(false, true) {
		time.AfterFunc(settle, k.tidy)
	}
}

func (k *Keeper) tidy() {
	defer k.busy.Store(false)
	s := []metrics.Sample{{Name: live}, {Name: objects}}
	metrics.Read(s)
	if !k.started || due(s[0].Value.Uint64(), s[1].Value.Uint64()) {
		k.started = true
		debug.FreeOSMemory()
	}
}

// due says whether a heap with so many live bytes after its last collection, and so many now, is collected.
func due(live, now uint64) bool { return now > live+max(live/8, least) }
