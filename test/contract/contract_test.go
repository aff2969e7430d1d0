// Package contract proves, sentence by sentence, what DESIGN's contracts promise to people outside, on the built commands alone.
package contract

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cellgate/cellgate/test/harness"
)

func TestMain(m *testing.M) {
	if at := os.Getenv(dieAt); at != "" {
		die(os.Getenv(dieAt+"_DIR"), at)
	}
	os.Exit(harness.Main(m))
}

func run(t *testing.T, args ...string) harness.Result { return harness.Run(t, args[0], args[1:]...) }

// commands are those that stand in cmd: where they are built other things may lie as well.
func commands(t *testing.T) (names []string) {
	entries, err := os.ReadDir(filepath.Join("..", "..", "cmd"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "internal" {
			names = append(names, e.Name())
		}
	}
	return names
}

// Every command that stands in cmd explains itself and refuses what it doesn't know, with exit code 2.
func TestEveryCommandHelpsAndRefusesUnknownFlags(t *testing.T) {
	for _, name := range commands(t) {
		if out := run(t, name, "--help"); out.Code != 0 || out.Stdout == "" {
			t.Errorf("%s --help: exit %d, stdout %q", name, out.Code, out.Stdout)
		}
		if out := run(t, name, "--no-such-flag"); out.Code != 2 || out.Stderr == "" {
			t.Errorf("%s --no-such-flag: exit %d, stderr %q", name, out.Code, out.Stderr)
		}
	}
}

// subcommand is a line of a help text's list of commands.
var subcommand = regexp.MustCompile(`(?m)^  ([a-z-]+) {2,}\S`)

// leaves calls do with the help of every command below line that does something itself.
func leaves(t *testing.T, line []string, do func(line []string, help string)) {
	t.Helper()
	out := run(t, append(slices.Clone(line), "--help")...)
	if out.Code != 0 || out.Stderr != "" {
		t.Fatalf("%v --help: exit %d, stderr %q", line, out.Code, out.Stderr)
	}
	_, list, group := strings.Cut(out.Stdout, "Available Commands:\n")
	if !group {
		do(line, out.Stdout)
		return
	}
	list, _, _ = strings.Cut(list, "\nFlags:")
	for _, m := range subcommand.FindAllStringSubmatch(list, -1) {
		if m[1] != "help" && m[1] != "completion" {
			leaves(t, append(slices.Clone(line), m[1]), do)
		}
	}
}

// Help shows an example of every command that there is, which names the command itself.
func TestEveryCommandHasAnExample(t *testing.T) {
	seen := 0
	for _, name := range commands(t) {
		leaves(t, []string{name}, func(line []string, help string) {
			seen++
			_, example, _ := strings.Cut(help, "Examples:\n")
			if last := line[len(line)-1]; !regexp.MustCompile(`(?m)^  ` + line[0] + `\b.* ` + last + `\b`).MatchString(example) {
				t.Errorf("%v --help has no example of itself:\n%s", line, help)
			}
		})
		if out := run(t, name, "completion", "bash"); out.Code != 0 || !strings.Contains(out.Stdout, name) {
			t.Errorf("%s completion bash: exit %d, %q", name, out.Code, out.Stderr)
		}
	}
	if seen < 35 {
		t.Errorf("only %d commands were found", seen)
	}
}

// Every command of regionctl that changes something knows --dry-run, and every one that reads knows -o table|json|yaml.
func TestWritesKnowDryRunAndReadsKnowFormats(t *testing.T) {
	writes := []string{
		"publish", "config publish", "rollback", "config rollback", "evacuate", "restore",
		"rollout pause", "rollout resume", "rollout promote", "rollout abort", "rollout force",
		"deny add", "deny remove", "keys issue", "keys revoke", "recover", "drill run",
	}
	neither := []string{"serve", "config fmt"}
	leaves(t, []string{"regionctl"}, func(line []string, help string) {
		name := strings.Join(line[1:], " ")
		if write := slices.Contains(writes, name); write != strings.Contains(help, "--dry-run") {
			t.Errorf("%s: a write %v, but its help says\n%s", name, write, help)
		}
		if slices.Contains(neither, name) {
			return
		}
		if !strings.Contains(help, "table, json or yaml") {
			t.Errorf("%s knows no -o table|json|yaml:\n%s", name, help)
		}
	})
}
