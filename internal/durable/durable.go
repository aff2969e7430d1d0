// Package durable writes files that are whole or not there, also after a crash or a power cut.
package durable

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// Write puts data under the path, readable by its owner only. When it returns nil the content has reached the disk under
// that name; on an error, and at every instant in between, the name has its former content. The system calls in order:
//
//	open(dir/.name.underway-*)  write  fsync  close  rename(→ path)  open(dir)  fsync  close
func Write(path string, data []byte) error {
	if err := place(path, data); err != nil {
		return err
	}
	return Sync(filepath.Dir(path))
}

// most bounds what Read reads, in bytes.
const most = 512 << 20

// Read gives what Write has written under the path. What stands there in a file's place is an error, since a pipe would hold the
// reader up and a device has no end; so is more than most.
func Read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, fmt.Errorf("durable: %s is no file of at most %d MiB", path, most>>20)
	}
	return io.ReadAll(io.LimitReader(f, most))
}

// underway marks files that are not whole yet; see Clear.
const underway = ".underway-"

func isLeftover(name string) bool { return name[0] == '.' && strings.Contains(name, underway) }

// place does all of Write but the last line.
func place(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+underway+"*") // mode 0600
	if err != nil {
		return fmt.Errorf("durable: %w", err)
	}
	if err := fill(f, data); err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("durable: %s: %w", path, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("durable: %w", err)
	}
	return nil
}

// atOnce is how many files of a batch are on their way to the disk at the same time: file systems commit them together.
const atOnce = 16

// WriteAll puts files into one directory, each with Write's promise but with one sync of the directory for all. On an error
// some of the files may be there; each of those is whole.
func WriteAll(dir string, files map[string][]byte) error {
	var g sync.WaitGroup
	room, failed := make(chan struct{}, atOnce), make(chan error, 1)
	for name, data := range files {
		room <- struct{}{}
		g.Go(func() {
			defer func() { <-room }()
			if err := place(filepath.Join(dir, name), data); err != nil {
				select {
				case failed <- err:
				default: // one fault is enough to tell
				}
			}
		})
	}
	g.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return Sync(dir)
	}
}

func fill(f *os.File, data []byte) error {
	_, err := f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

// Sync makes the directory's entries durable, as after a removal.
func Sync(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("durable: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("durable: sync %s: %w", dir, err)
	}
	return nil
}
