package auth

import (
	"hash/maphash"
	"unsafe"

	"github.com/cellgate/cellgate/proxy/prefetch"
)

// Ahead goes the way of Get in advance of it. Each step asks the memory for what the next one reads. The zero value goes nowhere.
type Ahead struct {
	hash uint64 // of the token
	set  *set   // nil = not begun
	held *entry
	step uint8
}

// Ahead begins the way of a token.
func (c *Cache) Ahead(token []byte) Ahead {
	a := Ahead{hash: maphash.Bytes(c.seed, token)}
	a.set = c.at(a.hash)
	prefetch.Line(unsafe.Pointer(a.set))
	return a
}

// Begun says whether it goes anywhere.
func (a *Ahead) Begun() bool { return a.set != nil }

// Step asks the memory for what comes next: the entries of the set, then what the token's own one refers to.
func (a *Ahead) Step() {
	switch a.step++; {
	case a.set == nil:
	case a.step == 1:
		for i := range a.set {
			if e := a.set[i].Load(); e != nil {
				prefetch.Lines(unsafe.Pointer(e), unsafe.Sizeof(*e))
			}
		}
	case a.step == 2:
		for i := range a.set {
			if e := a.set[i].Load(); e != nil && e.hash == a.hash {
				a.held = e
				prefetch.Lines(unsafe.Pointer(unsafe.StringData(e.token)), uintptr(len(e.token)))
				prefetch.Lines(unsafe.Pointer(e.result.Identity), unsafe.Sizeof(Identity{}))
			}
		}
	case a.step == 3 && a.held != nil:
		id := a.held.result.Identity
		prefetch.Line(unsafe.Pointer(unsafe.StringData(id.Subject)))
		prefetch.Line(unsafe.Pointer(unsafe.StringData(id.Consumer)))
	}
}

func (c *Cache) at(hash uint64) *set { return &c.sets[hash&c.mask] }
