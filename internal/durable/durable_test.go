package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
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

func TestWhatStandsInAFilesPlaceIsAnErrorAtOnce(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	for name, put := range map[string]func() error{
		"a directory":    func() error { return os.Mkdir(path, 0o700) },
		"a pipe":         func() error { return syscall.Mkfifo(path, 0o600) },
		"an endless one": func() error { return os.Symlink("/dev/zero", path) },
		"a huge one":     func() error { return errors.Join(Write(path, nil), os.Truncate(path, most+1)) },
	} {
		if err := put(); err != nil {
			t.Fatal(err)
		}
		if got, err := Read(path); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		os.Remove(path)
	}
	if _, err := Read(path); !os.IsNotExist(err) {
		t.Errorf("nothing: %v", err)
	}
	if err := Write(path, []byte("one")); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(path); err != nil || string(got) != "one" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestWhatAKilledWriterLeftIsCleared(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".state" + underway + "123", ".hidden", "state"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Clear(dir); err != nil {
		t.Fatal(err)
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 2 || entries[0].Name() != ".hidden" || entries[1].Name() != "state" {
		t.Errorf("left: %v", entries)
	}
	if err := Clear(filepath.Join(dir, "none")); err == nil {
		t.Error("cleared a directory that is not there")
	}
}

func TestAFormIsReadBackOrSaysWhatIsWrong(t *testing.T) {
	type kept struct {
		Form int    `json:"form"`
		Word string `json:"word"`
	}
	path := filepath.Join(t.TempDir(), "kept.json")
	var got kept
	if found, err := ReadForm(path, 2, &got); found || err != nil {
		t.Fatalf("nothing there: %v, %v", found, err)
	}
	if err := WriteForm(path, kept{2, "here"}); err != nil {
		t.Fatal(err)
	}
	if found, err := ReadForm(path, 2, &got); !found || err != nil || got.Word != "here" {
		t.Fatalf("%v, %v, %+v", found, err, got)
	}
	for _, raw := range []string{"", "{", "null", "[]", `{"form":3}`, `{"form":0}`, `{"form":"1"}`, `{"form":1,"word":7}`, "\x00\x00"} {
		if err := os.WriteFile(path, []byte(raw), 0o600); err != nil {
			t.Fatal(err)
		}
		if found, err := ReadForm(path, 2, &kept{}); found || err == nil {
			t.Errorf("%q: %v, %v", raw, found, err)
		}
	}
	if found, err := ReadForm(t.TempDir(), 2, &got); found || err == nil {
		t.Errorf("a directory: %v, %v", found, err)
	}
}

func TestABatchIsWholeOrSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	files := map[string][]byte{}
	for i := range 100 {
		files[fmt.Sprint("f", i)] = []byte(fmt.Sprint("content ", i))
	}
	if err := WriteAll(dir, files); err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != string(want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "taken", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteAll(dir, map[string][]byte{"f0": []byte("new"), "taken": nil}); err == nil {
		t.Error("replaced a directory that is not empty")
	}
	if got, _ := os.ReadFile(filepath.Join(dir, "f0")); string(got) != "new" && string(got) != "content 0" {
		t.Errorf("f0 is torn: %q", got)
	}
}
