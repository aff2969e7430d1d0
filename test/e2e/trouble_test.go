package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/loopback"
	"github.com/cellgate/cellgate/test/harness"
)

func refused(t *testing.T, code int, words string, args ...string) {
	t.Helper()
	res := harness.Run(t, "cellgate", args...)
	if res.Code != code || !strings.Contains(res.Stderr, words) || strings.Contains(res.Stderr, "panic") {
		t.Errorf("cellgate %v: exit %d, stderr %q; want %d and %q", args, res.Code, res.Stderr, code, words)
	}
}

func TestWrongFlagsAreNamed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	refused(t, 2, "--dir", "up", "--dir", "")
	refused(t, 2, "--dir", "status", "--dir=")
	refused(t, 2, "--regions", "up", "--dir", dir, "--regions", "0")
	refused(t, 2, "--cells", "up", "--dir", dir, "--cells", "10")
	refused(t, 2, "--proxies", "up", "--dir", dir, "--proxies", "-1")
	refused(t, 2, "--net", "up", "--dir", dir, "--net", "10.0.0.0/16")
	refused(t, 2, "--net", "up", "--dir", dir, "--net", "127.10.1.0/24")
	refused(t, 2, "--net", "up", "--dir", dir, "--net", "nonsense")
	refused(t, 2, "--ttl", "up", "--dir", dir, "--ttl", "10ms")
	refused(t, 2, "--cell-limit", "up", "--dir", dir, "--cell-limit", "0")
	refused(t, 2, "must be https", "up", "--dir", dir, "--otlp", "http://collector.example")
	refused(t, 2, "needs --otlp", "up", "--dir", dir, "--otlp-ca", "ca.pem")
	refused(t, 2, "unknown flag", "up", "--dir", dir, "--frobnicate")
	refused(t, 2, "unknown command", "frobnicate")
	refused(t, 2, "", "stop")
	refused(t, 2, "--fail", "backend", "orders-1", "--fail", "lots", "--dir", dir)
	refused(t, 2, "--ok", "backend", "orders-1", "--dir", dir)
	refused(t, 1, "no world", "status", "--dir", dir)
	refused(t, 1, "no world", "down", "--dir", dir)
	refused(t, 1, "no world", "kill", "proxy/*", "--dir", dir)
	if _, err := os.Stat(dir); err == nil {
		t.Error("a refused command made the directory")
	}
}

func TestSecondWorldIsRefused(t *testing.T) {
	w := sharedWorld(t)
	refused(t, 1, "already runs", "up", "--dir", w.Dir, "--net", loopback.For(t).String())
	other := filepath.Join(t.TempDir(), "other")
	refused(t, 1, w.Dir, "up", "--dir", other, "--net", shared.block.String())
	if _, err := os.Stat(other); err == nil {
		t.Error("the refused world left a directory")
	}
	refused(t, 1, "no process matches", "kill", "proxy/nowhere/*", "--dir", w.Dir)
	w.healthy(t, 30*time.Second)
}

func TestPortsInUseAreNamed(t *testing.T) {
	block := loopback.For(t)
	https, dns := block.Addr(2, 1).String()+":8443", block.Addr(255, 1).String()+":5300"
	ln, err := net.Listen("tcp", https)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	pc, err := net.ListenPacket("udp", dns)
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	dir := filepath.Join(t.TempDir(), "w")
	res := harness.Run(t, "cellgate", "up", "--dir", dir, "--net", block.String())
	for _, want := range []string{https, dns, "address in use", "proxy/us-east/a/1", "globalrouter/eu-west/1"} {
		if !strings.Contains(res.Stderr, want) {
			t.Errorf("stderr does not name %s: %s", want, res.Stderr)
		}
	}
	if res.Code != 1 {
		t.Errorf("exit %d", res.Code)
	}
	if left := orphans(t, dir); len(left) > 0 {
		t.Errorf("orphans: %v", left)
	}
}

func TestWrongFilesAreNamed(t *testing.T) {
	dir, block := t.TempDir(), loopback.For(t).String()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, 1, "file", "up", "--dir", file, "--net", block)
	w := filepath.Join(dir, "w")
	if err := os.MkdirAll(filepath.Join(w, "keys"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w, "keys", "internal-ca.both.pem"), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, 1, "internal-ca.both.pem is damaged", "up", "--dir", w, "--net", block)
	if err := os.WriteFile(filepath.Join(w, "size.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, 1, "size.json is damaged", "up", "--dir", w, "--net", block)
	bare := filepath.Join(dir, "cellgate")
	// By another process: what a test beside forks meanwhile would hold a file of ours open for writing, which can't be run then.
	if out, err := exec.Command("cp", harness.Bin(t, "cellgate"), bare).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.Command(bare, "up", "--dir", filepath.Join(dir, "x")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "`regionctl` is not beside") {
		t.Errorf("without its daemons: %v %s", err, out)
	}
}

// A start that is interrupted at any time leaves no process, and the directory starts again.
func TestInterruptedStartLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	dir, block := filepath.Join(t.TempDir(), "w"), loopback.For(t).String()
	flags := []string{"up", "--dir", dir, "--net", block}
	for _, after := range []time.Duration{30 * time.Millisecond, 300 * time.Millisecond, time.Second, 2500 * time.Millisecond} {
		for _, detached := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/detached=%v", after, detached), func(t *testing.T) {
				args := flags
				if detached {
					args = append(args, "--detach")
				}
				interrupted(t, after, dir, args)
			})
		}
	}
	w, err := up(harness.Bin(t, "cellgate"), dir, "--net", block)
	if err != nil {
		t.Fatal(err)
	}
	defer harness.Run(t, "cellgate", "down", "--dir", dir)

	// The state survives an orderly stop, and one by SIGKILL.
	version, tokens := w.status(t).Version, w.Tokens
	w.cellgate(t, "down")
	if left := orphans(t, dir); len(left) > 0 {
		t.Errorf("orphans after down: %v", left)
	}
	if w, err = up(w.bin, dir, "--net", block); err != nil {
		t.Fatal(err)
	}
	t.Logf("restart took %v", w.took)
	sigkill(t, w.Supervisor)
	harness.Eventually(t, 5*time.Second, "all children die with their supervisor", func() bool { return len(orphans(t, dir)) == 0 })
	harness.Eventually(t, 5*time.Second, "nobody holds the directory", func() bool {
		return strings.Contains(harness.Run(t, "cellgate", "status", "--dir", dir).Stderr, "no world is running")
	})
	if w, err = up(w.bin, dir, "--net", block); err != nil {
		t.Fatal(err)
	}
	if s := w.status(t); s.Version != version || w.Tokens != tokens {
		t.Errorf("version %d became %d, or the tokens changed", version, s.Version)
	}
	refused(t, 1, "holds a world of 3 regions", "up", "--dir", dirOf(t, w), "--regions", "2")
}

// dirOf stops the world and gives its directory.
func dirOf(t *testing.T, w *world) string {
	w.cellgate(t, "down")
	return w.Dir
}

func interrupted(t *testing.T, after time.Duration, dir string, args []string) {
	cmd := exec.Command(harness.Bin(t, "cellgate"), args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(after)
	_ = cmd.Process.Signal(syscall.SIGINT) // it may have been faster than we are
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		if err == nil {
			t.Errorf("an interrupted start ended well: %s", &out)
		}
	case <-time.After(20 * time.Second):
		_ = cmd.Process.Kill()
		t.Fatalf("still there after 20 s: %s", &out)
	}
	if strings.Contains(out.String(), "panic") {
		t.Error(out.String())
	}
	harness.Eventually(t, 2*time.Second, "no process is left", func() bool { return len(orphans(t, dir)) == 0 })
}

// A world whose directory was removed could not be ordered any more, so it ends.
func TestWorldEndsWithItsDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "w")
	d := harness.Start(t, "cellgate", "up", "--dir", dir, "--net", loopback.For(t).String(), "--regions", "1", "--cells", "1", "--proxies", "1")
	d.WaitOutput("ready after", 60*time.Second)
	if err := os.RemoveAll(dir); err != nil {
		t.Log(err) // what is written meanwhile may stay
	}
	if res := d.Wait(15 * time.Second); res.Code != 1 || !strings.Contains(res.Stderr, "directory was removed") {
		t.Errorf("exit %d: %s", res.Code, res.Stderr)
	}
	if left := orphans(t, dir); len(left) > 0 {
		t.Errorf("orphans: %v", left)
	}
}
