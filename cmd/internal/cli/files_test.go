package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFilesThatUsersNameAreBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if raw, err := ReadFile(file); err != nil || string(raw) != "12345" {
		t.Errorf("%q, %v", raw, err)
	}
	if _, err := ReadFile(file + ".none"); !os.IsNotExist(err) {
		t.Errorf("absent: %v", err)
	}
	for text, ok := range map[string]bool{"": true, "1234": true, "12345": false, strings.Repeat("x", 99): false} {
		raw, err := readAll("name", strings.NewReader(text), 4)
		if (err == nil) != ok || ok && string(raw) != text || !ok && !strings.Contains(err.Error(), "name: is longer than 4 bytes") {
			t.Errorf("%q: %q, %v", text, raw, err)
		}
	}
}
