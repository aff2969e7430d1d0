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
		if strings.ContainsFunc(r.Title(), func(c rune) bool { return c < 0x20 || c > 0x7e || c == '%' || c == '"' || c == '\\' }) {
			t.Errorf("the title %q would need encoding", r.Title())
		}
	}
}

func TestOnlyTheCallersOwnLimitIs429(t *testing.T) {
	for _, r := range All() {
		if own := strings.HasPrefix(r.String(), "rate_") || strings.HasPrefix(r.String(), "quota_"); own != (r.Status() == 429) {
			t.Errorf("%s has status %d", r, r.Status())
		}
	}
}

// CASES G15.
func TestGRPCCodesSayWhatTheCallerMayDo(t *testing.T) {
	for r, want := range map[Reason]uint8{
		PoolFull: 14, Draining: 14, AuthUnavailable: 14, UpstreamReset: 14, UpstreamTimeout: 4, DeadlineExpired: 4, RateTenant: 8, RateUser: 8, BodyTooLarge: 8,
		TokenMissing: 16, Denied: 16, ScopeMissing: 7, NoRoute: 12, MethodNotAllowed: 12, DeadlineInvalid: 13, ClientGone: 1, Internal: 13,
	} {
		if got := r.GRPC(); got != want {
			t.Errorf("%s is %d, want %d", r, got, want)
		}
	}
	for _, r := range All() {
		if c := r.GRPC(); c == 0 || c > 16 {
			t.Errorf("%s has no code: %d", r, c)
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

Callers of gRPC and gRPC-Web (content-type ` + "`application/grpc` and `application/grpc-web`, also with `+…`" + `) get HTTP 200 without a body, the code of the column gRPC in grpc-status, the meaning in grpc-message and
the token in x-cellgate-reason; log and metrics count them under the status of this table.

| reason | status | gRPC | meaning | whose |
|---|---|---|---|---|
`)
	for _, r := range All() {
		whose := "upstream"
		if r.Gateway() {
			whose = "gateway or caller"
		}
		fmt.Fprintf(&b, "| `%s` | %d | %d | %s | %s |\n", r, r.Status(), r.GRPC(), r.Title(), whose)
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
