package reply

import (
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/reason"
)

func TestFieldsComeInTheirOrderBothWays(t *testing.T) {
	var r Reply
	Add(&r, "A", "1")
	Add(&r, "B", []byte("2"))
	r.AddInt("C", -3)
	if got := string(r.AppendFields(nil)); got != "A: 1\r\nB: 2\r\nC: -3\r\n" {
		t.Fatalf("%q", got)
	}
	var each strings.Builder
	r.Each(func(name, value string) { each.WriteString(name + "=" + value + " ") })
	if each.String() != "A=1 B=2 C=-3 " {
		t.Fatal(each.String())
	}
	if r.Reset(); len(r.AppendFields(nil)) != 0 || len(r.Body()) != 0 {
		t.Fatal("something is left")
	}
}

func TestAnOwnAnswerSaysWhyAndWhenToComeBack(t *testing.T) {
	var r Reply
	r.Limited(reason.RateUser, 1001*time.Millisecond)
	r.Problem(reason.RateUser, 429, "id")
	head, body := string(r.AppendFields(nil)), string(r.Body())
	for _, want := range []string{"Retry-After: 2\r\n", "RateLimit: \"rate_user\";r=0;t=2\r\n", "X-RateLimit-Remaining: 0\r\n", "Content-Type: application/problem+json\r\n", "Cache-Control: no-store\r\n"} {
		if !strings.Contains(head, want) {
			t.Errorf("%q is not in %q", want, head)
		}
	}
	if !strings.Contains(body, `"reason":"rate_user"`) || !strings.Contains(body, `"request_id":"id"`) {
		t.Error(body)
	}
}

func TestCallersOfGRPCGetTheirStatusInAField(t *testing.T) {
	var r Reply
	r.TrailersOnly(reason.RateUser, []byte("application/grpc"))
	if got := string(r.AppendFields(nil)); !strings.Contains(got, "Grpc-Status: 8\r\n") || len(r.Body()) != 0 {
		t.Fatal(got)
	}
}

func TestAReplyAllocatesNothingOnceItsBufferHasGrown(t *testing.T) {
	var r Reply
	buf := make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(100, func() {
		r.Reset()
		Add(&r, "X-Request-Id", "0123")
		r.Limited(reason.RateUser, time.Second)
		r.Problem(reason.RateUser, 429, "id")
		buf = r.AppendFields(buf[:0])
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
