package hugepage

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

func collapse(b []byte) {
	start := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) % size)
	for at := start; at+size <= len(b); at += size {
		_ = unix.Madvise(b[at:at+size], unix.MADV_COLLAPSE) // one page may be refused and the next granted
	}
}
