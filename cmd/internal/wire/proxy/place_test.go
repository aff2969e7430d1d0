package proxy

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/handover"
	"github.com/cellgate/cellgate/proxy/listen"
)

// What keeps a process from taking orders, such as a full disk at its takeover, may pass; until then whoever orders is told.
func TestAProcessThatCouldNotBeUpgradedCanBeLater(t *testing.T) {
	dir := t.TempDir()
	inTheWay := filepath.Join(dir, "upgrade.sock", "x")
	if err := os.MkdirAll(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	p := &place{dir: dir, sockets: new(listen.Sockets), again: 10 * time.Millisecond}
	if err := p.own(); err != nil {
		t.Fatal(err)
	}
	defer p.lock.Close()
	if err := p.confirm(&holder{place: p}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.serve(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	if err := os.Rename(filepath.Dir(inTheWay), filepath.Join(dir, "away")); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Second); ; {
		taken, err := handover.Take(t.Context(), dir)
		if err == nil {
			taken.Fail(os.ErrClosed)
			taken.Lock.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A directory that is held by a process which takes no orders is not said to be nobody's.
func TestAnOrderToAProcessThatTakesNoneSaysSo(t *testing.T) {
	dir := t.TempDir()
	lock, err := handover.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := handover.Order(t.Context(), dir, time.Second); err == nil || !strings.Contains(err.Error(), "takes no orders now") {
		t.Errorf("%v", err)
	}
	lock.Close()
	if _, _, err := handover.Order(t.Context(), dir, time.Second); err == nil || !strings.Contains(err.Error(), "no process runs with this directory") {
		t.Errorf("%v", err)
	}
	if _, _, err := handover.Order(t.Context(), filepath.Join(dir, "lock"), time.Second); err == nil || err.Error() != filepath.Join(dir, "lock")+": not a directory" {
		t.Errorf("%v", err)
	}
}
