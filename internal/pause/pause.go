// Package pause waits, as long as anybody still wants what comes after it.
package pause

import (
	"context"
	"math/rand/v2"
	"time"
)

// For waits d and says whether ctx still lives.
func For(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return ctx.Err() == nil
	}
}

// About is d give or take the part of it (0 … 1), by chance, so that what began together doesn't go on together.
func About(d time.Duration, part float64) time.Duration {
	return time.Duration(float64(d) * (1 - part + 2*part*rand.Float64()))
}
