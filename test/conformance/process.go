package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// tool is the path of a suite's command: one of ours, or one of the system's.
func (r *run) tool(name string) (string, error) {
	for _, dir := range []string{r.tools, r.bin} {
		if path := filepath.Join(dir, name); isFile(path) {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is missing: `make conformance-tools` builds the suites; gtlsclient is in Debian's ngtcp2-client", name)
	}
	return path, nil
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// child is a process that serves until it is stopped. It dies with this one at the latest.
type child struct {
	cmd  *exec.Cmd
	out  *bufio.Reader
	logs bytes.Buffer // what it says on stderr; read it after stop
}

func start(ctx context.Context, path string, stdin io.Reader, args ...string) (*child, error) {
	c := &child{cmd: exec.CommandContext(ctx, path, args...)}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.cmd.Stdin, c.cmd.Stderr = stdin, &c.logs
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	return c, nil
}

// stop ends the process at once and gives what it said on stderr.
func (c *child) stop() string {
	_ = c.cmd.Process.Kill() // gone already is fine
	_, _ = io.Copy(io.Discard, c.out)
	_ = c.cmd.Wait() // it was killed: that is its outcome
	return c.logs.String()
}

// startLimit is how long a process may take until it serves.
const startLimit = 30 * time.Second

// served waits until the process says where it serves, in its first line.
func (c *child) served() (string, error) {
	t := time.AfterFunc(startLimit, func() { _ = c.cmd.Process.Kill() })
	defer t.Stop()
	line, err := c.out.ReadString('\n')
	rest, ok := strings.CutPrefix(strings.TrimSpace(line), "serving on ")
	addr, _, _ := strings.Cut(rest, " ")
	if err != nil || !ok || addr == "" {
		return "", fmt.Errorf("%s doesn't serve; it says %q and %s", filepath.Base(c.cmd.Path), line, c.stop())
	}
	return addr, nil
}

// suiteLimit ends a suite that hangs.
const suiteLimit = 15 * time.Minute

// follow runs a suite's command and hands what it prints on, line by line; lines that the follower finds worth it are shown.
func follow(ctx context.Context, f interface{ line(string) bool }, path string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, suiteLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // so that it stops what it started
	cmd.WaitDelay = 10 * time.Second
	pr, pw := io.Pipe()
	cmd.Stdout, cmd.Stderr = pw, pw
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := bufio.NewScanner(pr); s.Scan(); {
			if f.line(s.Text()) {
				fmt.Fprintln(os.Stderr, s.Text())
			}
		}
		_, _ = io.Copy(io.Discard, pr) // after a line too long to be read
	}()
	err := cmd.Run()
	pw.Close()
	<-done
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}
