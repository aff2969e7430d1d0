package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/cellgate/cellgate/internal/sockdir"
)

// Holder is what a process that may be taken over from can do. The calls come one at a time, in this order:
//
//	Sockets ─▶ Yield ─▶ Leave
//	              └──▶ Resume
type Holder interface {
	// Sockets gives copies of what is to be handed over; they are closed when they are sent.
	Sockets() ([]Handed, error)
	// Yield ends what only one process may do, such as writing to the disk, and gives what the successor must know of it.
	Yield() (note json.RawMessage, err error)
	// Resume takes it up again: the successor has failed.
	Resume()
	// Leave ends the process in its own time: the successor, a process with this id, serves.
	Leave(successor int)
}

// Options are what a Giver needs.
type Options struct {
	Holder Holder
	// Successor makes the command that starts a successor, or says why this process can't start one.
	Successor func() (*exec.Cmd, error)
	// Predecessor is closed when the process that this one took over from has ended; nil = there was none.
	Predecessor <-chan struct{}
	Log         *slog.Logger
	// Within is how long a successor that nobody ordered here may take to be ready; 0 = a minute.
	Within time.Duration
}

// yieldTime is how long a process may take to yield.
const yieldTime = 10 * time.Second

// Giver lets successors take over from this process, one at a time.
type Giver struct {
	opt  Options
	sock *net.UnixListener
	lock *os.File

	mu    sync.Mutex
	under *turn // under way
	left  bool
	heir  line // open until this process has ended
}

// turn is one takeover.
type turn struct {
	pid     int  // of the successor
	taken   bool // it has begun to
	until   time.Time
	outcome chan error // capacity 1
}

// Listen takes orders in the directory, whose lock the process holds.
func Listen(dir string, lock *os.File, opt Options) (*Giver, error) {
	if opt.Within == 0 {
		opt.Within = time.Minute
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	g := &Giver{opt: opt, lock: lock}
	err := sockdir.In(dir, socketFile, func(path string) error {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // its listener has left, or died
			return err
		}
		old := syscall.Umask(0o177)
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
		syscall.Umask(old)
		if err == nil {
			l.SetUnlinkOnClose(false) // by then it may be a successor's
			g.sock = l
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("handover: %w", err)
	}
	return g, nil
}

// Run answers until ctx ends. A takeover that has not come to "serving" by then fails.
func (g *Giver) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { g.sock.Close() })
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := g.sock.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			g.opt.Log.Warn("upgrade socket", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second): // of no descriptors, for one
			}
			continue
		}
		all.Go(func() { g.answer(ctx, line{c}) })
	}
}

// answer hears one caller out.
func (g *Giver) answer(ctx context.Context, l line) {
	stop := context.AfterFunc(ctx, func() { _ = l.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	pid, stranger := l.same()
	m, fds, err := l.receive(time.Now().Add(answerTime))
	Handed{FDs: fds}.Close()
	switch {
	case errors.Is(err, io.EOF):
		l.Close()
		return
	case stranger != nil:
		g.opt.Log.Warn("upgrade socket: a stranger", "error", stranger)
		err = refuse("%v", stranger)
	case err != nil:
		g.opt.Log.Warn("upgrade socket: not understood", "error", err)
		err = refuse("not understood: %v", err)
	case m.Step == stepUpgrade:
		err = g.upgrade(ctx, l, m.Within)
	case m.Step == stepTake:
		if err = g.take(ctx, l, pid); err == nil {
			return // the line stays open
		}
	default:
		err = fmt.Errorf("%w: this process knows no step %q", ErrRefused, m.Step)
	}
	if errors.Is(err, ErrRefused) {
		_ = l.send(message{Step: stepRefused, Why: err.Error()[len(ErrRefused.Error())+2:]})
	} else if err != nil {
		_ = l.send(message{Step: stepFailed, Why: err.Error()})
	}
	l.hangUp()
}

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrRefused, fmt.Sprintf(format, args...))
}

// begin starts a turn if none is under way. start runs within the lock, so that who is started can't be here before it.
func (g *Giver) begin(within time.Duration, start func(*turn) error) (*turn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.left:
		return nil, refuse("this process is leaving, another one serves")
	case g.under != nil:
		return nil, refuse("another upgrade is under way, by process %d", g.under.pid)
	}
	select {
	case <-g.opt.Predecessor:
	default:
		if g.opt.Predecessor != nil {
			return nil, refuse("the process before this one still ends what it has under way; try again in some seconds")
		}
	}
	t := &turn{until: time.Now().Add(within), outcome: make(chan error, 1)}
	if err := start(t); err != nil {
		return nil, err
	}
	g.under = t
	return t, nil
}

func (g *Giver) end(t *turn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.under == t {
		g.under = nil
	}
}

// upgrade starts the successor and tells what came of it.
func (g *Giver) upgrade(ctx context.Context, l line, within time.Duration) error {
	cmd, err := g.opt.Successor()
	if err != nil {
		return refuse("%v", err)
	}
	if within <= 0 {
		within = g.opt.Within
	}
	t, err := g.begin(within, func(t *turn) error {
		if err := cmd.Start(); err != nil {
			return err
		}
		t.pid = cmd.Process.Pid
		return nil
	})
	if err != nil {
		return err
	}
	defer g.end(t)
	g.opt.Log.Info("upgrade: the successor is started", "pid", t.pid, "path", cmd.Path)
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	if err := g.await(ctx, t, exited, within); err != nil {
		_ = cmd.Process.Kill() // it may have ended
		g.opt.Log.Error("upgrade failed, this process goes on", "error", err)
		return err
	}
	return l.send(message{Step: stepDone, PID: t.pid})
}

// await gives the outcome of a started successor. One that has come for the sockets is told in time, and tells more.
func (g *Giver) await(ctx context.Context, t *turn, exited <-chan error, within time.Duration) error {
	late := time.NewTimer(within)
	defer late.Stop()
	var why error
	select {
	case err := <-t.outcome:
		return err
	case end := <-exited:
		how := "exit status 0"
		if end != nil {
			how = end.Error()
		}
		why = fmt.Errorf("the new process has ended before it could take over: %s; see what it printed", how)
	case <-late.C:
		why = fmt.Errorf("the new process has not asked for the sockets within %v", within)
	case <-ctx.Done():
		why = refuse("this process has been told to end")
	}
	if g.drop(t) {
		return why
	}
	return <-t.outcome
}

// drop says that the successor of a turn has not come for the sockets, and will get none.
func (g *Giver) drop(t *turn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !t.taken {
		g.under = nil
	}
	return !t.taken
}

// take goes through one takeover.
func (g *Giver) take(ctx context.Context, l line, pid int) (err error) {
	g.mu.Lock()
	t := g.under
	mine := t != nil && t.pid == pid && !t.taken
	if mine {
		t.taken = true
	}
	g.mu.Unlock()
	if !mine {
		if t, err = g.begin(g.opt.Within, func(t *turn) error { t.pid, t.taken = pid, true; return nil }); err != nil {
			return err
		}
		defer g.end(t)
	}
	err = g.session(ctx, l, t)
	t.outcome <- err
	if err != nil {
		g.opt.Log.Warn("takeover failed, this process goes on", "by", pid, "error", err)
	}
	return err
}

func (g *Giver) session(ctx context.Context, l line, t *turn) error {
	if err := g.send(l); err != nil {
		return err
	}
	if err := g.expect(ctx, l, stepReady, t.until); err != nil {
		return err
	}
	note, err := g.opt.Holder.Yield()
	if err == nil {
		err = l.send(message{Step: stepYours, Note: note})
	}
	if err == nil {
		err = g.expect(ctx, l, stepServing, time.Now().Add(answerTime))
	}
	if err != nil {
		g.opt.Holder.Resume()
		return err
	}
	g.mu.Lock()
	g.left, g.heir = true, l
	g.mu.Unlock()
	_ = l.send(message{Step: stepDone}) // what it has begun is its own now, also if it has died since
	g.opt.Holder.Leave(t.pid)
	return nil
}

// send hands everything over.
func (g *Giver) send(l line) error {
	all, err := g.opt.Holder.Sockets()
	if err != nil {
		return refuse("the sockets can't be handed over: %v", err)
	}
	defer func() {
		for _, h := range all {
			h.Close()
		}
	}()
	if err := l.send(message{Step: stepSocket, Name: lockFile}, int(g.lock.Fd())); err != nil {
		return err
	}
	for _, h := range all {
		if err := l.send(message{Step: stepSocket, Name: h.Name}, h.FDs...); err != nil {
			return err
		}
	}
	return l.send(message{Step: stepReady})
}

// expect waits for one step of the successor.
func (g *Giver) expect(ctx context.Context, l line, step string, by time.Time) error {
	m, fds, err := l.receive(by)
	Handed{FDs: fds}.Close()
	switch {
	case ctx.Err() != nil:
		return refuse("this process has been told to end")
	case errors.Is(err, io.EOF) || died(err):
		return errors.New("the new process has ended before it could take over")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuse("the new process was not ready in time")
	case err != nil:
		return err
	case m.Step == stepFailed:
		return fmt.Errorf("the new process gave up: %s", m.Why)
	case m.Step != step:
		return refuse("%q instead of %q", m.Step, step)
	}
	return nil
}

// hangUp closes once the other side has, or soon: a close while something of it lies unread would take the last word away.
func (l line) hangUp() {
	for by := time.Now().Add(answerTime); ; {
		_, fds, err := l.receive(by)
		Handed{FDs: fds}.Close()
		if err != nil {
			l.Close()
			return
		}
	}
}

// died says whether an error of a connection means that the other process is no more.
func died(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}
