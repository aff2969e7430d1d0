package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

func snippet(t *testing.T, code string) *source {
	t.Helper()
	s := &source{pkg: "proxy/limit", fset: token.NewFileSet()}
	f, err := parser.ParseFile(s.fset, "x.go", "package x\n"+code, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	s.files = []*ast.File{f}
	return s
}

// Every rule is shown something that it must refuse and something that it must not.
func TestSourceRulesBite(t *testing.T) {
	for _, c := range []struct {
		rule func(*source) []string
		code string
		says string // empty = no fault
	}{
		{purityFaults, `import "time"; func f() { _ = time.Now() }`, "now is an argument"},
		{purityFaults, `import "time"; var f = time.Since`, "now is an argument"},
		{purityFaults, `import "time"; func f(now time.Time) time.Duration { return now.Sub(now) + time.Second }`, ""},
		{purityFaults, `type clock struct{ Now int }; func f(time clock) int { return time.Now }`, ""},
		{purityFaults, `import "math/rand/v2"; func f() int { return rand.IntN(3) }`, "dice"},
		{purityFaults, `import "math/rand/v2"; func f(r *rand.Rand) int { return r.IntN(3) }`, ""},
		{purityFaults, `import "net"; func f() { net.Dial("tcp", "") }`, "no sockets"},
		{purityFaults, `import "net"; func f() { net.SplitHostPort("") }`, ""},
		{purityFaults, `func f() { go f() }`, "goroutine"},
		{stateFaults, `func init() {}`, "init()"},
		{stateFaults, `type t struct{}; func (t) init() {}`, ""},
		{stateFaults, `var n int`, "has no value"},
		{stateFaults, `var n = 1; func f() { n++ }`, "writes the package variable n"},
		{stateFaults, `var n = 1; func f() { n := 2; n++; _ = n }`, ""},
		{stateFaults, `var m = map[string]int{}; func f() { m["a"] = 1 }`, "writes the package variable m"},
		{stateFaults, `var m = map[string]int{}; func f() { delete(m, "a") }`, "writes the package variable m"},
		{stateFaults, `var m = map[string]int{"a": 1}; func f() int { return m["a"] }`, ""},
		{stateFaults, `var a = [2]int{}; func f() *int { return &a[0] }`, "writes the package variable a"},
		{stateFaults, `var a = [2]int{}; func f() int { k := &a[0]; return *k }`, ""},
		{stateFaults, `var table = func() (t [4]int) { for i := range t { t[i] = i }; return }()`, ""},
		{stateFaults, `var mu sync.Mutex`, "made to be changed"},
		{stateFaults, `var p = &atomic.Pointer[int]{}`, "made to be changed"},
		{stateFaults, `var c = make(chan int)`, "made to be changed"},
		{stateFaults, `var pool = sync.Pool{New: nil}; func f() { pool.Put(1) }`, ""},
		{stateFaults, `import "errors"; var ErrX = errors.New("x"); type I interface{}; var _ I = 1`, ""},
		{lengthFaults, "func f() {" + strings.Repeat("\n_ = 1", 101) + "\n}", "lines, more than"},
		{lengthFaults, "func f() {" + strings.Repeat("\n_ = 1", 90) + "\n}", ""},
		{docFaults, "// TO" + "DO: later\nfunc f() {}", "not finished"},
		{docFaults, "", "no package sentence"},
	} {
		got := strings.Join(c.rule(snippet(t, c.code)), "; ")
		if (c.says == "") != (got == "") || !strings.Contains(got, c.says) {
			t.Errorf("%s\n  got %q, want %q", c.code, got, c.says)
		}
	}
}

func TestSkipRuleBites(t *testing.T) {
	for code, faults := range map[string]int{
		`func TestA(t *testing.T) { t.Skip() }`:                                                     1,
		`func TestA(t *testing.T) { t.Run("x", func(t *testing.T) { t.SkipNow() }) }`:               1,
		`func helper(tb testing.TB) { tb.Skipf("no") }`:                                             1,
		`func TestA(t *testing.T) { rapid.Check(t, func(t *rapid.T) { t.Skip() }) }`:                0,
		`func TestA(t *testing.T) { f(func(t *rapid.T) { t.Skip() }); t.Skip() }`:                   1,
		`func FuzzA(f *testing.F) { f.Fuzz(func(t *testing.T, b []byte) { t.Skip("no sample") }) }`: 0,
		`func TestA(t *testing.T) { parser.SkipObjectResolution() }`:                                0,
	} {
		s := snippet(t, code)
		if got := skipFaults(s.fset, s.files[0]); len(got) != faults {
			t.Errorf("%s: %v", code, got)
		}
	}
}

func TestImportRulesBite(t *testing.T) {
	own := func(p string) string { return module + "/" + p }
	for _, c := range []struct{ pkg, imp, says string }{
		{"health", own("report"), ""},
		{"health", own("trust"), "go down only"},
		{"health", "net/netip", ""},
		{"health", "net/http", "no sockets"},
		{"cells", "os", "no sockets"},
		{"cells", "log/slog", "no sockets"},
		{"proxy/limit", own("proxy/path"), "same-floor"},
		{"proxy/program", own("proxy/route"), ""},
		{"proxy/limit", own("internal/durable"), "helpers with hands"},
		{"proxy/engine", own("proxy"), ""},
		{"proxy/agent", own("nodeapi"), ""},
		{"proxy", own("regionctl"), "meet in the wiring"},
		{"proxy", own("regionctl/rollout"), ""},
		{"regionctl", own("globalrouter"), "meet in the wiring"},
		{"regionctl", own("cmd/internal/bootstrap"), "go down only"},
		{"cmd/internal/wire/proxy", own("proxy/engine"), ""},
		{"internal/durable", own("cells"), "no domain word"},
		{"newroom", "fmt", "no such room"},
		{"proxy", "go.etcd.io/etcd/client/v3", "lives in"},
		{"store/etcd/server", "go.etcd.io/etcd/server/v3/embed", ""},
		{"proxy/limit", "github.com/prometheus/client_golang/prometheus", "pure libraries"},
		{"proxy", "github.com/prometheus/client_golang/prometheus", ""},
		{"proxy", "example.com/unknown", "without a home"},
		{"snapshot", "go.yaml.in/yaml/v3", ""},
		{"test/e2e", "github.com/miekg/dns", ""},
	} {
		got := strings.Join(importFaults(c.pkg, []string{c.imp}), "; ")
		if (c.says == "") != (got == "") || !strings.Contains(got, c.says) {
			t.Errorf("%s imports %s: got %q, want %q", c.pkg, c.imp, got, c.says)
		}
	}
}

func TestLinkRulesBite(t *testing.T) {
	for _, c := range []struct {
		binary, dep string
		ok          bool
	}{
		{"proxy", "go.etcd.io/etcd/client/v3", false},
		{"globalrouter", module + "/regionctl", false},
		{"globalrouter", module + "/regionctl/rollout", true},
		{"regionctl", "go.etcd.io/etcd/client/v3", true},
		{"healthd", module + "/proxy/engine", false},
	} {
		if got := len(linkFaults(c.binary, c.dep)) == 0; got != c.ok {
			t.Errorf("%s in %s: ok %v, want %v", c.dep, c.binary, got, c.ok)
		}
	}
}
