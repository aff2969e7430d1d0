package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// threads says how long each of a process's threads has waited for a processor, all in all.
type threads map[string]time.Duration

// waited reads it from /proc. Where the kernel doesn't count, and of a process that is gone, there is nothing.
func waited(pid int) threads {
	t := threads{}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, file := range files {
		raw, err := os.ReadFile(file)
		var ran, wait int64
		if _, bad := fmt.Sscan(string(raw), &ran, &wait); err == nil && bad == nil {
			t[file] = time.Duration(wait)
		}
	}
	return t
}

// since is the longest that one thread has waited since before. A process of which one waits that long may be silent: what
// it holds, others wait for.
func (t threads) since(before threads) (longest time.Duration) {
	for file, wait := range t {
		if was, known := before[file]; known {
			longest = max(longest, wait-was)
		}
	}
	return longest
}
