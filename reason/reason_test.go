package reason

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite docs/reasons.md")

func TestEveryReasonIsWholeAndItsTokenUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range All() {
		if r.String() == "" || r.Title() == "" || r.Status() < 400 || r.Status() > 599 {
			t.Errorf("reason %d is incomplete: %q %d %q", r, r, r.Status(), r.Title())
		}
		if seen[r.String()] {
			t.Errorf("token %q is used twice", r)
		}
		seen[r.String()] = true
	}
}

func TestOnlyTheCallersOwnLimitIs429(t *testing.T) {
	for _, r := range All() {
		if own := strings.HasPrefix(r.String(), "rate_"); own != (r.Status() == 429) {
			t.Errorf("%s has status %d", r, r.Status())
		}
	}
}

func TestAnUnknownReasonIsAnInternalError(t *testing.T) {
	if got := Reason(250).Status(); got != 500 {
		t.Fatalf("status %d", got)
	}
}

func TestDocumentationListsEveryReason(t *testing.T) {
	const file = "../docs/reasons.md"
	var b strings.Builder
	b.WriteString(`# Why the gateway answered itself
When the gateway answers instead of the upstream, the answer is a problem document (RFC 9457, application/problem+json) with one of these stable tokens in ` + "`reason`" + `,
in the header x-cellgate-reason, in the access log and in the metric. This page is written by a test from the code's own table.

| reason | status | meaning | whose |
|---|---|---|---|
`)
	for _, r := range All() {
		whose := "upstream"
		if r.Gateway() {
			whose = "gateway or caller"
		}
		fmt.Fprintf(&b, "| `%s` | %d | %s | %s |\n", r, r.Status(), r.Title(), whose)
	}
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != b.String() {
		t.Fatalf("%s is out of date: go test ./reason -update", file)
	}
}
