package handover

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/internal/sockdir"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a holder of some pipes that notes what is asked of it.
type recorder struct {
	pipes int
	fail  error // of Yield

	mu    sync.Mutex
	calls []string
}

func (r *recorder) note(call string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, call)
}

func (r *recorder) was(want ...string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Equal(r.calls, want)
}

func (r *recorder) Sockets() (all []Handed, err error) {
	r.note("sockets")
	for range r.pipes {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return all, err
		}
		all = append(all, Handed{"pipe", p[:]})
	}
	return all, nil
}

func (r *recorder) Yield() (json.RawMessage, error) {
	r.note("yield")
	return json.RawMessage(`"note"`), r.fail
}
func (r *recorder) Resume()   { r.note("resume") }
func (r *recorder) Leave(int) { r.note("leave") }

// owner runs a giver in a directory of its own.
func owner(t *testing.T, o Options) (dir string) {
	t.Helper()
	dir = t.TempDir()
	lock, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	g, err := Listen(dir, lock, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if g.heir.UnixConn != nil {
			g.heir.Close() // as the end of the process does
		}
		lock.Close()
	})
	return dir
}

func closeAll(t *Taken) {
	for _, h := range t.Sockets {
		h.Close()
	}
	t.Lock.Close()
	t.line.Close()
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in time: " + what)
		}
	}
}

// More sockets than one message could carry, each with what it is for; the lock goes along.
func TestASuccessorGetsEverySocketAndTheLock(t *testing.T) {
	r := &recorder{pipes: 300}
	dir := owner(t, Options{Holder: r})
	taken, err := Take(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(taken)
	if len(taken.Sockets) != 300 {
		t.Fatalf("%d sockets", len(taken.Sockets))
	}
	p := taken.Sockets[299]
	if _, err := unix.Write(p.FDs[1], []byte("x")); err != nil || p.Name != "pipe" {
		t.Errorf("%+v %v", p, err)
	}
	if n, err := unix.Read(p.FDs[0], make([]byte, 9)); n != 1 || err != nil {
		t.Errorf("%d %v", n, err)
	}
	if _, err := Lock(dir); err == nil {
		t.Error("the directory was free")
	}
	note, err := taken.Ready(t.Context())
	if err != nil || string(note) != `"note"` {
		t.Fatalf("%s %v", note, err)
	}
	if err := taken.Serving(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the old one to leave", func() bool { return r.was("sockets", "yield", "leave") })
	if _, err := Take(t.Context(), dir); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "leaving") {
		t.Errorf("a second one: %v", err)
	}
}

func TestWhatFailsBeforeServingIsUndone(t *testing.T) {
	steps := map[string]func(*Taken){
		"sockets":              func(taken *Taken) { taken.line.Close() },
		"sockets yield resume": func(taken *Taken) { _, _ = taken.Ready(context.Background()); taken.line.Close() },
	}
	for want, do := range steps {
		r := &recorder{}
		dir := owner(t, Options{Holder: r})
		taken, err := Take(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		do(taken)
		closeAll(taken)
		eventually(t, want, func() bool { return r.was(strings.Fields(want)...) })
		eventually(t, "the next one to be welcome", func() bool {
			taken, err := Take(t.Context(), dir)
			if err != nil {
				return false
			}
			taken.Fail(errors.New("never mind"))
			closeAll(taken)
			return true
		})
	}
}

func TestAHolderThatCanNotYieldKeepsEverything(t *testing.T) {
	r := &recorder{fail: errors.New("the disk is busy")}
	taken, err := Take(t.Context(), owner(t, Options{Holder: r}))
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(taken)
	if _, err := taken.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "the disk is busy") {
		t.Errorf("%v", err)
	}
	eventually(t, "resume", func() bool { return r.was("sockets", "yield", "resume") })
}

// Two processes never both believe that they serve: one that says so too late is told that the old one goes on.
func TestAServingThatComesTooLateIsRefused(t *testing.T) {
	r := &recorder{}
	taken, err := Take(t.Context(), owner(t, Options{Holder: r}))
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(taken)
	if _, err := taken.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = taken.line.send(message{Step: stepTake}) // not the step that is awaited
	if err := taken.Serving(); !errors.Is(err, ErrRefused) {
		t.Errorf("%v", err)
	}
	eventually(t, "resume", func() bool { return r.was("sockets", "yield", "resume") })
}

func TestASuccessorThatIsNotReadyInTimeIsToldSo(t *testing.T) {
	r := &recorder{}
	taken, err := Take(t.Context(), owner(t, Options{Holder: r, Within: 20 * time.Millisecond}))
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(taken)
	time.Sleep(60 * time.Millisecond)
	if _, err := taken.Ready(t.Context()); err == nil || !r.was("sockets") {
		t.Error(err)
	}
}

func TestASuccessorGoesOnWhenTheOldOneDies(t *testing.T) {
	dir := t.TempDir()
	old := make(chan net.Conn, 1)
	err := sockdir.In(dir, socketFile, func(path string) error {
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err != nil {
			return err
		}
		defer l.Close()
		go func() {
			c, _ := l.AcceptUnix()
			lock, _ := Lock(dir)
			defer lock.Close()
			_ = line{c}.send(message{Step: stepSocket, Name: lockFile}, int(lock.Fd()))
			_ = line{c}.send(message{Step: stepReady})
			old <- c
		}()
		taken, err := Take(t.Context(), dir)
		if err != nil {
			return err
		}
		defer closeAll(taken)
		(<-old).Close()
		if note, err := taken.Ready(t.Context()); note != nil || err != nil {
			t.Errorf("%s %v", note, err)
		}
		if err := taken.Serving(); err != nil {
			t.Error(err)
		}
		<-taken.Gone()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAnOrderedSuccessorIsAwaited(t *testing.T) {
	for script, want := range map[string]string{"exit 3": "exit status 3", "exec sleep 30": "has not asked for the sockets"} {
		dir := owner(t, Options{Holder: &recorder{}, Successor: func() (*exec.Cmd, error) { return exec.Command("/bin/sh", "-c", script), nil }})
		if _, _, err := Order(t.Context(), dir, 200*time.Millisecond); err == nil || errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", script, err)
		}
	}
	dir := owner(t, Options{Holder: &recorder{}, Successor: func() (*exec.Cmd, error) { return nil, errors.New("not here") }})
	if _, _, err := Order(t.Context(), dir, time.Second); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "not here") {
		t.Errorf("%v", err)
	}
}

// Whatever comes over the socket, the owner goes on.
func TestNonsenseIsRefused(t *testing.T) {
	dir := owner(t, Options{Holder: &recorder{}})
	for _, raw := range []string{"{", "null", `{"form":2,"step":"take"}`, `{"form":1,"step":"serving"}`, strings.Repeat("x", maxMessage+1)} {
		l, err := dial(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Write([]byte(raw)); err != nil {
			t.Fatal(err)
		}
		_ = l.SetReadDeadline(time.Now().Add(5 * time.Second))
		if m, _, err := l.receive(time.Now().Add(5 * time.Second)); !errors.Is(err, io.EOF) && m.Step != stepRefused && m.Step != stepFailed {
			t.Errorf("%.20q: %+v %v", raw, m, err)
		}
		l.Close()
	}
	if _, err := Take(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, ErrNobody) {
		t.Errorf("%v", err)
	}
	taken, err := Take(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	taken.Fail(errors.New("enough"))
	closeAll(taken)
}

func TestALockIsOneProcess(t *testing.T) {
	dir := t.TempDir()
	f, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); err == nil || !strings.Contains(err.Error(), "belongs to a process that runs") {
		t.Errorf("%v", err)
	}
	f.Close()
	again, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if _, err := Lock(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
