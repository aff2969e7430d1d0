package pause

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestAPauseEndsInTimeOrWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !For(t.Context(), time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("ended after %v", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if For(ctx, time.Minute) || time.Since(began) != time.Second {
			t.Errorf("ended after %v", time.Since(began))
		}
		if For(ctx, 0) {
			t.Error("goes on although nobody wants it")
		}
	})
}

func TestAboutSpreadsBothWays(t *testing.T) {
	less, more := 0, 0
	for range 1000 {
		d := About(time.Second, 0.2)
		if d < 800*time.Millisecond || d > 1200*time.Millisecond {
			t.Fatal(d)
		}
		if d < time.Second {
			less++
		} else {
			more++
		}
	}
	if less < 300 || more < 300 || About(time.Second, 0) != time.Second {
		t.Errorf("%d below, %d above", less, more)
	}
}
