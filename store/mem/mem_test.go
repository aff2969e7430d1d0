package mem

import (
	"testing"
	"time"

	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/store/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.World {
		s := New()
		return storetest.World{
			MinLease: 20 * time.Millisecond,
			Open: func() store.Store {
				h := s.Join()
				t.Cleanup(func() { h.Close() })
				return h
			},
		}
	})
}
