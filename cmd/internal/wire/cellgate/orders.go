package cellgate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/cellgate/cellgate/cmd/internal/supervisor"
	"github.com/cellgate/cellgate/internal/supervise"
)

// patience bounds how long `cellgate start` waits for processes to be ready.
const patience = 30 * time.Second

// handle carries out one request of a command.
func (w *world) handle(ctx context.Context, req request) response {
	res := response{Ready: w.ready.Load(), PID: os.Getpid()}
	var err error
	switch req.Op {
	case "status":
		if res.Processes = w.group.Status(); req.Memory {
			res.Memory = w.memory()
		}
	case "down":
		w.stop(errDown)
		<-w.stopped
	case "start", "stop", "kill", supervisor.Upgrade, "backend":
		if res.Matched, err = match(req.Patterns, w.group.Names()); err == nil {
			err = errors.Join(w.order(ctx, req, res.Matched), w.save()) // whoever reads world.json after the command finds what it did
		}
	default:
		err = fmt.Errorf("this supervisor knows no order %q", req.Op)
	}
	if err != nil {
		res.Error = err.Error()
	}
	return res
}

func (w *world) order(ctx context.Context, req request, names []string) error {
	switch req.Op {
	case "start":
		ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not ready within %v", patience))
		defer cancel()
		return w.group.Start(ctx, names...)
	case "stop":
		return w.group.Stop(ctx, names...)
	case "kill":
		return w.kill(names)
	case supervisor.Upgrade:
		return w.group.Replace(ctx, names...)
	default:
		return w.misbehave(ctx, names, req.Faults)
	}
}

// kill signals what runs; naming only processes that are down is an error.
func (w *world) kill(names []string) error {
	up := map[string]bool{}
	for _, s := range w.group.Status() {
		up[s.Name] = s.PID > 0
	}
	var alive []string
	for _, n := range names {
		if up[n] {
			alive = append(alive, n)
		}
	}
	if len(alive) == 0 {
		return errors.New("none of them runs: " + strings.Join(names, " "))
	}
	return w.group.Kill(alive...)
}

func (w *world) misbehave(ctx context.Context, names []string, f *faults) error {
	if f == nil {
		return errors.New("no fault is named")
	}
	if err := f.Validate(); err != nil {
		return err
	}
	var errs []error
	for _, b := range w.backends {
		for _, n := range names {
			if n == "backend/"+b.id {
				if err := orderFaults(ctx, w.backendControl(b), *f); err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", n, err))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// line is a process's status as `cellgate status` prints it.
func line(s supervise.Status, now time.Time) []string {
	pid := "-"
	if s.PID > 0 {
		pid = fmt.Sprint(s.PID)
	}
	return []string{s.Name, string(s.State), pid, fmt.Sprint(s.Restarts), now.Sub(s.Since).Round(time.Second).String(), s.Last}
}
