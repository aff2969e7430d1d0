package durable

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Free is how many bytes the disk of a directory still takes from this user.
func Free(dir string) (uint64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return uint64(s.Bavail) * uint64(s.Bsize), nil
}
