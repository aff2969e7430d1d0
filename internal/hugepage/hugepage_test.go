package hugepage

import "testing"

func TestContentsStayWhatTheyAre(t *testing.T) {
	for _, n := range []int{0, 1, size, 3*size + 5} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i % 251)
		}
		Collapse(b)
		for i := range b {
			if b[i] != byte(i%251) {
				t.Fatalf("%d bytes: number %d has changed", n, i)
			}
		}
	}
}
