package contract

import (
	"strings"
	"testing"
)

// The denylist by the command line: who is named, how long it holds, what is refused, and what it prints.
func TestRegionctlDeniesListsAndPermits(t *testing.T) {
	r := newControlled(t)
	for _, line := range []string{
		"deny add --reason x", "deny add --user a", "deny add --user a --token b --reason x", "deny add --key cg_secret --reason x",
		"deny add --key sha256:abcd --reason x", "deny add --user a --reason x --for 0s", "deny add --user a --reason x --for 1ns", "deny add --user a --reason x --for -1h", "deny add --user a --reason x --for 99999h",
		"deny add --user a --reason x -o xml", "deny remove --reason x", "deny list extra", "deny add --key - --reason x",
	} {
		if out := r.run(strings.Fields(line)...); out.Code != 2 || out.Stderr == "" || out.Stdout != "" || strings.Contains(out.Stderr, "cg_secret") {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", line, out.Code, out.Stdout, out.Stderr)
		}
	}
	for _, step := range []struct {
		line string
		code int
		say  string
	}{
		{"deny add --user alice --reason taken --for 1h --dry-run", 0, "would be denied"},
		{"deny list", 0, "0 of 10000"},
		{"deny add --user alice --reason taken --for 1h --region us-east", 0, "denied in us-east, until"},
		{"deny add --key sha256:0123456789ABCDEF --reason leaked", 0, "sha256:0123456789abcdef"},
		{"deny add --route orders --reason slow", 3, "--confirm"},
		{"deny add --route orders --reason slow --confirm", 0, "denied everywhere"},
		{"deny add --user alice --reason x --region mars", 1, "mars"},
		{"deny list", 0, "3 of 10000"},
		{"deny list --region eu-west -o json", 0, `"used": 3`},
		{"deny remove --user alice --reason x", 1, "any issuer in region us-east"},
		{"deny remove --user alice --reason x --region us-east", 0, "no longer denied in us-east"},
		{"deny list", 0, "2 of 10000"},
		{"audit", 0, "route orders"},
	} {
		out := r.run(strings.Fields(step.line)...)
		if out.Code != step.code || !strings.Contains(out.Stdout+out.Stderr, step.say) {
			t.Errorf("%s: exit %d, want %d and %q\n%s%s", step.line, out.Code, step.code, step.say, out.Stdout, out.Stderr)
		}
	}
	if out := r.run("deny", "add", "--user", "a\x1b[2J\nb\u202e", "--reason", "tab\tbell\a"); out.Code != 0 || strings.ContainsAny(out.Stdout, "\x1b\a\u202e") {
		t.Errorf("exit %d\n%q%s", out.Code, out.Stdout, out.Stderr)
	}
	if out := r.run("deny", "list"); !strings.Contains(out.Stdout, `a\x1b[2J\nb\u202e`) || !strings.Contains(out.Stdout, `tab\tbell\a`) {
		t.Errorf("a terminal would obey this:\n%q", out.Stdout)
	}
	if out := r.run("deny", "list", "--region", "eu-west"); strings.Contains(out.Stdout, "alice") {
		t.Errorf("another region's denial is listed:\n%s", out.Stdout)
	}
}

func TestBrokenGlassSaysWhichWayTheOrderWent(t *testing.T) {
	r := newControlled(t)
	out := r.run("evacuate", "eu-west/a", "--reason", "x", "--break-glass")
	if out.Code != 0 || !strings.Contains(out.Stdout, "path: global store") || !strings.Contains(out.Stdout, "was not asked") {
		t.Errorf("exit %d\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
	out = r.run("evacuate", "us-east/a", "--reason", "x", "--break-glass", "--force")
	if out.Code != 3 || !strings.Contains(out.Stderr, "no usable cell") {
		t.Errorf("the last cell: exit %d\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
	if out := r.run("evacuate", "us-east/a", "--break-glass"); out.Code != 2 || !strings.Contains(out.Stderr, "--reason") {
		t.Errorf("without a reason: exit %d %s", out.Code, out.Stderr)
	}
}
