// Package hugepage asks the kernel to back large, long-lived memory with large pages, so that a look-up that misses every cache
// doesn't miss the address translation as well.
package hugepage

// size is that of a large page, on all architectures that matter here with pages of 4 KiB.
const size = 2 << 20

// Collapse asks for large pages wherever b fills one. It is a favour that may be refused: nothing but speed depends on it.
func Collapse(b []byte) { collapse(b) }
