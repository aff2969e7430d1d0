package contract

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/otlpsink"
	"github.com/cellgate/cellgate/test/harness"
)

// K1: a collector gets a trace of each request that is sampled, the upstream goes on with it, and nothing secret is in either.
func TestProxySendsTracesToACollector(t *testing.T) {
	sink := otlpsink.New(t, harness.FreeAddr(t))
	addr, admin := harness.FreeAddr(t), harness.FreeAddr(t)
	up := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { up <- r.Header.Get("Traceparent") }))
	t.Cleanup(server.Close)
	backend := server.Listener.Addr().String()
	doc := harness.WriteFile(t, "doc.yaml", proxyDocument(backend, "/v1/orders/{id}"))
	headers := harness.WriteFile(t, "headers", "X-Api-Key: k3y\n")
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr, "--admin", admin, "--region", "eu", "--otlp", sink.URL, "--otlp-ratio", "1", "--otlp-headers", headers)
	d.WaitHTTP("http://"+admin+"/readyz", 200)
	res := askAs(t, http.DefaultClient, "GET", "http://"+addr+"/v1/orders/7?token=s3cret", "Authorization", "Bearer s3cret", "Cookie", "s3cret", "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	id := res.Header.Get("X-Request-Id")
	harness.Eventually(t, 5*time.Second, "the spans have come", func() bool { return len(sink.Of(id)) == 2 })
	s, a := sink.Of(id)[0], sink.Of(id)[1]
	if s.Name != "GET orders" || s.Resource["service.name"] != "cellgate-proxy" || s.Resource["cloud.region"] != "eu" || len(s.Links) != 1 || s.Parent() != "" ||
		s.Text("url.path") != "/v1/orders/7" || s.Text("http.route") != "/v1/orders/{id}" || a.Parent() != s.ID() || a.Text("server.address")+fmt.Sprint(":", a.Number("server.port")) != backend {
		t.Errorf("%v\n%v", s, a)
	}
	if traceparent := <-up; traceparent != "00-"+id+"-"+a.ID()+"-03" {
		t.Errorf("the upstream was called by %s, the attempt is %s of %s", traceparent, a.ID(), id)
	}
	if all := fmt.Sprint(sink.Spans()); strings.Contains(all, "s3cret") || sink.Heads()[0].Get("X-Api-Key") != "k3y" {
		t.Errorf("sent with %v: %s", sink.Heads()[0], all)
	}
	harness.Eventually(t, 5*time.Second, "they are counted", func() bool {
		return strings.Contains(ask(t, http.DefaultClient, "GET", "http://"+admin+"/metrics").body, "cellgate_proxy_trace_spans_exported_total 2\n")
	})
	ask(t, http.DefaultClient, "GET", "http://"+addr+"/none") // is sent at the end, if it was not before
	if r := d.Stop(15 * time.Second); r.Code != 0 || len(sink.Spans()) != 3 || strings.Contains(r.Stderr, "k3y") {
		t.Errorf("exit %d with %d spans: %s", r.Code, len(sink.Spans()), r.Stderr)
	}
}

func TestACollectorThatCannotBeIsRefusedInClearWords(t *testing.T) {
	addr := harness.FreeAddr(t)
	doc := harness.WriteFile(t, "doc.yaml", proxyDocument("127.0.0.1:1", "/x"))
	secret := harness.WriteFile(t, "headers", "s3cret\n")
	for says, c := range map[string]struct {
		code int
		args []string
	}{
		"must be https":                 {2, []string{"--otlp", "http://collector.example"}},
		"is not an absolute URL":        {2, []string{"--otlp", "collector:4318"}},
		"169.254.169.254, which":        {2, []string{"--otlp", "https://169.254.169.254/"}},
		"metadata service":              {2, []string{"--otlp", "https://metadata.google.internal/"}},
		"has credentials":               {2, []string{"--otlp", "https://a:b@collector.example"}},
		"has a query":                   {2, []string{"--otlp", "https://collector.example?k=v"}},
		"need --otlp URL":               {2, []string{"--otlp-ratio", "0.5"}},
		"and --otlp-ca need --otlp URL": {2, []string{"--otlp-ca", secret}},
		"holds no certificate":          {1, []string{"--otlp", "https://collector.example", "--otlp-ca", secret}},
		"must be 0 to 1":                {2, []string{"--otlp", "https://collector.example", "--otlp-ratio", "NaN"}},
		"--otlp-ratio 2: must":          {2, []string{"--otlp", "https://collector.example", "--otlp-ratio", "2"}},
		"no such file":                  {1, []string{"--otlp", "https://collector.example", "--otlp-headers", "/nowhere"}},
		"lines of the form Name: value": {1, []string{"--otlp", "https://collector.example", "--otlp-headers", secret}},
	} {
		res := run(t, append([]string{"proxy", "serve", "--document", doc, "--http", addr}, c.args...)...)
		if res.Code != c.code || !strings.Contains(res.Stderr, says) || strings.Contains(res.Stderr, "s3cret") {
			t.Errorf("%v: exit %d, stderr %q; want %d and %q", c.args, res.Code, res.Stderr, c.code, says)
		}
	}
}

func TestANodeOfAWorldSendsTracesToItsCollector(t *testing.T) {
	g := newGateway(t)
	for says, otlp := range map[string]map[string]any{
		"otlp has no url": {"ratio": 1},
		"must be 0 to 1":  {"url": "https://collector.example", "ratio": 7},
		"169.254.1.1":     {"url": "https://169.254.1.1"},
	} {
		g.boot.OTLP = otlp
		if r := harness.Run(t, "proxy", "serve", "--bootstrap", g.write("bad.json", g.boot.encode())); r.Code != 1 || !strings.Contains(r.Stderr, says) {
			t.Errorf("%v: exit %d, %s", otlp, r.Code, r.Stderr)
		}
	}
	sink := otlpsink.New(t, harness.FreeAddr(t))
	g.boot.OTLP = map[string]any{"url": sink.URL, "ratio": 1}
	g.file = g.write("proxy.json", g.boot.encode())
	defer g.control()()
	g.publish(1)
	harness.Start(t, "proxy", "serve", "--bootstrap", g.file)
	g.becomes("readiness", g.admin("/readyz"), "admin-token", 200, 10*time.Second)
	g.get(g.shared("/open1"), "")
	harness.Eventually(t, 5*time.Second, "spans of the node", func() bool {
		for _, s := range sink.Spans() {
			if s.Resource["service.instance.id"] == string(theNode) && s.Resource["cellgate.cell"] == "eu-west/a" && s.Text("cellgate.route") == "open" && s.Number("cellgate.version") == 1 {
				return true
			}
		}
		return false
	})
}
