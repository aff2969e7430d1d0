// Package prefetch asks for memory ahead of its use, so that somebody else's work can be done while it comes.
package prefetch

import "unsafe"

// Line asks for the cache line at p. It is a hint: nothing but speed depends on it, and any address will do.
func Line(p unsafe.Pointer) { line(p) }

// Lines asks for all that n bytes at p touch, which costs less than a call for each line of 64 bytes; n isn't 0.
func Lines(p unsafe.Pointer, n uintptr) { lines(p, n) }
