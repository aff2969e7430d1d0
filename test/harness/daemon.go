package harness

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// keepOutput bounds what is kept of each stream of a daemon: its first half and then its newest.
const keepOutput = 1 << 20

// Daemon is a command that runs beside the test. It dies with the test process at the latest.
type Daemon struct {
	t              testing.TB
	name           string
	cmd            *exec.Cmd
	stdout, stderr *output
	done           chan struct{} // closed when the process was reaped
}

// Start runs a command in the background; the test's end kills it. When the test fails, its output is shown.
func Start(t testing.TB, name string, args ...string) *Daemon {
	t.Helper()
	return StartWith(t, nil, name, args...)
}

// StartWith is Start with additional environment ("KEY=value").
func StartWith(t testing.TB, env []string, name string, args ...string) *Daemon {
	t.Helper()
	d := &Daemon{t: t, name: name, stdout: &output{}, stderr: &output{}, done: make(chan struct{})}
	d.cmd = exec.Command(Bin(t, name), args...)
	d.cmd.Env = append(os.Environ(), env...)
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	d.cmd.Stdout, d.cmd.Stderr = d.stdout, d.stderr
	if err := d.cmd.Start(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	go func() {
		_ = d.cmd.Wait() // its outcome is read from ProcessState
		close(d.done)
	}()
	t.Cleanup(d.end)
	return d
}

func (d *Daemon) end() {
	_ = d.cmd.Process.Kill() // already gone is fine
	<-d.done
	if d.t.Failed() {
		d.t.Logf("%s stdout:\n%s\n%s stderr:\n%s", d.name, d.stdout, d.name, d.stderr)
	}
}

// PID is the process id.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Stdout is what the daemon has printed so far.
func (d *Daemon) Stdout() string { return d.stdout.String() }

// Stderr is what the daemon has logged so far.
func (d *Daemon) Stderr() string { return d.stderr.String() }

// Signal sends a signal.
func (d *Daemon) Signal(s os.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil {
		d.t.Fatalf("%s: %v", d.name, err)
	}
}

// Exited says whether the process has ended.
func (d *Daemon) Exited() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// Wait waits for the process to end by itself, with Slack.
func (d *Daemon) Wait(within time.Duration) Result {
	d.t.Helper()
	within *= Slack
	select {
	case <-d.done:
	case <-time.After(within):
		d.t.Fatalf("%s still runs after %v", d.name, within)
	}
	return Result{Stdout: d.Stdout(), Stderr: d.Stderr(), Code: d.cmd.ProcessState.ExitCode()}
}

// Stop sends SIGTERM and waits.
func (d *Daemon) Stop(within time.Duration) Result {
	d.t.Helper()
	d.Signal(syscall.SIGTERM)
	return d.Wait(within)
}

// WaitOutput waits until stdout or stderr contains the text.
func (d *Daemon) WaitOutput(text string, within time.Duration) {
	d.t.Helper()
	Eventually(d.t, within, fmt.Sprintf("%s prints %q", d.name, text), func() bool {
		return strings.Contains(d.Stdout(), text) || strings.Contains(d.Stderr(), text)
	})
}

// WaitHTTP waits until a GET of the URL has the status, 10 s at most, with Slack; certificates are not verified here.
// A daemon that ends meanwhile fails the test at once.
func (d *Daemon) WaitHTTP(url string, status int) {
	d.t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	client := &http.Client{Timeout: Slack * time.Second, Transport: transport}
	last := "no answer"
	for end := time.Now().Add(Slack * 10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if d.Exited() {
			d.t.Fatalf("%s ended before %s answered", d.name, url)
		}
		res, err := client.Get(url)
		if err != nil {
			last = err.Error()
			continue
		}
		res.Body.Close()
		if res.StatusCode == status {
			return
		}
		last = res.Status
	}
	d.t.Fatalf("%s: %s did not answer %d within %v: %s", d.name, url, status, Slack*10*time.Second, last)
}

// output keeps the first and the newest part of a stream.
type output struct {
	mu         sync.Mutex
	head, tail []byte
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	rest := p
	if room := keepOutput/2 - len(o.head); room > 0 {
		n := min(room, len(rest))
		o.head = append(o.head, rest[:n]...)
		rest = rest[n:]
	}
	o.tail = append(o.tail, rest...)
	if over := len(o.tail) - keepOutput/2; over > 0 {
		o.tail = append(o.tail[:0], o.tail[over:]...)
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.head) + string(o.tail)
}
