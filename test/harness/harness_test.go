package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tools points the harness at commands of the system, so that it is tested without any of ours.
func tools(t *testing.T, names ...string) {
	dir := t.TempDir()
	for _, n := range names {
		path, err := exec.LookPath(n)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, n)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(BinEnv, dir)
}

func TestRunGivesOutputAndExitCode(t *testing.T) {
	tools(t, "sh")
	got := RunWith(t, []string{"WORD=hello"}, "sh", "-c", "echo $WORD; echo oops >&2; exit 3")
	if got != (Result{Stdout: "hello\n", Stderr: "oops\n", Code: 3}) {
		t.Fatalf("got %+v", got)
	}
}

func TestDaemonIsStoppedAndReaped(t *testing.T) {
	tools(t, "sh")
	d := Start(t, "sh", "-c", `trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done`)
	d.WaitOutput("up", 5*time.Second)
	if d.Exited() {
		t.Fatal("ended by itself")
	}
	if got := d.Stop(5 * time.Second); got.Code != 0 || !strings.HasSuffix(got.Stdout, "bye\n") {
		t.Fatalf("got %+v", got)
	}
}

func TestFreeAddressesDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 20 {
		a := FreeAddr(t)
		if seen[a] || !strings.HasPrefix(a, "127.10") {
			t.Fatalf("%s twice or not loopback", a)
		}
		seen[a] = true
	}
}

func TestOutputIsBounded(t *testing.T) {
	o := &output{}
	for range 5 {
		if _, err := o.Write(make([]byte, keepOutput)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := o.Write([]byte("end")); err != nil {
		t.Fatal(err)
	}
	if s := o.String(); len(s) != keepOutput || !strings.HasSuffix(s, "end") {
		t.Fatalf("kept %d bytes", len(s))
	}
}
