package prefetch

import (
	"testing"
	"unsafe"
)

func TestAnyAddressWillDo(t *testing.T) {
	b := []byte("what is here stays as it is")
	Line(nil)
	Line(unsafe.Pointer(unsafe.SliceData(b)))
	Line(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), len(b)))
	Lines(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
	Lines(nil, 1000)
	if string(b) != "what is here stays as it is" {
		t.Fatal(string(b))
	}
}
