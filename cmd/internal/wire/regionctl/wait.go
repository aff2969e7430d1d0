package regionctl

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"syscall"
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

// look says how things stand, in one line, and whether what is awaited is there.
type look func(context.Context) (stand string, done bool, err error)

const (
	lookEvery = 500 * time.Millisecond
	tellEvery = 2 * time.Second
)

// until looks until it is done, and tells on standard error how things stand when that has changed. Controllers that don't
// answer are asked again. Whoever gives up waiting hears that the order stands.
func (w *waiting) until(cmd *cobra.Command, what string, see look) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	late, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	told, next := "", time.Now()
	for {
		stand, done, err := see(late)
		var final *ExitError
		if done || errors.As(err, &final) {
			return err
		}
		if now := time.Now(); stand != told && stand != "" && !now.Before(next) {
			fmt.Fprintln(cmd.ErrOrStderr(), printable(stand))
			told, next = stand, now.Add(tellEvery)
		}
		select {
		case <-late.Done():
		case <-time.After(lookEvery):
			continue
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("no longer waiting until %s; what was ordered stands", what)
		case err != nil:
			return fmt.Errorf("waited %s until %s; last error: %w", w.timeout, what, err)
		}
		return fmt.Errorf("waited %s until %s: it is not so yet", w.timeout, what)
	}
}
