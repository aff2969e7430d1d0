package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The test binary is the process under supervision; this variable says which part it plays.
const part = "SUPERVISE_TEST_PART"

func TestMain(m *testing.M) {
	switch os.Getenv(part) {
	case "":
		os.Exit(m.Run())
	case "serve": // until it is told to end
		fmt.Println("serving")
		time.Sleep(time.Hour)
	case "gentle": // ends in its own time
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("listening")
		<-c
		fmt.Println("ending gently")
		os.Exit(0)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ignoring")
		time.Sleep(time.Hour)
	case "crash":
		os.Exit(3)
	case "parent": // a supervisor with one child, killed by the test
		g := New(Options{})
		if err := g.Add(self("child", "serve", os.Getenv("SUPERVISE_TEST_LOG"))); err != nil {
			panic(err)
		}
		if err := g.Start(context.Background(), "child"); err != nil {
			panic(err)
		}
		fmt.Println(g.Status()[0].PID)
		time.Sleep(time.Hour)
	}
}

func self(name, as, log string) Spec {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return Spec{Name: name, Path: exe, Env: []string{part + "=" + as}, Log: log}
}

func group(t *testing.T, o Options) *Group {
	t.Helper()
	g := New(o)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		g.Shutdown(ctx)
	})
	return g
}

func add(t *testing.T, g *Group, s Spec) {
	t.Helper()
	if s.Log == "" {
		s.Log = filepath.Join(t.TempDir(), "log")
	}
	if err := g.Add(s); err != nil {
		t.Fatal(err)
	}
}

func within(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within %v: %s", d, what)
}

func alive(pid int) bool { return pid > 0 && syscall.Kill(pid, 0) == nil }

func TestKilledProcessIsStartedAgain(t *testing.T) {
	g := group(t, Options{Restart: 50 * time.Millisecond})
	add(t, g, self("a", "serve", ""))
	if err := g.Start(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	first := g.Status()[0].PID
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	within(t, 5*time.Second, "another process runs", func() bool {
		s := g.Status()[0]
		return s.State == Running && s.PID != first && s.Restarts == 1 && s.Last == "signal: killed"
	})
}

// However often somebody kills it, a process comes back after the same pause: only its own crashes slow it down.
func TestKillsDoNotSlowTheRestart(t *testing.T) {
	g := group(t, Options{Restart: 10 * time.Millisecond, MaxRestart: time.Hour})
	add(t, g, self("a", "serve", ""))
	if err := g.Start(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		pid := g.Status()[0].PID
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		within(t, 5*time.Second, fmt.Sprintf("restart %d", i+1), func() bool { s := g.Status()[0]; return s.State == Running && s.PID != pid })
	}
}

func TestStoppedProcessStaysDownUntilStarted(t *testing.T) {
	g := group(t, Options{Restart: time.Millisecond})
	log := filepath.Join(t.TempDir(), "log")
	add(t, g, self("a", "gentle", log))
	if err := g.Start(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	within(t, 5*time.Second, "it has a handler", func() bool { raw, _ := os.ReadFile(log); return len(raw) > 0 })
	pid := g.Status()[0].PID
	if err := g.Stop(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if s := g.Status()[0]; s.State != Stopped || s.PID != 0 || alive(pid) {
		t.Fatalf("after stop: %+v", s)
	}
	if raw, err := os.ReadFile(log); err != nil || !strings.Contains(string(raw), "ending gently") {
		t.Errorf("log: %q, %v", raw, err)
	}
	time.Sleep(50 * time.Millisecond)
	if s := g.Status()[0]; s.State != Stopped {
		t.Fatalf("came back by itself: %+v", s)
	}
	if err := g.Start(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if s := g.Status()[0]; s.State != Running {
		t.Fatalf("after start: %+v", s)
	}
}

func TestStubbornProcessIsKilledAfterTheGrace(t *testing.T) {
	g := group(t, Options{Grace: 300 * time.Millisecond})
	log := filepath.Join(t.TempDir(), "log")
	add(t, g, self("a", "stubborn", log))
	if err := g.Start(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	within(t, 5*time.Second, "it ignores SIGTERM", func() bool { raw, _ := os.ReadFile(log); return len(raw) > 0 })
	began := time.Now()
	if err := g.Stop(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 250*time.Millisecond || took > 3*time.Second {
		t.Errorf("stop took %v", took)
	}
}

func TestCrashLoopIsSlowedDown(t *testing.T) {
	g := group(t, Options{Restart: 20 * time.Millisecond, MaxRestart: 10 * time.Second})
	add(t, g, self("a", "crash", ""))
	if err := g.Launch("a"); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "several crashes", func() bool { return g.Status()[0].Restarts >= 4 })
	if s := g.Status()[0]; s.Last != "exit status 3" {
		t.Errorf("last end: %q", s.Last)
	}
	for i, want := range []time.Duration{1, 1, 1, 2, 4, 8, 10, 10} {
		if got := pauseAfter(i, time.Second, 10*time.Second); got != want*time.Second {
			t.Errorf("pause after %d young deaths: %v, want %vs", i, got, int(want))
		}
	}
}

func TestProcessThatNoLongerAnswersIsKilled(t *testing.T) {
	g := group(t, Options{Restart: 10 * time.Millisecond, ProbeEvery: 20 * time.Millisecond})
	s := self("a", "serve", "")
	var deaf atomic.Bool
	s.Alive = func(context.Context) error {
		if deaf.Load() {
			return errors.New("no answer")
		}
		return nil
	}
	add(t, g, s)
	if err := g.Start(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	first := g.Status()[0].PID
	time.Sleep(150 * time.Millisecond)
	if s := g.Status()[0]; s.PID != first {
		t.Fatalf("killed while it answered: %+v", s)
	}
	deaf.Store(true)
	within(t, 5*time.Second, "it is replaced", func() bool { s := g.Status()[0]; return s.PID != first && s.PID != 0 })
}

func TestStartWaitsForReadinessAndSaysWhatEnded(t *testing.T) {
	g := group(t, Options{Restart: time.Millisecond, MaxRestart: time.Millisecond})
	never := self("a", "crash", "")
	never.Ready = func(context.Context) error { return errors.New("no") }
	add(t, g, never)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	err := g.Start(ctx, "a")
	if err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("start of a process that crashes: %v", err)
	}
	if err := g.Start(t.Context(), "nobody"); !errors.Is(err, ErrUnknown) {
		t.Errorf("start of an unknown process: %v", err)
	}
}

func TestChildDiesWithItsParent(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = []string{part + "=parent", "SUPERVISE_TEST_LOG=" + filepath.Join(t.TempDir(), "log")}
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = parent.Wait() }()
	defer func() { _ = parent.Process.Kill() }()
	var child int
	if _, err := fmt.Fscan(out, &child); err != nil || !alive(child) {
		t.Fatalf("child %d: %v", child, err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	within(t, 5*time.Second, "the child is gone", func() bool {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		return err != nil || strings.Contains(string(raw), ") Z ") // a zombie only waits for whoever adopted it
	})
}

func TestShutdownStopsHigherTiersFirst(t *testing.T) {
	g := New(Options{})
	dir := t.TempDir()
	for i, name := range []string{"store", "door"} {
		s := self(name, "serve", filepath.Join(dir, name))
		s.Tier = i
		add(t, g, s)
	}
	if err := g.Start(t.Context(), "store", "door"); err != nil {
		t.Fatal(err)
	}
	g.Shutdown(t.Context())
	door, store := g.child("door").status(), g.child("store").status()
	if door.PID != 0 || store.PID != 0 || !door.Since.Before(store.Since) {
		t.Errorf("door %+v, store %+v", door, store)
	}
	if err := g.Add(self("late", "serve", "")); err == nil {
		t.Error("a group that is shut down took another process")
	}
}

func TestLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := bound(path, 16); err != nil {
		t.Fatal(err)
	}
	if err := bound(path, 10); err != nil {
		t.Fatal(err)
	}
	now, _ := os.ReadFile(path)
	old, err := os.ReadFile(path + ".1")
	if err != nil || len(now) != 0 || string(old) != "6789abcdef" {
		t.Errorf("now %q, rotated %q, %v", now, old, err)
	}
	if err := bound(filepath.Join(t.TempDir(), "absent"), 1); err != nil {
		t.Errorf("no file yet: %v", err)
	}
}

// A process is replaced by one that runs beside it; whichever ends first decides.
func TestAProcessIsReplacedByOneThatRunsBesideIt(t *testing.T) {
	g := group(t, Options{Restart: time.Hour})
	s := self("a", "serve", "")
	s.Replace = []string{}
	add(t, g, s)
	add(t, g, self("b", "serve", ""))
	if err := g.Replace(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "doesn't run") {
		t.Errorf("one that is down: %v", err)
	}
	if err := g.Start(t.Context(), "a", "b"); err != nil {
		t.Fatal(err)
	}
	if err := g.Replace(t.Context(), "b"); err == nil || !strings.Contains(err.Error(), "can't be replaced") {
		t.Errorf("one that can't: %v", err)
	}
	first := g.Status()[0].PID
	done := make(chan error, 2)
	for range 2 {
		go func() { done <- g.Replace(t.Context(), "a") }()
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "is being replaced already") {
		t.Errorf("the second order: %v", err)
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil { // as its successor has it end
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if s := g.Status()[0]; s.State != Running || s.PID == first || !alive(s.PID) || s.Restarts != 0 {
		t.Errorf("%+v", s)
	}
	second := g.Status()[0].PID
	if err := g.Stop(t.Context(), "a"); err != nil || alive(second) {
		t.Errorf("stop: %v, alive %v", err, alive(second))
	}
}

func TestAProcessGoesOnWhenItsSuccessorEnds(t *testing.T) {
	g := group(t, Options{})
	s := self("a", "serve", "")
	s.Path, s.Args = "/bin/sh", []string{"-c", "exec sleep 1000"}
	s.Replace = []string{"-c", "exit 7"}
	add(t, g, s)
	if err := g.Start(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	first := g.Status()[0].PID
	for range 2 {
		if err := g.Replace(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "exit status 7") {
			t.Fatalf("%v", err)
		}
	}
	if s := g.Status()[0]; s.State != Running || s.PID != first || !alive(first) {
		t.Errorf("%+v", s)
	}
}
