package regionctl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// waiting is --wait with its bound.
type waiting struct {
	wait    bool
	timeout time.Duration
}

func (w *waiting) flags(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVar(&w.wait, "wait", false, "return when "+what)
	cmd.Flags().DurationVar(&w.timeout, "timeout", time.Hour, "give up waiting after this time")
}

// until asks every half second until done says so. Controllers that don't answer are asked again.
func (w *waiting) until(ctx context.Context, what string, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	for {
		ok, err := done(ctx)
		var final *ExitError
		if ok || errors.As(err, &final) {
			return err
		}
		select {
		case <-ctx.Done():
			if err != nil {
				return fmt.Errorf("waited %s until %s; last error: %w", w.timeout, what, err)
			}
			return fmt.Errorf("waited %s until %s: it is not so yet", w.timeout, what)
		case <-time.After(500 * time.Millisecond):
		}
	}
}
