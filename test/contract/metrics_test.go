package contract

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/test/harness"
)

var update = flag.Bool("update", false, "rewrite docs/metrics.md")

// family is a metric as a process shows it.
type family struct {
	help, kind string
	labels     []string
}

var sampleLine = regexp.MustCompile(`^([a-z0-9_]+)(?:\{(.*)\})? \S+$`)

// families reads a page of metrics (the text format of Prometheus, version 0.0.4) and counts its series.
func families(t *testing.T, page string) (all map[string]*family, series int) {
	t.Helper()
	all = map[string]*family{}
	at := func(name string) *family {
		if all[name] == nil {
			all[name] = &family{}
		}
		return all[name]
	}
	for lines := bufio.NewScanner(strings.NewReader(page)); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE "), "go_") {
			continue
		}
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, help, _ := strings.Cut(rest, " ")
			at(name).help = help
			continue
		}
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(rest, " ")
			at(name).kind = kind
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("not a sample: %q", line)
		}
		series++
		name := m[1]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base := strings.TrimSuffix(name, suffix); all[base] != nil && all[base].kind == "histogram" {
				name = base
			}
		}
		var labels []string
		for _, pair := range labelName.FindAllStringSubmatch(m[2], -1) {
			if pair[1] != "le" {
				labels = append(labels, pair[1])
			}
		}
		f := at(name)
		if f.labels != nil && !slices.Equal(f.labels, labels) {
			t.Errorf("%s has the labels %v and %v", name, f.labels, labels)
		}
		f.labels = labels
	}
	return all, series
}

var labelName = regexp.MustCompile(`([a-z_]+)="(?:[^"\\]|\\.)*"`)

// metricsAlone are those of a node without a world that has had requests of each sort.
func metricsAlone(t *testing.T) string {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/cut" {
			w.Header().Set("Content-Length", "100")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, "hello")
	}))
	t.Cleanup(up.Close)
	at := up.Listener.Addr().String()
	doc := harness.WriteFile(t, "doc.yaml", fmt.Sprintf(`version: v1
routes:
  - {id: ok, match: {host: api.example.com, path: /ok}, upstream: up, policies: [tried]}
  - {id: cut, match: {host: api.example.com, path: /cut}, upstream: up}
  - {id: keyed, match: {host: api.example.com, path: /keyed}, upstream: up, auth: key}
  - {id: opaque, match: {host: api.example.com, path: /opaque}, upstream: up, auth: opaque}
  - {id: limited, match: {host: api.example.com, path: /limited}, upstream: up, limits: {tenant: 1/hour}}
  - {id: dead, match: {host: api.example.com, path: /dead}, upstream: dead, retry: {attempts: 1}}
upstreams:
  - {id: up, endpoints: [%q]}
  - {id: dead, endpoints: [%q]}
  - {id: found, discovery: {consul: orders}}
policies:
  - {id: key, api_key: {}}
  - {id: tried, api_key: {}, mode: shadow}
  - {id: opaque, introspection: {url: %q, client_id: gw, client_secret_file: idp}}
`, at, harness.FreeAddr(t), "http://"+harness.FreeAddr(t)))
	agent := httptest.NewServer(&catalogue{index: 1, passing: []string{at}, changed: make(chan struct{})})
	t.Cleanup(agent.Close)
	cert, key := edgeFiles(t)
	addr, secure, admin := harness.FreeAddr(t), harness.FreeAddr(t), harness.FreeAddr(t)
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr, "--https", secure, "--cert", cert, "--key", key, "--admin", admin,
		"--access-log", harness.WriteFile(t, "access.log", ""), "--secrets", secretsDir(t, map[string]string{"idp": "x"}), "--otlp", "http://"+harness.FreeAddr(t),
		"--consul", agent.Listener.Addr().String(), "--consul-token-file", harness.WriteFile(t, "token", "root\n"))
	d.WaitHTTP("http://"+admin+"/readyz", 200)
	base := "http://" + addr
	for range 2 {
		ask(t, http.DefaultClient, "POST", base+"/ok")
		ask(t, http.DefaultClient, "GET", base+"/limited")
	}
	for path, fields := range map[string][]string{"/none": nil, "/keyed": nil, "/dead": nil, "/opaque": {"Authorization", "Bearer x"}} {
		askAs(t, http.DefaultClient, "GET", base+path, fields...)
	}
	d.WaitHTTP("https://"+secure+"/.well-known/cellgate/ready", 200)
	req, _ := http.NewRequest("POST", base+"/cut", strings.NewReader("body"))
	req.Host = "api.example.com"
	if res, err := http.DefaultClient.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	page := ""
	harness.Eventually(t, 5*time.Second, "what was asked is counted", func() bool {
		page = ask(t, http.DefaultClient, "GET", "http://"+admin+"/metrics").body
		return strings.Contains(page, "cellgate_proxy_truncated_total{") && strings.Contains(page, "cellgate_proxy_upstream_endpoints_age_seconds{")
	})
	return page
}

// metricsOfAWorld are those of a node of a world.
func metricsOfAWorld(t *testing.T) string {
	g := newGateway(t)
	defer g.control()()
	g.publish(1)
	harness.Start(t, "proxy", "serve", "--bootstrap", g.file)
	g.becomes("readiness", g.admin("/readyz"), "admin-token", 200, 10*time.Second)
	g.get(g.shared("/open1"), "")
	_, page, _ := g.get(g.admin("/metrics"), "admin-token")
	return page
}

const metricsPage = "../../docs/metrics.md"

// K1: docs/metrics.md lists what a node shows, each metric with its labels; `go test ./test/contract -run Metric -update` writes it
// anew. What the runtime of Go tells by itself (go_…) changes with its version.
func TestEachMetricOfANodeIsDocumentedWithItsLabels(t *testing.T) {
	alone, n := families(t, metricsAlone(t))
	world, _ := families(t, metricsOfAWorld(t))
	all := maps.Clone(alone)
	maps.Copy(all, world)
	old, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(old), "| metric |")
	page := head + "| metric | type | labels | meaning |\n|---|---|---|---|\n"
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := all[name]
		where := ""
		if alone[name] == nil {
			where = " In a world only."
		}
		labels := ""
		if len(f.labels) > 0 {
			labels = "`" + strings.Join(f.labels, "` `") + "`"
		}
		page += fmt.Sprintf("| `%s` | %s | %s | %s%s |\n", name, f.kind, labels, f.help, where)
		if strings.HasSuffix(name, "_total") != (f.kind == "counter") || f.help == "" {
			t.Errorf("%s: a %s, %q", name, f.kind, f.help)
		}
	}
	if *update {
		if err := os.WriteFile(metricsPage, []byte(page), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if page != string(old) {
		t.Errorf("%s is not what a node shows:\n%s", metricsPage, difference(string(old), page))
	}
	if n < 100 || n > 5000 {
		t.Errorf("%d series of a small document", n)
	}
}

// difference are the lines that only one of two texts has.
func difference(a, b string) (out string) {
	mine, others := strings.Split(a, "\n"), strings.Split(b, "\n")
	for _, l := range mine {
		if !slices.Contains(others, l) {
			out += "- " + l + "\n"
		}
	}
	for _, l := range others {
		if !slices.Contains(mine, l) {
			out += "+ " + l + "\n"
		}
	}
	return out
}
