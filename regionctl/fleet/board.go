package fleet

import (
	"bytes"
	"sync"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/nodeapi"
)

// Kind is what a message to a node speaks of.
type Kind uint8

// The kinds of messages that run down.
const (
	KindTarget Kind = iota
	KindPlan
	KindTopology
	KindOverrides
	KindVerdicts
	KindDenylist
	KindDenyBeat // says that the denylist is the newest still
	KindKeys
	kinds
)

// Mail is the newest signed message of one kind. Epoch and Number order targets and plans, Number lists of keys; they are 0
// for the others.
type Mail struct {
	Kind     Kind
	Epoch    uint64
	Number   uint64
	Envelope []byte
	// Until is when the certificate of a target's or plan's signer ends: one that was signed anew replaces what says the same.
	Until time.Time
	// Adds, of overrides: it adds to what is known, and replaces nothing.
	Adds bool

	stamp uint64 // order of posting on this board
}

func (m Mail) down() *nodeapi.Down {
	s := &nodeapi.Signed{Envelope: m.Envelope, Adds: m.Adds}
	switch m.Kind {
	case KindTarget:
		return &nodeapi.Down{Message: &nodeapi.Down_Target{Target: s}}
	case KindPlan:
		return &nodeapi.Down{Message: &nodeapi.Down_Plan{Plan: s}}
	case KindTopology:
		return &nodeapi.Down{Message: &nodeapi.Down_Topology{Topology: s}}
	case KindVerdicts:
		return &nodeapi.Down{Message: &nodeapi.Down_Verdicts{Verdicts: s}}
	case KindKeys:
		return &nodeapi.Down{Message: &nodeapi.Down_Keys{Keys: s}}
	case KindDenylist, KindDenyBeat:
		return &nodeapi.Down{Message: &nodeapi.Down_Denylist{Denylist: s}}
	default:
		return &nodeapi.Down{Message: &nodeapi.Down_Overrides{Overrides: s}}
	}
}

// Board shows the newest message of each kind, targets and denylists by region. There is no queue: who is slow reads only the newest.
// It is safe for concurrent use.
type Board struct {
	mu      sync.Mutex
	stamp   uint64
	world   [kinds]Mail // what is for every region
	regions map[cells.RegionID]*[kinds]Mail
	waiting map[chan struct{}]bool
	leaving map[cells.CellID]bool
}

// NewBoard is an empty board.
func NewBoard() *Board {
	return &Board{regions: map[cells.RegionID]*[kinds]Mail{}, waiting: map[chan struct{}]bool{}}
}

// Post shows a message that is for everyone it concerns in every region. What is shown already, or is older, changes nothing.
func (b *Board) Post(m Mail) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if fresher(m, b.world[m.Kind]) {
		b.world[m.Kind] = b.stamped(m)
	}
}

// PostTo shows a message that is for one region.
func (b *Board) PostTo(region cells.RegionID, m Mail) {
	b.mu.Lock()
	defer b.mu.Unlock()
	shown := b.regions[region]
	if shown == nil {
		shown = &[kinds]Mail{}
		b.regions[region] = shown
	}
	if fresher(m, shown[m.Kind]) {
		shown[m.Kind] = b.stamped(m)
	}
}

func fresher(m, old Mail) bool {
	if old.Envelope == nil {
		return true
	}
	if m.Epoch != old.Epoch || m.Number != old.Number {
		return m.Epoch > old.Epoch || m.Epoch == old.Epoch && m.Number > old.Number
	}
	if m.Kind < KindTopology {
		return m.Until.After(old.Until)
	}
	return !bytes.Equal(m.Envelope, old.Envelope)
}

func (b *Board) stamped(m Mail) Mail {
	b.stamp++
	m.stamp = b.stamp
	for wake := range b.waiting {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	return m
}

// read gives what is shown of a kind to a process of the region.
func (b *Board) read(kind Kind, region cells.RegionID) (Mail, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.world[kind]
	if own := b.regions[region]; own != nil && own[kind].Envelope != nil {
		m = own[kind]
	}
	return m, m.Envelope != nil
}

// Leave says which cells are being evacuated: their proxies need the plan too, to hand on what still comes to them.
func (b *Board) Leave(leaving map[cells.CellID]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leaving = leaving
}

// needsPlan says whether a proxy of the cell needs the plan.
func (b *Board) needsPlan(cell cells.CellID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.leaving[cell]
}

// watch gives a channel that has a token after every change, and the function that ends it.
func (b *Board) watch() (wake chan struct{}, end func()) {
	wake = make(chan struct{}, 1)
	b.mu.Lock()
	b.waiting[wake] = true
	b.mu.Unlock()
	return wake, func() {
		b.mu.Lock()
		delete(b.waiting, wake)
		b.mu.Unlock()
	}
}
