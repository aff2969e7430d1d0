package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestExitCodesTellWrongUseFromFailure(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"serve", "--bootstrap", "f"}, ExitDone, ""},
		{nil, ExitDone, "Usage:"},
		{[]string{"serve", "--help"}, ExitDone, "x serve --bootstrap /etc/cellgate/x.json"},
		{[]string{"serve"}, ExitUsage, "--bootstrap FILE is missing"},
		{[]string{"serve", "--bootstrap"}, ExitUsage, "needs an argument"},
		{[]string{"serve", "--bootstrap", "f", "more"}, ExitUsage, "unknown command"},
		{[]string{"--nonsense"}, ExitUsage, "unknown flag"},
		{[]string{"nonsense"}, ExitUsage, "See 'x --help'"},
		{[]string{"serve", "--bootstrap", "bad"}, ExitFailed, "x serve: broken"},
		{[]string{"serve", "--bootstrap", "wrong"}, ExitUsage, "wrapped: words"},
	} {
		var out, errs bytes.Buffer
		serve := Serve("x", "Long words.", func(_ context.Context, file string, _ *slog.Logger) error {
			switch file {
			case "bad":
				return errors.New("broken")
			case "wrong":
				return fmt.Errorf("wrapped: %w", Usage(errors.New("words")))
			}
			return nil
		})
		code := Main(Root("x", "A daemon", serve), c.args, &out, &errs)
		if code != c.code || !strings.Contains(out.String()+errs.String(), c.says) {
			t.Errorf("%v: exit %d, want %d; stdout %q stderr %q", c.args, code, c.code, out.String(), errs.String())
		}
		if (code == ExitDone) != (errs.Len() == 0) {
			t.Errorf("%v: exit %d with stderr %q", c.args, code, errs.String())
		}
	}
}
