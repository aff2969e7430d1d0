// Package sockdir names Unix sockets in directories with long names: the address of a socket has room for about 100 bytes.
package sockdir

import (
	"fmt"
	"os"
	"path/filepath"
)

// In runs do with a path of the file that is short enough for a socket's address, however long the directory's name is.
// The path is good during the call only.
func In(dir, file string, do func(path string) error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return do(filepath.Join(fmt.Sprintf("/proc/self/fd/%d", d.Fd()), file))
}
