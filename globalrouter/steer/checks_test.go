//go:build !long

package steer

import (
	"flag"
	"os"
	"testing"
)

// The large world of ordinary tests: localities, and cells of each of ten regions.
const manyLocalities, manyCells = 1000, 16

// TestMain lets property tests draw a few lives of worlds; with the tag long they draw a hundred, or -rapid.checks of them.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "25"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
