package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/cellgate/cellgate/internal/pause"
)

type order uint8

const (
	orderStart order = iota + 1
	orderStop
	orderKill
	orderKillStop // kill and stay down
	orderReplace  // by a process that takes its place
)

type command struct {
	order order
	done  chan struct{} // closed when the order has been taken
	came  chan error    // of orderReplace, capacity 1: what came of it
}

// child is one supervised process.
//
//	stopped ──start──▶ starting ──ready──▶ running
//	   ▲                  │ dies              │ dies
//	   ├──stop────────────┼──── waiting ◀─────┘
//	   └──────────────────┘       └──after the pause──▶ starting
//
// The loop goroutine is the only one that starts processes and changes want; the fields under mu are what others may see.
type child struct {
	g        *Group
	spec     Spec
	commands chan command

	mu   sync.Mutex
	seen Status
	// changed is closed and replaced whenever seen changes.
	changed chan struct{}
}

func newChild(g *Group, s Spec) *child {
	return &child{
		g: g, spec: s, commands: make(chan command),
		seen: Status{Name: s.Name, State: Stopped, Since: time.Now()}, changed: make(chan struct{}),
	}
}

func (c *child) status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

func (c *child) set(change func(*Status)) {
	c.mu.Lock()
	was := c.seen.PID
	change(&c.seen)
	c.seen.Since = time.Now()
	close(c.changed)
	c.changed = make(chan struct{})
	pid := c.seen.PID
	c.mu.Unlock()
	if pid != was {
		c.g.note()
	}
}

// order hands the order to the loop and returns once it has been taken.
func (c *child) order(o order) error { return c.command(command{order: o, done: make(chan struct{})}) }

func (c *child) command(cmd command) error {
	select {
	case c.commands <- cmd:
	case <-c.g.quit:
		return errors.New("the supervisor is shutting down")
	}
	<-cmd.done
	return nil
}

// wait blocks until the status satisfies is.
func (c *child) wait(ctx context.Context, is func(Status) bool) error {
	for {
		c.mu.Lock()
		ok, changed := is(c.seen), c.changed
		c.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// replace waits until another process has taken the place of the one that runs.
func (c *child) replace(ctx context.Context) error {
	cmd := command{order: orderReplace, done: make(chan struct{}), came: make(chan error, 1)}
	if err := c.command(cmd); err != nil {
		return err
	}
	select {
	case err := <-cmd.came:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *child) waitReady(ctx context.Context) error {
	err := c.wait(ctx, func(s Status) bool { return s.State == Running || s.State == Stopped })
	if s := c.status(); err != nil && s.Last != "" {
		return fmt.Errorf("not ready: %w (last end: %s; see %s)", err, s.Last, c.spec.Log)
	} else if err != nil {
		return fmt.Errorf("not ready: %w (see %s)", err, c.spec.Log)
	} else if s.State == Stopped {
		return errors.New("stopped by another order")
	}
	return nil
}

func (c *child) stop(ctx context.Context) error {
	if err := c.order(orderStop); err != nil {
		return err
	}
	gone := func(s Status) bool { return s.PID == 0 }
	if c.wait(ctx, gone) == nil {
		return nil
	}
	if err := c.order(orderKillStop); err != nil {
		return err
	}
	return c.wait(context.Background(), gone)
}

// loop lives until the group quits; Shutdown has stopped the process by then.
func (c *child) loop() {
	want, young := false, 0
	for {
		if !want {
			select {
			case cmd := <-c.commands:
				want = cmd.order == orderStart
				if want {
					young = 0
					c.set(func(s *Status) { s.State = Starting })
				}
				cmd.refuse()
				close(cmd.done)
			case <-c.g.quit:
				return
			}
			continue
		}
		began := time.Now()
		ordered := false
		want, ordered = c.life()
		if !want {
			c.set(func(s *Status) { s.State = Stopped })
			continue
		}
		if young++; ordered || c.status().Last == killed || time.Since(began) >= c.g.opts.Young {
			young = 0
		}
		c.set(func(s *Status) { s.State, s.Restarts = Waiting, s.Restarts+1 })
		want = c.pause(pauseAfter(young, c.g.opts.Restart, c.g.opts.MaxRestart))
		if !want {
			c.set(func(s *Status) { s.State = Stopped })
		}
	}
}

// killed is how a process ended that somebody killed: its death says nothing about itself.
const killed = "signal: killed"

// pauseAfter doubles the pause from the third young death in a row on, up to most.
func pauseAfter(young int, base, most time.Duration) time.Duration {
	pause := base
	for i := 2; i < young && pause < most; i++ {
		pause *= 2
	}
	return min(pause, max(most, base))
}

// pause waits for the restart; it returns false when the process was ordered to stay down.
func (c *child) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return true
		case cmd := <-c.commands:
			cmd.refuse()
			close(cmd.done)
			switch cmd.order {
			case orderStart:
				return true
			case orderStop, orderKillStop:
				return false
			}
		case <-c.g.quit:
			return false
		}
	}
}

// refuse tells who wants a process replaced that doesn't run.
func (c command) refuse() {
	if c.order == orderReplace {
		c.came <- errors.New("it doesn't run")
	}
}

// successor is a process that is to take the place of the one that runs; it may end first.
type successor struct {
	cmd    *exec.Cmd
	exited chan error
	came   chan error
}

// replaceTime is how long a process may take to leave its place to another before it is killed: time to get ready, and to drain.
const replaceTime = 90 * time.Second

// succeed starts the successor of a process, and tells at once why it can't.
func (c *child) succeed(last successor, came chan error) successor {
	err := errors.New("it is being replaced already")
	if last.cmd == nil {
		if c.spec.Replace == nil {
			err = errors.New("a process of this kind can't be replaced while it runs")
		} else if last.cmd, err = c.launch(c.spec.Replace); err == nil {
			last.came, last.exited = came, make(chan error, 1)
			go func(cmd *exec.Cmd, exited chan error) { exited <- cmd.Wait() }(last.cmd, last.exited)
			return last
		}
	}
	came <- err
	return last
}

// kill ends a successor that nobody wants any more.
func (s successor) kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
	}
}

// life runs the process once, from fork to exit, or one after the other in the same place. ordered says that its death was the supervisor's own doing.
func (c *child) life() (want, ordered bool) {
	cmd, err := c.launch(c.spec.Args)
	if err != nil {
		c.g.opts.Log.Error("start failed", "process", c.spec.Name, "err", err)
		c.set(func(s *Status) { s.Last = err.Error() })
		return true, false
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	c.set(func(s *Status) { s.State, s.PID = Starting, cmd.Process.Pid })
	watching, endWatch := context.WithCancel(context.Background())
	defer endWatch()
	ready, hung := make(chan struct{}), make(chan error, 1)
	go c.watch(watching, ready, hung)

	want = true
	grace := time.NewTimer(time.Hour)
	grace.Stop()
	var next successor
	for {
		select {
		case err := <-next.exited:
			next.came <- fmt.Errorf("the new process has ended (%s), the old one goes on; see %s", how(err), c.spec.Log)
			next = successor{}
			if want {
				grace.Stop()
			}
		case err := <-exited:
			if next.cmd != nil {
				c.g.opts.Log.Info("replaced", "process", c.spec.Name, "pid", cmd.Process.Pid, "by", next.cmd.Process.Pid, "how", how(err))
				next.came <- nil
				cmd, exited, next = next.cmd, next.exited, successor{}
				if want {
					grace.Stop()
				}
				c.set(func(s *Status) { s.PID = cmd.Process.Pid })
				continue
			}
			c.ended(cmd, err, want)
			return want, ordered
		case <-ready:
			ready = nil
			if want {
				c.set(func(s *Status) { s.State = Running })
			}
		case why := <-hung:
			if want {
				c.g.opts.Log.Warn("killed: it no longer answers", "process", c.spec.Name, "pid", cmd.Process.Pid, "err", why)
				ordered = true
				_ = cmd.Process.Kill()
			}
		case <-grace.C:
			_ = cmd.Process.Kill()
		case o := <-c.commands:
			switch o.order {
			case orderStart:
				want = true
			case orderReplace:
				if next = c.succeed(next, o.came); next.came == o.came {
					grace.Reset(replaceTime)
				}
			case orderStop:
				want = false
				next.kill()
				endWatch()
				_ = cmd.Process.Signal(syscall.SIGTERM)
				grace.Reset(c.g.opts.Grace)
			case orderKill, orderKillStop:
				want = want && o.order == orderKill
				ordered = true
				next.kill()
				_ = cmd.Process.Kill()
			}
			close(o.done)
		}
	}
}

func (c *child) ended(cmd *exec.Cmd, err error, want bool) {
	c.set(func(s *Status) {
		if s.PID, s.Last = 0, how(err); !want { // in one step: whoever waits for its end sees it stopped
			s.State = Stopped
		}
	})
	if want {
		c.g.opts.Log.Warn("ended", "process", c.spec.Name, "pid", cmd.Process.Pid, "how", how(err))
	}
}

// how a process ended, by what its Wait said.
func how(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

func (c *child) launch(args []string) (*exec.Cmd, error) {
	out, err := os.OpenFile(c.spec.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(c.spec.Path, args...)
	cmd.Env = append([]string{}, c.spec.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = childAttr()
	return cmd, c.g.fork.start(cmd)
}

// watch closes ready at the first good readiness probe, then probes for life until ctx ends.
func (c *child) watch(ctx context.Context, ready chan<- struct{}, hung chan<- error) {
	for c.spec.Ready != nil && c.try(ctx, c.spec.Ready) != nil {
		if !pause.For(ctx, 40*time.Millisecond) {
			return
		}
	}
	close(ready)
	if c.spec.Alive == nil {
		return
	}
	for v := newVigil(c.g.opts.ProbeEvery, time.Now()); pause.For(ctx, time.Until(v.due)); {
		began := time.Now()
		err := c.try(ctx, c.spec.Alive)
		if v.probed(began, time.Now(), err) {
			hung <- err
			return
		}
	}
}

func (c *child) try(ctx context.Context, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, probeLimit(c.g.opts.ProbeEvery))
	defer cancel()
	return probe(ctx)
}
