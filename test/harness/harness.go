// Package harness runs the real commands of this module in tests: built once per test run, started on addresses of their own,
// stopped with the test.
//
//	func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }
//
//	out := harness.Run(t, "proxy", "serve", "--nonsense")     // out.Code == 2, out.Stderr says why
//	d := harness.Start(t, "proxy", "serve", "--document", file, "--http", addr)
//	d.WaitHTTP("http://" + addr + "/.well-known/cellgate/ready", 200)
package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// BinEnv names the environment variable that holds the directory of the built commands. When it is set from outside
// (as make does), Main builds nothing and uses what is there.
const BinEnv = "CELLGATE_TEST_BIN"

// RunLimit ends a command that Run waits for.
const RunLimit = 2 * time.Minute

// Slack is how many times longer than promised anything may take here: promises are made for a machine that does nothing
// else, and tests also run on slow and busy ones. What is really needed is measured by drills and benchmarks.
const Slack = 4

// Main builds every command of the module once, runs the tests and gives their exit code.
func Main(m interface{ Run() int }) int {
	if os.Getenv(BinEnv) != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "cellgate-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "harness:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := Build(dir); err != nil {
		fmt.Fprintln(os.Stderr, "harness:", err)
		return 1
	}
	if err := os.Setenv(BinEnv, dir); err != nil {
		fmt.Fprintln(os.Stderr, "harness:", err)
		return 1
	}
	return m.Run()
}

// Build compiles every main package under cmd into dir; flags (such as "-race") go to go build.
func Build(dir string, flags ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	list := exec.Command("go", "list", "-f", `{{if eq .Name "main"}}{{.ImportPath}}{{end}}`, "./cmd/...")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		return fmt.Errorf("go list ./cmd/...: %w", err)
	}
	mains := strings.Fields(string(out))
	if len(mains) == 0 {
		return nil
	}
	args := append([]string{"build"}, flags...)
	args = append(append(args, "-o", dir+string(filepath.Separator)), mains...)
	build := exec.Command("go", args...)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build ./cmd/...: %w\n%s", err, out)
	}
	return nil
}

// Root is the directory of the module's go.mod.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.mod above the test")
		}
		dir = up
	}
}

// Bin is the path of a built command, such as "proxy".
func Bin(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(os.Getenv(BinEnv), name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("command %q was not built (does TestMain call harness.Main?): %v", name, err)
	}
	return path
}

// Result is what a command left behind. Code is -1 when a signal ended it.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// Run runs a command to its end and gives its output and exit code.
func Run(t testing.TB, name string, args ...string) Result {
	t.Helper()
	return RunWith(t, nil, name, args...)
}

// RunWith is Run with additional environment ("KEY=value").
func RunWith(t testing.TB, env []string, name string, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), RunLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, Bin(t, name), args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("%s %s did not end within %v\nstderr: %s", name, strings.Join(args, " "), RunLimit, stderr.String())
	}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", name, err)
	}
	return Result{Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
}

// FreeAddr gives a loopback address whose port is free for TCP and UDP now. The address itself is drawn from 127.100.0.0/14,
// so that test binaries that run at the same time don't meet.
func FreeAddr(t testing.TB) string {
	t.Helper()
	for range 50 {
		ip := net.IPv4(127, byte(100+rand.IntN(4)), byte(rand.IntN(256)), byte(1+rand.IntN(254)))
		tcp, err := net.Listen("tcp", net.JoinHostPort(ip.String(), "0"))
		if err != nil {
			continue
		}
		addr := tcp.Addr().String()
		udp, err := net.ListenPacket("udp", addr)
		tcp.Close()
		if err != nil {
			continue
		}
		udp.Close()
		return addr
	}
	t.Fatal("no free loopback address")
	return ""
}

// WriteFile writes a file below a directory of the test's own and gives its path.
func WriteFile(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Eventually fails the test when cond has not become true within the time, with twice the Slack: to wait costs nothing when it comes true.
func Eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	within *= 2 * Slack
	for end := time.Now().Add(within); !cond(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}
