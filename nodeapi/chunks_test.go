package nodeapi

import (
	"bytes"
	"testing"
)

// Whatever a controller sends, what comes out has the digest that was asked for, once.
func FuzzAssembly(f *testing.F) {
	good := []byte("a blob")
	var frames []byte
	err := SendBlob(func(c *Chunk) error { frames = append(frames, c.Data...); return nil }, digest(good), good)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(frames, uint8(3), false)
	f.Add(frames, uint8(0), true)
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xff, 0xff}, uint8(2), false)
	f.Fuzz(func(t *testing.T, frame []byte, cut uint8, early bool) {
		a, err := newAssembly([]string{digest(good)})
		if err != nil {
			t.Fatal(err)
		}
		defer a.close()
		n := min(int(cut), len(frame))
		err = a.add(&Chunk{Digest: digest(good), Data: frame[:n], Last: early})
		if err == nil { // as drain does: the first error ends the controller's stream
			err = a.add(&Chunk{Digest: digest(good), Data: frame[n:], Last: true})
		}
		for d, blob := range a.blobs {
			if d != digest(good) || digest(blob) != d || !bytes.Equal(blob, good) {
				t.Fatalf("gave out %q as %s", blob, d)
			}
		}
		if done := a.complete() == nil; done != (len(a.blobs) == 1) || !done && err == nil {
			t.Fatalf("complete %v with %d blobs: %v", done, len(a.blobs), err)
		}
	})
}
