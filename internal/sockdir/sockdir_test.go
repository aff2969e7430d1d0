package sockdir

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestASocketInADirectoryWithALongNameIsReached(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := net.Listen("unix", filepath.Join(dir, "s")); err == nil {
		t.Fatal("there is room for the name as it is; this test proves nothing")
	}
	err := In(dir, "s", func(path string) error {
		l, err := net.Listen("unix", path)
		if err != nil {
			return err
		}
		defer l.Close()
		c, err := net.Dial("unix", path)
		if err == nil {
			err = c.Close()
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if err := In(filepath.Join(dir, "none"), "s", func(string) error { return nil }); err == nil {
		t.Error("a directory that is not there was opened")
	}
}
