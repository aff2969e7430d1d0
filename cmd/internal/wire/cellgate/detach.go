package cellgate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// notifyEnv tells a detached supervisor the descriptor on which its starter listens.
const notifyEnv = "CELLGATE_NOTIFY_FD"

// The first byte of a line from the detached supervisor.
const (
	markSay   = '+' // progress
	markReady = '='
	markFail  = '!'
)

// starter is the detached supervisor's end of the line to the command that started it.
type starter struct{ conn *os.File }

// startedDetached is the line to the starter, or nil when this process was not started detached.
func startedDetached() (*starter, error) {
	if os.Getenv(notifyEnv) == "" {
		return nil, nil
	}
	_ = os.Unsetenv(notifyEnv)
	unix.CloseOnExec(3)
	if err := unix.SetNonblock(3, true); err != nil { // so that reads obey the poller and Close
		return nil, fmt.Errorf("detached start: %w", err)
	}
	return &starter{conn: os.NewFile(3, "starter")}, nil
}

func (s *starter) send(mark byte, text string) {
	_, _ = fmt.Fprintf(s.conn, "%c%s\n", mark, strings.ReplaceAll(text, "\n", " / ")) // nobody may be left to hear it
}

// gone is closed when the starting command has ended.
func (s *starter) gone() <-chan struct{} {
	c := make(chan struct{})
	go func() {
		_, _ = s.conn.Read(make([]byte, 1)) // nothing is ever sent: it returns at the end
		close(c)
	}()
	return c
}

// keepOutput points stdout and stderr at the supervisor's log.
func keepOutput(h home) error {
	f, err := os.OpenFile(h.logFile("supervisor"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for fd := 1; fd <= 2; fd++ {
		if err := unix.Dup3(int(f.Fd()), fd, 0); err != nil {
			return err
		}
	}
	return nil
}

// keepToOurselves keeps inherited descriptors above the standard ones from the children.
func keepToOurselves() {
	_ = unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) // old kernels lack it; then what was inherited is passed on
}

// detach starts this command again in a session of its own and returns when its world is ready.
func detach(ctx context.Context, dir string, args []string, say func(string)) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "supervisor"), os.NewFile(uintptr(pair[1]), "starter")
	defer ours.Close()
	cmd := exec.Command(self, append(append([]string{}, args...), "--dir="+abs)...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), notifyEnv+"=3")
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	if err := follow(ours, say); err != nil {
		_ = cmd.Wait() // it has said why; its exit code adds nothing
		return err
	}
	return cmd.Process.Release()
}

// follow passes progress on until the supervisor is ready, failed or gone.
func follow(r io.Reader, say func(string)) error {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		mark, text := byte(0), lines.Text()
		if text != "" {
			mark, text = text[0], text[1:]
		}
		switch mark {
		case markReady:
			return nil
		case markFail:
			return errors.New(text)
		default:
			say(text)
		}
	}
	return errors.New("the supervisor ended before the world was ready")
}
