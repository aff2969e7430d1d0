package supervisor

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Whoever leaves before the supervisor has answered hears that his order stands, not that the supervisor is amiss.
func TestWhoLeavesBeforeTheAnswerHearsThatTheOrderStands(t *testing.T) {
	dir := t.TempDir()
	if _, err := Call(t.Context(), dir, Request{Op: Stop}); !errors.Is(err, ErrNotRunning) || !strings.Contains(err.Error(), "cellgate up --dir "+dir) {
		t.Errorf("nothing runs: %v", err)
	}
	lock, err := os.Create(filepath.Join(dir, LockFile))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.FcntlFlock(lock.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", filepath.Join(dir, Socket))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	left := errors.New("interrupt signal received")
	ctx, leave := context.WithCancelCause(t.Context())
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = conn.Read(make([]byte, 1)) // the order has come
		leave(left)
		<-t.Context().Done()
	}()
	if _, err := Call(ctx, dir, Request{Op: Stop}); !errors.Is(err, left) || !strings.Contains(err.Error(), "what was ordered stands") {
		t.Errorf("after %v: %v", left, err)
	}
}
