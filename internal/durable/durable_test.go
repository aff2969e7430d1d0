package durable

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAFailedWriteLeavesTheFormerContentAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	if err := Write(path, []byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := Write(filepath.Join(dir, "state", "below-a-file"), nil); err == nil {
		t.Error("wrote below a file")
	}
	blocked := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(blocked, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(blocked, []byte("two")); err == nil {
		t.Error("replaced a directory that is not empty")
	}
	if err := Write(path, []byte("three")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "three" {
		t.Errorf("%q, %v", got, err)
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 2 {
		t.Errorf("left behind: %v", entries)
	}
}
