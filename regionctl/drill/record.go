package drill

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cellgate/cellgate/internal/durable"
)

// maxRecords bounds how many runs a directory keeps; the oldest go first.
const maxRecords = 500

// Claim takes the right to run drills in the world whose records the directory holds: one at a time. release gives it back;
// the kernel does when the process ends.
func Claim(dir string) (release func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("records of drills: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("records of drills: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, errors.New("another drill runs in this world: one at a time, or neither would know what it measures")
	}
	return func() { _ = f.Close() }, nil
}

// Save writes the record of a run, replacing an earlier one of the same run.
func Save(dir string, r Result) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := durable.Write(filepath.Join(dir, r.ID+".json"), append(raw, '\n')); err != nil {
		return fmt.Errorf("record of the drill: %w", err)
	}
	return prune(dir)
}

func prune(dir string) error {
	names, err := records(dir)
	for len(names) > maxRecords && err == nil {
		err = os.Remove(filepath.Join(dir, names[0]))
		names = names[1:]
	}
	return err
}

// records are the names of the files, oldest first: they begin with the time.
func records(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("records of drills: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".json") && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// List gives the runs on record, newest first. A record that can't be read is an error with its file's name.
func List(dir string) ([]Result, error) {
	names, err := records(dir)
	if err != nil {
		return nil, err
	}
	var all []Result
	for _, name := range names {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("record of a drill: %w", err)
		}
		var r Result
		if err := json.Unmarshal(raw, &r); err != nil || r.Form != Form {
			return nil, fmt.Errorf("record of a drill: %s is of form %d or damaged (%w)", name, r.Form, errors.Join(err, errors.ErrUnsupported))
		}
		all = append(all, r)
	}
	slices.SortStableFunc(all, func(a, b Result) int { return cmp.Or(b.Began.Compare(a.Began), strings.Compare(b.ID, a.ID)) })
	return all, nil
}
