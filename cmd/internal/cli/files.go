package cli

import (
	"fmt"
	"io"
	"os"
)

// MaxFile bounds a file that a user names, in bytes. A document of 100,000 routes has 20 MB.
const MaxFile = 128 << 20

// ReadFile is os.ReadFile for a file that a user names: a longer one, such as a device without end, is refused.
func ReadFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadAll(name, f)
}

// ReadAll reads up to MaxFile bytes; name is for the error.
func ReadAll(name string, r io.Reader) ([]byte, error) { return readAll(name, r, MaxFile) }

func readAll(name string, r io.Reader, most int64) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(raw)) > most {
		return nil, fmt.Errorf("%s: is longer than %d bytes", name, most)
	}
	return raw, nil
}
