package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// What is no command is answered with those that are near it, and with where the help is.
func TestAMistypedCommandIsAnsweredWithThoseThatAreNear(t *testing.T) {
	group := &cobra.Command{Use: "config", Args: Subcommand, RunE: Help}
	for _, name := range []string{"validate", "versions"} {
		group.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	for line, says := range map[string]string{
		"confg":           "x: unknown command \"confg\" for \"x\" (did you mean config?)\nSee 'x --help'.\n",
		"config validat":  "x config: unknown command \"validat\" for \"x config\" (did you mean validate?)\nSee 'x config --help'.\n",
		"config v":        "x config: unknown command \"v\" for \"x config\" (did you mean validate or versions?)\nSee 'x config --help'.\n",
		"config nonsense": "x config: unknown command \"nonsense\" for \"x config\"\nSee 'x config --help'.\n",
	} {
		var out, errs bytes.Buffer
		if code := Main(Root("x", "A daemon", group), strings.Fields(line), &out, &errs); code != ExitUsage || errs.String() != says || out.Len() > 0 {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", line, code, out.String(), errs.String())
		}
	}
}
