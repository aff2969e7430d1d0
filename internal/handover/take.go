package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/cellgate/cellgate/internal/sockdir"
)

// Taken is a takeover under way, as the new process sees it.
type Taken struct {
	// Sockets are what the old process holds, the taker's to close. The directory's lock is not among them.
	Sockets []Handed
	// Lock is the directory's.
	Lock *os.File
	line line
	gone chan struct{}
}

// ErrNobody says that no process runs with the directory.
var ErrNobody = errors.New("no process runs with this directory")

// dial connects to the owner of the directory.
func dial(ctx context.Context, dir string) (l line, err error) {
	err = sockdir.In(dir, socketFile, func(path string) error {
		c, err := new(net.Dialer).DialContext(ctx, "unixpacket", path)
		if err == nil {
			l = line{c.(*net.UnixConn)}
		}
		return err
	})
	if nobody(err) {
		return l, fmt.Errorf("%s: %w", dir, ErrNobody)
	}
	if err != nil { // without the path by which it was reached, which is no name
		var no syscall.Errno
		if errors.As(err, &no) {
			err = no
		}
		return l, fmt.Errorf("%s: %w", dir, err)
	}
	if _, err = l.same(); err != nil {
		l.Close()
	}
	return l, err
}

// Take asks the process that runs with the directory for its sockets. With ErrNobody, there is none.
func Take(ctx context.Context, dir string) (*Taken, error) {
	l, err := dial(ctx, dir)
	if err != nil {
		return nil, err
	}
	t := &Taken{line: l, gone: make(chan struct{})}
	if err := t.take(); err != nil {
		for _, h := range t.Sockets {
			h.Close()
		}
		l.Close()
		return nil, err
	}
	return t, nil
}

func (t *Taken) take() error {
	if err := t.line.send(message{Step: stepTake}); err != nil && !died(err) { // what it said before it hung up is there
		return err
	}
	for {
		m, fds, err := t.line.receive(time.Now().Add(answerTime))
		switch {
		case err != nil:
			return fmt.Errorf("the running process does not hand its sockets over: %w", err)
		case m.Step == stepRefused:
			return fmt.Errorf("%w: %s", ErrRefused, m.Why)
		case m.Step == stepReady:
			return nil
		case m.Step == stepSocket && m.Name == lockFile && len(fds) == 1:
			t.Lock = os.NewFile(uintptr(fds[0]), lockFile)
		case m.Step == stepSocket:
			t.Sockets = append(t.Sockets, Handed{m.Name, fds})
		default:
			Handed{FDs: fds}.Close()
			return fmt.Errorf("handover: %q instead of a socket", m.Step)
		}
	}
}

// Ready says that this process could serve, and waits until the old one has yielded. The note is what the old one told then,
// nil if it has died: then everything is this process's too.
func (t *Taken) Ready(ctx context.Context) (note json.RawMessage, err error) {
	return t.ask(ctx, stepReady, stepYours, yieldTime+answerTime)
}

// Serving says that this process serves, and waits until the old one knows: then it leaves, and Gone tells of its end. On an
// error the old one serves, and this one must not.
func (t *Taken) Serving() error {
	if _, err := t.ask(context.Background(), stepServing, stepDone, answerTime); err != nil {
		return err
	}
	go func() {
		defer close(t.gone)
		defer t.line.Close()
		_, _, _ = t.line.receive(time.Time{}) // nothing follows but its end
	}()
	return nil
}

// ask takes a step and waits for the answer. That the old process has died is no error; what it said before still counts.
func (t *Taken) ask(ctx context.Context, step, want string, within time.Duration) (note json.RawMessage, err error) {
	stop := context.AfterFunc(ctx, func() { _ = t.line.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var m message
	if err = t.line.send(message{Step: step}); err == nil || died(err) {
		m, _, err = t.line.receive(time.Now().Add(within))
	}
	switch {
	case errors.Is(err, io.EOF) || died(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("the running process does not answer: %w", err)
	case m.Step == stepRefused, m.Step == stepFailed:
		return nil, fmt.Errorf("%w: %s", ErrRefused, m.Why)
	case m.Step != want:
		return nil, fmt.Errorf("handover: %q instead of %q", m.Step, want)
	}
	return m.Note, nil
}

// Gone is closed when the old process has ended, after Serving.
func (t *Taken) Gone() <-chan struct{} { return t.gone }

// Fail says why this process can't take over.
func (t *Taken) Fail(why error) {
	_ = t.line.send(message{Step: stepFailed, Why: why.Error()})
	t.line.Close()
}

// Order has the process that runs with the directory start its successor, which must be ready within some time, and waits
// for the outcome: the process ids of both.
func Order(ctx context.Context, dir string, within time.Duration) (old, successor int, err error) {
	l, err := dial(ctx, dir)
	if errors.Is(err, ErrNobody) && held(dir) {
		return 0, 0, fmt.Errorf("%s: a process runs with this directory, but takes no orders now: it starts, or its log says why", dir)
	}
	if err != nil {
		return 0, 0, err
	}
	defer l.Close()
	old, _ = l.same()
	stop := context.AfterFunc(ctx, func() { _ = l.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var m message
	if err = l.send(message{Step: stepUpgrade, Within: within}); err == nil || died(err) {
		m, _, err = l.receive(time.Now().Add(within + yieldTime + 2*answerTime))
	}
	switch {
	case errors.Is(err, io.EOF) || died(err):
		return 0, 0, fmt.Errorf("process %d has hung up or ended without an answer; the process that it had started, if it had, goes on alone", old)
	case err != nil:
		return 0, 0, fmt.Errorf("the running process gives no answer: %w", err)
	case m.Step == stepRefused:
		return 0, 0, fmt.Errorf("%w: %s", ErrRefused, m.Why)
	case m.Step == stepFailed:
		return 0, 0, errors.New(m.Why)
	case m.Step != stepDone:
		return 0, 0, fmt.Errorf("handover: %q instead of %q", m.Step, stepDone)
	}
	return old, m.PID, nil
}
