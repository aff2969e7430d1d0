package proxy

import (
	"fmt"
	"time"

	"github.com/cellgate/cellgate/cmd/internal/cli"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/snapshot"
)

// load reads a document and compiles it as snapshot number n.
func load(path string, n uint64, now time.Time, prev *program.Program) (*program.Program, error) {
	raw, err := cli.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("document: %w", err)
	}
	cfg, problems := program.Validate([]snapshot.File{{Name: path, Data: raw}}, snapshot.Loopback())
	if err := problems.Err(); err != nil {
		return nil, fmt.Errorf("document refused:\n%w", err)
	}
	snap, err := snapshot.Seal(cfg, snapshot.Meta{Number: n, Created: now, Author: "file", Message: path})
	if err != nil {
		return nil, err
	}
	return program.Compile(snap, prev)
}
