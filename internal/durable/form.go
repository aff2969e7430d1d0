package durable

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// WriteForm writes v as JSON with Write's promise. v has a member "form", the version of its meaning.
func WriteForm(path string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("durable: %s: %w", path, err)
	}
	return Write(path, raw)
}

// ReadForm reads into v what WriteForm has written; found is false when there is nothing. A damaged file, and one of another
// form than 1 to newest, is an error.
func ReadForm(path string, newest int, v any) (found bool, err error) {
	raw, err := Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("durable: %w", err)
	}
	var head struct {
		Form int `json:"form"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return false, fmt.Errorf("durable: %s is damaged: %w", path, err)
	}
	if head.Form < 1 || head.Form > newest {
		return false, fmt.Errorf("durable: %s has form %d, which is not readable here", path, head.Form)
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return false, fmt.Errorf("durable: %s is damaged: %w", path, err)
	}
	return true, nil
}

// Clear removes what a process that was killed in the middle of a Write has left in the directory. Only a directory's sole
// writer may call it, before it writes.
func Clear(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("durable: %w", err)
	}
	for _, e := range entries {
		if e.Type().IsRegular() && isLeftover(e.Name()) {
			if err := os.Remove(dir + string(os.PathSeparator) + e.Name()); err != nil {
				return fmt.Errorf("durable: %w", err)
			}
		}
	}
	return nil
}
