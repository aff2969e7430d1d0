// Package contract proves, sentence by sentence, what DESIGN's contracts promise to people outside, on the built commands alone.
package contract

import (
	"os"
	"testing"

	"github.com/cellgate/cellgate/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

func run(t *testing.T, args ...string) harness.Result { return harness.Run(t, args[0], args[1:]...) }

// Every command that stands in cmd explains itself and refuses what it doesn't know, with exit code 2.
func TestEveryCommandHelpsAndRefusesUnknownFlags(t *testing.T) {
	entries, err := os.ReadDir(os.Getenv(harness.BinEnv))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if out := run(t, e.Name(), "--help"); out.Code != 0 || out.Stdout == "" {
			t.Errorf("%s --help: exit %d, stdout %q", e.Name(), out.Code, out.Stdout)
		}
		if out := run(t, e.Name(), "--no-such-flag"); out.Code != 2 || out.Stderr == "" {
			t.Errorf("%s --no-such-flag: exit %d, stderr %q", e.Name(), out.Code, out.Stderr)
		}
	}
}
