package secrets

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestSecretsAreReadRenewedAndForgotten(t *testing.T) {
	dir := t.TempDir()
	var said bytes.Buffer
	s := New(dir, slog.New(slog.NewTextHandler(&said, nil)))
	put(t, dir, "a", "one\n")
	if err := s.Check([]Need{Text("a")}); err != nil || s.Get("t", "a") != nil {
		t.Errorf("checked: %v, kept %v", err, s.Get("t", "a") != nil)
	}
	if err := s.Want([]Need{Text("a")}); err != nil || s.Get("t", "a").Value != "one" {
		t.Fatal(err)
	}
	if err := s.Want([]Need{Text("a"), Text("b")}); err == nil || !strings.Contains(err.Error(), "b") || s.Get("t", "a") == nil {
		t.Errorf("one is missing: %v", err)
	}
	put(t, dir, "a", "two")
	if s.Reload(); s.Get("t", "a").Value != "two" {
		t.Errorf("not renewed: %v", s.Get("t", "a").Value)
	}
	put(t, dir, "a", "hid\x00den")
	for range 3 {
		s.Reload()
	}
	if s.Get("t", "a").Value != "two" || strings.Count(said.String(), "refused") != 1 {
		t.Errorf("a bad file: %v\n%s", s.Get("t", "a").Value, said.String())
	}
	if err := s.Want([]Need{Text("a")}); err != nil || s.Get("t", "a").Value != "two" {
		t.Errorf("what was read is not in use: %v", err)
	}
	if strings.Contains(said.String(), "hid") || strings.Contains(said.String(), "two") {
		t.Errorf("the log tells: %s", said.String())
	}
	if err := s.Want(nil); err != nil || s.Get("t", "a") != nil {
		t.Error("not forgotten")
	}
}

// until is a value that ends.
type until time.Time

func (u until) Ends() time.Time { return time.Time(u) }

func TestWhatIsOutOfDateIsSaidOnceAndReadOnceUntilItChanges(t *testing.T) {
	dir := t.TempDir()
	var said bytes.Buffer
	s, times, ends := New(dir, slog.New(slog.NewTextHandler(&said, nil))), 0, time.Now().Add(-time.Minute)
	need := Need{Name: "a", Kind: "a list", Most: 100_000, Read: func([]byte) (any, error) { times++; return until(ends), nil }}
	put(t, dir, "a", strings.Repeat("x", MaxFile+1))
	if err := s.Want([]Need{need}); err != nil {
		t.Fatal(err)
	}
	s.Reload()
	s.Reload()
	if n := strings.Count(said.String(), "out of date"); n != 1 || times != 1 {
		t.Errorf("said %d times, read %d times", n, times)
	}
	ends = time.Now().Add(time.Hour)
	put(t, dir, "a", "y")
	if s.Reload(); times != 2 || strings.Count(said.String(), "out of date") != 1 {
		t.Errorf("read %d times: %s", times, said.String())
	}
	put(t, dir, "a", strings.Repeat("x", 100_001))
	if s.Reload(); !strings.Contains(said.String(), "larger than 100000") {
		t.Error(said.String())
	}
}

func TestWhatIsNoSecretIsRefused(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "empty", "\n")
	put(t, dir, "lines", "a\nb\n")
	put(t, dir, "large", strings.Repeat("a", MaxFile+1))
	put(t, dir, "fine", "x")
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := New(dir, slog.New(slog.DiscardHandler))
	for _, name := range []string{"empty", "lines", "large", "folder", "pipe", "missing", "../x", "a/b", "", ".", "..", "folder/../fine", "folder/x/y", "/fine", "folder/"} {
		if err := s.Want([]Need{Text(name)}); err == nil {
			t.Errorf("%q is a secret", name)
		}
	}
	other := Text("fine")
	other.Kind = "keys"
	if err := s.Want([]Need{Text("fine"), other}); err == nil {
		t.Error("one file is of two kinds")
	}
	if err := New("", slog.New(slog.DiscardHandler)).Want([]Need{Text("fine")}); err == nil || !strings.Contains(err.Error(), "directory") {
		t.Errorf("without a directory: %v", err)
	}
}

// A tenant's secrets are its requests' alone; those without a tenant are everybody's.
func TestASecretIsForItsTenantAlone(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "all", "x")
	if err := os.Mkdir(filepath.Join(dir, "acme"), 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "acme"), "own", "y")
	s := New(dir, slog.New(slog.DiscardHandler))
	if err := s.Want([]Need{Text("all"), Text("acme/own")}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tenant, name string
		has          bool
	}{{"acme", "all", true}, {"other", "all", true}, {"acme", "acme/own", true}, {"other", "acme/own", false}, {"", "acme/own", false}, {"acme/own", "acme/own", false}} {
		if has := s.Get(c.tenant, c.name) != nil; has != c.has {
			t.Errorf("%q gets %s: %v", c.tenant, c.name, has)
		}
	}
	if n := testing.AllocsPerRun(100, func() { s.Get("acme", "acme/own") }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
