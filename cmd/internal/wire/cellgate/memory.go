package cellgate

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// memoryOf is the memory of a process in bytes, shared pages divided among their users (PSS); 0 when it can't be read.
func memoryOf(pid int) int64 {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), "Pss:")
		if !ok {
			continue
		}
		kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
		if err != nil {
			return 0
		}
		return kb << 10
	}
	return 0
}
